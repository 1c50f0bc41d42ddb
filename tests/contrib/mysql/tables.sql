CREATE TABLE IF NOT EXISTS scheduled_alembic_version (
    version_num VARCHAR(32) NOT NULL, 
    CONSTRAINT scheduled_alembic_version_pkc PRIMARY KEY (version_num)
);

-- Running upgrade  -> sw0001

CREATE TABLE IF NOT EXISTS `scheduled_tasks` (
    `task_name` varchar(100) NOT NULL,
    `task_instance` varchar(250) NOT NULL,
    `task_data` longblob,
    `execution_time` datetime(6) NOT NULL CHECK (`execution_time` >= TIMESTAMP'1900-01-01 00:00:00' AND `execution_time` < TIMESTAMP'9002-01-01 00:00:00'),
    `picked` BOOL NOT NULL,
    `picked_by` varchar(200),
    `last_success` datetime(6) CHECK (`last_success` >= TIMESTAMP'1900-01-01 00:00:00' AND `last_success` < TIMESTAMP'9002-01-01 00:00:00'),
    `last_failure` datetime(6) CHECK (`last_failure` >= TIMESTAMP'1900-01-01 00:00:00' AND `last_failure` < TIMESTAMP'9002-01-01 00:00:00'),
    `consecutive_failures` INTEGER,
    `last_heartbeat` datetime(6) CHECK (`last_heartbeat` >= TIMESTAMP'1900-01-01 00:00:00' AND `last_heartbeat` < TIMESTAMP'9002-01-01 00:00:00'),
    `version` BIGINT NOT NULL CHECK (`version` < 4611686018427387904),
    `priority` SMALLINT DEFAULT 50,
    `kind` varchar(50) NOT NULL DEFAULT 'task',
    `slot` datetime(6) CHECK (`slot` >= TIMESTAMP'1900-01-01 00:00:00' AND `slot` < TIMESTAMP'9002-01-01 00:00:00'),
    `watermark` datetime(6) CHECK (`watermark` >= TIMESTAMP'1900-01-01 00:00:00' AND `watermark` < TIMESTAMP'9002-01-01 00:00:00'),
    `next_slot` datetime(6) CHECK (`next_slot` >= TIMESTAMP'1900-01-01 00:00:00' AND `next_slot` < TIMESTAMP'9002-01-01 00:00:00'),
    `schedule` longtext,
    `plan` JSON,
    `plan_instance` varchar(250),
    `origin` varchar(50),
    `collapsed` BIGINT NOT NULL DEFAULT 0,
    `created_version` BIGINT CHECK (`created_version` < 4611686018427387904),
    `attempt` INTEGER NOT NULL DEFAULT 0,
    `lost_count` INTEGER NOT NULL DEFAULT 0,
    `lease` bigint,
    `state` varchar(50),
    `parked_due` datetime(6) CHECK (`parked_due` >= TIMESTAMP'1900-01-01 00:00:00' AND `parked_due` < TIMESTAMP'9002-01-01 00:00:00'),
    `wanted_due` datetime(6) CHECK (`wanted_due` >= TIMESTAMP'1900-01-01 00:00:00' AND `wanted_due` < TIMESTAMP'9002-01-01 00:00:00'),
    `waits_for` INTEGER,
    `cancel_requested` datetime(6) CHECK (`cancel_requested` >= TIMESTAMP'1900-01-01 00:00:00' AND `cancel_requested` < TIMESTAMP'9002-01-01 00:00:00'),
    `unheld_since` datetime(6) CHECK (`unheld_since` >= TIMESTAMP'1900-01-01 00:00:00' AND `unheld_since` < TIMESTAMP'9002-01-01 00:00:00'),
    `last_error` longtext,
    `control` BIGINT,
    `pending` JSON,
    `marked` datetime(6) CHECK (`marked` >= TIMESTAMP'1900-01-01 00:00:00' AND `marked` < TIMESTAMP'9002-01-01 00:00:00'),
    `limit_key` varchar(250),
    `order_key` varchar(250),
    `period` bigint,
    `anchor` datetime(6) CHECK (`anchor` >= TIMESTAMP'1900-01-01 00:00:00' AND `anchor` < TIMESTAMP'9002-01-01 00:00:00'),
    `due_slot` datetime(6) AS (CASE WHEN NOT picked AND state IS NULL AND lost_count = 0 AND kind <> 'task' THEN execution_time END) STORED,
    `due_task` datetime(6) AS (CASE WHEN NOT picked AND state IS NULL AND lost_count = 0 AND kind = 'task' THEN execution_time END) STORED,
    `due_lost` datetime(6) AS (CASE WHEN NOT picked AND state IS NULL AND lost_count > 0 THEN execution_time END) STORED,
    `priority_rank` int AS (CASE WHEN NOT picked AND state IS NULL AND lost_count = 0 THEN -coalesce(priority, 50) END) STORED,
    `held` varchar(200) AS (CASE WHEN picked THEN picked_by END) STORED,
    PRIMARY KEY (`task_name`, `task_instance`),
    KEY `scheduled_tasks_due` (`due_slot`, `priority_rank`),
    KEY `scheduled_tasks_queue` (`task_name`, `priority_rank`, `due_task`),
    KEY `scheduled_tasks_lost` (`due_lost`),
    KEY `scheduled_tasks_held` (`held`),
    KEY `scheduled_tasks_parked` (`state`, `task_name`, `task_instance`),
    KEY `scheduled_tasks_beside` (`task_name`, `plan_instance`, `slot`),
    KEY `scheduled_tasks_ordered` (`task_name`, `order_key`, `created_version`),
    KEY `scheduled_tasks_failing` (`task_name`, `consecutive_failures`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_slots` (
    `task_name` varchar(100) NOT NULL,
    `task_instance` varchar(250) NOT NULL,
    `slot` datetime(6) NOT NULL CHECK (`slot` >= TIMESTAMP'1900-01-01 00:00:00' AND `slot` < TIMESTAMP'9002-01-01 00:00:00'),
    `outcome` varchar(50) NOT NULL,
    `reason` longtext,
    `origin` varchar(50) NOT NULL DEFAULT 'schedule',
    `attempts` INTEGER NOT NULL DEFAULT 0,
    `lost` INTEGER NOT NULL DEFAULT 0,
    `aborted` INTEGER NOT NULL DEFAULT 0,
    `collapsed` BIGINT NOT NULL DEFAULT 0,
    `token` BIGINT CHECK (`token` < 4611686018427387904),
    `worker` varchar(200),
    `started` datetime(6) CHECK (`started` >= TIMESTAMP'1900-01-01 00:00:00' AND `started` < TIMESTAMP'9002-01-01 00:00:00'),
    `started_before` datetime(6) CHECK (`started_before` >= TIMESTAMP'1900-01-01 00:00:00' AND `started_before` < TIMESTAMP'9002-01-01 00:00:00'),
    `finished` datetime(6) CHECK (`finished` >= TIMESTAMP'1900-01-01 00:00:00' AND `finished` < TIMESTAMP'9002-01-01 00:00:00'),
    `error` longtext,
    `result` longblob,
    `expires` datetime(6) CHECK (`expires` >= TIMESTAMP'1900-01-01 00:00:00' AND `expires` < TIMESTAMP'9002-01-01 00:00:00'),
    PRIMARY KEY (`task_name`, `task_instance`, `slot`),
    KEY `scheduled_slots_expires` (`expires`),
    KEY `scheduled_slots_of_instances` (`task_name`, `slot`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_gaps` (
    `task_name` varchar(100) NOT NULL,
    `task_instance` varchar(250) NOT NULL,
    `first_slot` datetime(6) NOT NULL CHECK (`first_slot` >= TIMESTAMP'1900-01-01 00:00:00' AND `first_slot` < TIMESTAMP'9002-01-01 00:00:00'),
    `last_slot` datetime(6) NOT NULL CHECK (`last_slot` >= TIMESTAMP'1900-01-01 00:00:00' AND `last_slot` < TIMESTAMP'9002-01-01 00:00:00'),
    `count` BIGINT NOT NULL,
    `reason` longtext NOT NULL,
    `created` datetime(6) NOT NULL CHECK (`created` >= TIMESTAMP'1900-01-01 00:00:00' AND `created` < TIMESTAMP'9002-01-01 00:00:00'),
    PRIMARY KEY (`task_name`, `task_instance`, `first_slot`),
    KEY `scheduled_gaps_last` (`task_name`, `last_slot`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_attempts` (
    `task_name` varchar(100) NOT NULL,
    `task_instance` varchar(250) NOT NULL,
    `slot` datetime(6) NOT NULL CHECK (`slot` >= TIMESTAMP'1900-01-01 00:00:00' AND `slot` < TIMESTAMP'9002-01-01 00:00:00'),
    `token` BIGINT NOT NULL CHECK (`token` < 4611686018427387904),
    `number` INTEGER NOT NULL,
    `worker` varchar(200),
    `claimed` datetime(6) CHECK (`claimed` >= TIMESTAMP'1900-01-01 00:00:00' AND `claimed` < TIMESTAMP'9002-01-01 00:00:00'),
    `started` datetime(6) CHECK (`started` >= TIMESTAMP'1900-01-01 00:00:00' AND `started` < TIMESTAMP'9002-01-01 00:00:00'),
    `ended` datetime(6) CHECK (`ended` >= TIMESTAMP'1900-01-01 00:00:00' AND `ended` < TIMESTAMP'9002-01-01 00:00:00'),
    `outcome` varchar(50) NOT NULL,
    `reason` longtext,
    `error` longtext,
    PRIMARY KEY (`task_name`, `task_instance`, `slot`, `token`),
    KEY `scheduled_attempts_ended` (`ended`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_workers` (
    `worker` varchar(200) NOT NULL,
    `host` varchar(100) NOT NULL,
    `pid` INTEGER NOT NULL,
    `boot_id` varchar(100) NOT NULL,
    `tags` longtext,
    `tasks` longtext,
    `revision` longtext,
    `refused` longtext,
    `passed_over` longtext,
    `version` longtext NOT NULL,
    `capacity` INTEGER NOT NULL,
    `state` varchar(50) NOT NULL,
    `started` datetime(6) NOT NULL CHECK (`started` >= TIMESTAMP'1900-01-01 00:00:00' AND `started` < TIMESTAMP'9002-01-01 00:00:00'),
    `last_seen` datetime(6) NOT NULL CHECK (`last_seen` >= TIMESTAMP'1900-01-01 00:00:00' AND `last_seen` < TIMESTAMP'9002-01-01 00:00:00'),
    `lease` bigint NOT NULL,
    `skew` double,
    PRIMARY KEY (`worker`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_controls` (
    `id` BIGINT NOT NULL AUTO_INCREMENT,
    `at` datetime(6) NOT NULL CHECK (`at` >= TIMESTAMP'1900-01-01 00:00:00' AND `at` < TIMESTAMP'9002-01-01 00:00:00'),
    `author` varchar(200) NOT NULL,
    `command` varchar(100) NOT NULL,
    `task_name` varchar(100),
    `slot` datetime(6) CHECK (`slot` >= TIMESTAMP'1900-01-01 00:00:00' AND `slot` < TIMESTAMP'9002-01-01 00:00:00'),
    `arguments` longtext,
    `note` longtext,
    PRIMARY KEY (`id`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_calendars` (
    `name` varchar(250) NOT NULL,
    `revision` BIGINT NOT NULL,
    `weekend` longtext NOT NULL,
    `days` longtext NOT NULL,
    `updated` datetime(6) NOT NULL CHECK (`updated` >= TIMESTAMP'1900-01-01 00:00:00' AND `updated` < TIMESTAMP'9002-01-01 00:00:00'),
    PRIMARY KEY (`name`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_starts` (
    `task_name` varchar(100) NOT NULL,
    `at` datetime(6) NOT NULL CHECK (`at` >= TIMESTAMP'1900-01-01 00:00:00' AND `at` < TIMESTAMP'9002-01-01 00:00:00'),
    `count` BIGINT NOT NULL,
    PRIMARY KEY (`task_name`, `at`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_keys` (
    `task_name` varchar(100) NOT NULL,
    `kind` varchar(50) NOT NULL,
    `key` varchar(250) NOT NULL,
    `head` longtext,
    `running` INTEGER NOT NULL DEFAULT 0,
    `full_until` datetime(6) CHECK (`full_until` >= TIMESTAMP'1900-01-01 00:00:00' AND `full_until` < TIMESTAMP'9002-01-01 00:00:00'),
    PRIMARY KEY (`task_name`, `kind`, `key`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_receipts` (
    `receipt` varchar(250) NOT NULL,
    `answer` JSON,
    `created` datetime(6) NOT NULL CHECK (`created` >= TIMESTAMP'1900-01-01 00:00:00' AND `created` < TIMESTAMP'9002-01-01 00:00:00'),
    `expires` datetime(6) NOT NULL CHECK (`expires` >= TIMESTAMP'1900-01-01 00:00:00' AND `expires` < TIMESTAMP'9002-01-01 00:00:00'),
    PRIMARY KEY (`receipt`),
    KEY `scheduled_receipts_expires` (`expires`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_meta` (
    `key` varchar(250) NOT NULL,
    `value` longtext NOT NULL,
    PRIMARY KEY (`key`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

INSERT IGNORE INTO scheduled_meta VALUES ('installation_id', uuid());

INSERT IGNORE INTO scheduled_meta VALUES ('schema_version', '1');

INSERT INTO scheduled_alembic_version (version_num) VALUES ('sw0001') RETURNING scheduled_alembic_version.version_num;

-- Running upgrade sw0001 -> sw0002

UPDATE scheduled_alembic_version SET version_num='sw0002' WHERE scheduled_alembic_version.version_num = 'sw0001';

-- Running upgrade sw0002 -> sw0003

UPDATE scheduled_alembic_version SET version_num='sw0003' WHERE scheduled_alembic_version.version_num = 'sw0002';

-- Running upgrade sw0003 -> sw0004

CREATE TABLE IF NOT EXISTS `scheduled_deploys` (
    `task_name` varchar(100) NOT NULL,
    `task_instance` varchar(250) NOT NULL,
    `at` datetime(6) NOT NULL CHECK (`at` >= TIMESTAMP'1900-01-01 00:00:00' AND `at` < TIMESTAMP'9002-01-01 00:00:00'),
    `former` longtext,
    `schedule` longtext NOT NULL,
    `revision` longtext,
    `worker` varchar(200) NOT NULL,
    PRIMARY KEY (`task_name`, `task_instance`, `at`),
    KEY `scheduled_deploys_at` (`at`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_worker_history` (
    `worker` varchar(200) NOT NULL,
    `host` varchar(100) NOT NULL,
    `version` longtext NOT NULL,
    `revision` longtext,
    `capacity` INTEGER NOT NULL,
    `tags` longtext,
    `tasks` longtext,
    `started` datetime(6) NOT NULL CHECK (`started` >= TIMESTAMP'1900-01-01 00:00:00' AND `started` < TIMESTAMP'9002-01-01 00:00:00'),
    `drained` datetime(6) CHECK (`drained` >= TIMESTAMP'1900-01-01 00:00:00' AND `drained` < TIMESTAMP'9002-01-01 00:00:00'),
    `ended` datetime(6) CHECK (`ended` >= TIMESTAMP'1900-01-01 00:00:00' AND `ended` < TIMESTAMP'9002-01-01 00:00:00'),
    `outcome` varchar(50),
    `reason` longtext,
    PRIMARY KEY (`worker`),
    KEY `scheduled_worker_history_ended` (`ended`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_counts` (
    `task_name` varchar(100) NOT NULL,
    `hour` datetime(6) NOT NULL CHECK (`hour` >= TIMESTAMP'1900-01-01 00:00:00' AND `hour` < TIMESTAMP'9002-01-01 00:00:00'),
    `kind` varchar(50) NOT NULL,
    `outcome` varchar(50) NOT NULL,
    `reason` varchar(50) NOT NULL,
    `count` BIGINT NOT NULL,
    `pruned` BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (`task_name`, `hour`, `kind`, `outcome`, `reason`),
    KEY `scheduled_counts_hour` (`hour`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

UPDATE scheduled_alembic_version SET version_num='sw0004' WHERE scheduled_alembic_version.version_num = 'sw0003';

-- Running upgrade sw0004 -> sw0005

CREATE TABLE IF NOT EXISTS `scheduled_pauses` (
    `task_name` varchar(100) NOT NULL,
    `scope` varchar(250) NOT NULL,
    `task_instance` varchar(250) NOT NULL,
    `created` datetime(6) NOT NULL CHECK (`created` >= TIMESTAMP'1900-01-01 00:00:00' AND `created` < TIMESTAMP'9002-01-01 00:00:00'),
    `until` datetime(6) CHECK (`until` >= TIMESTAMP'1900-01-01 00:00:00' AND `until` < TIMESTAMP'9002-01-01 00:00:00'),
    `missed` longtext NOT NULL,
    `author` varchar(200) NOT NULL,
    `note` longtext,
    PRIMARY KEY (`task_name`, `scope`, `task_instance`),
    KEY `scheduled_pauses_until` (`until`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_incidents` (
    `kind` varchar(50) NOT NULL,
    `name` varchar(250) NOT NULL,
    `number` INTEGER NOT NULL,
    `version` BIGINT NOT NULL CHECK (`version` < 4611686018427387904),
    `opened` datetime(6) NOT NULL CHECK (`opened` >= TIMESTAMP'1900-01-01 00:00:00' AND `opened` < TIMESTAMP'9002-01-01 00:00:00'),
    `seen` datetime(6) NOT NULL CHECK (`seen` >= TIMESTAMP'1900-01-01 00:00:00' AND `seen` < TIMESTAMP'9002-01-01 00:00:00'),
    `closed` datetime(6) CHECK (`closed` >= TIMESTAMP'1900-01-01 00:00:00' AND `closed` < TIMESTAMP'9002-01-01 00:00:00'),
    `summary` longtext NOT NULL,
    `delivered` longtext NOT NULL,
    `next_attempt` datetime(6) CHECK (`next_attempt` >= TIMESTAMP'1900-01-01 00:00:00' AND `next_attempt` < TIMESTAMP'9002-01-01 00:00:00'),
    `attempts` INTEGER NOT NULL,
    `error` longtext,
    PRIMARY KEY (`kind`, `name`, `number`),
    KEY `scheduled_incidents_opened` (`opened`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_silences` (
    `kind` varchar(50) NOT NULL,
    `name` varchar(250) NOT NULL,
    `created` datetime(6) NOT NULL CHECK (`created` >= TIMESTAMP'1900-01-01 00:00:00' AND `created` < TIMESTAMP'9002-01-01 00:00:00'),
    `until` datetime(6) NOT NULL CHECK (`until` >= TIMESTAMP'1900-01-01 00:00:00' AND `until` < TIMESTAMP'9002-01-01 00:00:00'),
    `author` varchar(200) NOT NULL,
    `note` longtext,
    PRIMARY KEY (`kind`, `name`),
    KEY `scheduled_silences_until` (`until`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_instances` (
    `task_name` varchar(100) NOT NULL,
    `task_instance` varchar(250) NOT NULL,
    `scope` varchar(250) NOT NULL,
    `tags` longtext,
    `updated` datetime(6) NOT NULL CHECK (`updated` >= TIMESTAMP'1900-01-01 00:00:00' AND `updated` < TIMESTAMP'9002-01-01 00:00:00'),
    PRIMARY KEY (`task_name`, `task_instance`),
    KEY `scheduled_instances_of_scope` (`task_name`, `scope`, `task_instance`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_scopes` (
    `task_name` varchar(100) NOT NULL,
    `scope` varchar(250) NOT NULL,
    `token` BIGINT NOT NULL CHECK (`token` < 4611686018427387904),
    `begun` datetime(6) NOT NULL CHECK (`begun` >= TIMESTAMP'1900-01-01 00:00:00' AND `begun` < TIMESTAMP'9002-01-01 00:00:00'),
    `finished` datetime(6) CHECK (`finished` >= TIMESTAMP'1900-01-01 00:00:00' AND `finished` < TIMESTAMP'9002-01-01 00:00:00'),
    PRIMARY KEY (`task_name`, `scope`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

UPDATE scheduled_alembic_version SET version_num='sw0005' WHERE scheduled_alembic_version.version_num = 'sw0004';

-- Running upgrade sw0005 -> sw0006

CREATE TABLE IF NOT EXISTS `scheduled_checkpoints` (
    `task_name` varchar(100) NOT NULL,
    `task_instance` varchar(250) NOT NULL,
    `slot` datetime(6) NOT NULL CHECK (`slot` >= TIMESTAMP'1900-01-01 00:00:00' AND `slot` < TIMESTAMP'9002-01-01 00:00:00'),
    `token` BIGINT NOT NULL CHECK (`token` < 4611686018427387904),
    `updated` datetime(6) NOT NULL CHECK (`updated` >= TIMESTAMP'1900-01-01 00:00:00' AND `updated` < TIMESTAMP'9002-01-01 00:00:00'),
    `value` longblob NOT NULL,
    PRIMARY KEY (`task_name`, `task_instance`, `slot`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

UPDATE scheduled_alembic_version SET version_num='sw0006' WHERE scheduled_alembic_version.version_num = 'sw0005';

-- Running upgrade sw0006 -> sw0007

CREATE TABLE IF NOT EXISTS `scheduled_events` (
    `id` BIGINT NOT NULL AUTO_INCREMENT,
    `name` varchar(250) NOT NULL,
    `key` varchar(250),
    `data` longblob,
    `published` datetime(6) NOT NULL CHECK (`published` >= TIMESTAMP'1900-01-01 00:00:00' AND `published` < TIMESTAMP'9002-01-01 00:00:00'),
    `fanned_out` datetime(6) CHECK (`fanned_out` >= TIMESTAMP'1900-01-01 00:00:00' AND `fanned_out` < TIMESTAMP'9002-01-01 00:00:00'),
    `handlers` INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (`id`),
    KEY `scheduled_events_waiting` (`fanned_out`, `id`),
    KEY `scheduled_events_unhandled` (`name`, `handlers`, `id`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_event_handlers` (
    `handler` varchar(100) NOT NULL,
    `event` varchar(100) NOT NULL,
    `since_id` BIGINT NOT NULL,
    `on_failure` longtext NOT NULL,
    `priority` SMALLINT,
    `former` longtext,
    `created` datetime(6) NOT NULL CHECK (`created` >= TIMESTAMP'1900-01-01 00:00:00' AND `created` < TIMESTAMP'9002-01-01 00:00:00'),
    `retired` datetime(6) CHECK (`retired` >= TIMESTAMP'1900-01-01 00:00:00' AND `retired` < TIMESTAMP'9002-01-01 00:00:00'),
    PRIMARY KEY (`handler`, `event`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

CREATE TABLE IF NOT EXISTS `scheduled_set_aside` (
    `task_name` varchar(100) NOT NULL,
    `source` varchar(200) NOT NULL,
    `row_key` varchar(450) NOT NULL,
    `state` varchar(50) NOT NULL,
    `tries` INTEGER NOT NULL,
    `error` longtext,
    `first_failed` datetime(6) NOT NULL CHECK (`first_failed` >= TIMESTAMP'1900-01-01 00:00:00' AND `first_failed` < TIMESTAMP'9002-01-01 00:00:00'),
    `last_failed` datetime(6) NOT NULL CHECK (`last_failed` >= TIMESTAMP'1900-01-01 00:00:00' AND `last_failed` < TIMESTAMP'9002-01-01 00:00:00'),
    PRIMARY KEY (`task_name`, `source`, `row_key`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

ALTER TABLE scheduled_checkpoints ADD COLUMN done BIGINT;

ALTER TABLE scheduled_checkpoints ADD COLUMN total BIGINT;

UPDATE scheduled_alembic_version SET version_num='sw0007' WHERE scheduled_alembic_version.version_num = 'sw0006';

