SAVEPOINT slotwise;
