SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended(%(hashtextextended_1)s::TEXT,
    %(hashtextextended_2)s::INTEGER)) AS pg_try_advisory_xact_lock_1;
