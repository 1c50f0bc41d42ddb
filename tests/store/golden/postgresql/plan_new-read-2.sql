RELEASE SAVEPOINT sa_savepoint_1;
