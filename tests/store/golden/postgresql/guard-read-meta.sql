SELECT scheduled_meta.value
FROM scheduled_meta
WHERE scheduled_meta.key = %(key_1)s::TEXT;
