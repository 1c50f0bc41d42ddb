SELECT pg_catalog.set_config(%(set_config_2)s::TEXT, %(set_config_3)s::TEXT, %(set_config_4)s) AS set_config_1;
