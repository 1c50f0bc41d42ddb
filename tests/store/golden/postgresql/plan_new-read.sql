SAVEPOINT sa_savepoint_1;
