SELECT pg_catalog.pg_current_xact_id()::text;
