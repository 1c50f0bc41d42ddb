SELECT pg_catalog.statement_timestamp();
