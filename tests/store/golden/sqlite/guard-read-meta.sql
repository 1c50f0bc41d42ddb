SELECT scheduled_meta.value
FROM scheduled_meta
WHERE scheduled_meta."key" = ?;
