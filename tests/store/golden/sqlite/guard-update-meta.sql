UPDATE scheduled_meta SET value=scheduled_meta.value WHERE 0 = 1;
