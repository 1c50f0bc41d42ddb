"""Extend slotwise: listeners and hooks, the port to a database, a worker inside a host, plug-ins.

What is here is for authors of integrations, dialects and commands. Our own integrations use
nothing else of the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotwise.model.exports import late

if TYPE_CHECKING:
    from slotwise.engine.loops.service import Service
    from slotwise.engine.process.signals import StopRequests
    from slotwise.engine.process.single_run import Ended, SingleRun
    from slotwise.engine.run.active_claims import Holding
    from slotwise.engine.run.runner import Runner
    from slotwise.engine.worker import Worker
    from slotwise.errors import pasteable
    from slotwise.jobs.context import TaskOptions
    from slotwise.jobs.definition import (
        NAME_LIMIT,
        Definition,
        define,
        shortest_interval,
    )
    from slotwise.jobs.functions import FunctionJob, FunctionTask
    from slotwise.jobs.job import JobPolicies
    from slotwise.jobs.policies import OnLost, growing_pauses
    from slotwise.jobs.steering import Steering
    from slotwise.model.clock import Clock, DatabaseClock, elapsed
    from slotwise.model.durations import (
        LONGEST_DURATION,
        format_duration,
        parse_duration,
        short_duration,
    )
    from slotwise.model.error_text import (
        error_summary,
        escaped,
        hide_password,
        redact,
        storable,
    )
    from slotwise.model.events import (
        BatchClaimed,
        BatchSettled,
        BatchSkipped,
        ClaimLostEvent,
        DatabaseLost,
        Event,
        Finished,
        HandedBackEvent,
        HandlerStarted,
        HeartbeatSent,
        Pruned,
        Reaped,
        Settled,
        SlotsSkipped,
        SlotsSuperseded,
        log_record,
    )
    from slotwise.model.identity import Identity
    from slotwise.model.records import (
        KNOWN_YEARS,
        Aborted,
        AttemptOutcome,
        Claim,
        Failed,
        FollowUps,
        HandedBack,
        Key,
        LedgerKey,
        Row,
        Snoozed,
        Succeeded,
        is_known,
    )
    from slotwise.model.vocabulary import (
        REASONS,
        TASK_STATES,
        Kind,
        ListedState,
        Origin,
        Outcome,
        Reason,
        RowState,
        SlotState,
        WorkerState,
        register_reason,
    )
    from slotwise.payload.codecs import JSON, register_codec
    from slotwise.payload.converters import invalid_type, model_shape
    from slotwise.payload.shape import Shape
    from slotwise.registry.host import START_WAIT, Host, RegistrySource
    from slotwise.registry.plugin import CommandLine, PluginCommand, Section
    from slotwise.registry.validation import (
        check_callables,
        check_lifespan,
        definitions_of,
    )
    from slotwise.schedules.base import instant_text
    from slotwise.schedules.combinators import Arranged, Between, Spread
    from slotwise.schedules.cron_fields import quoted
    from slotwise.schedules.zones import zone_named
    from slotwise.settings.documents import read_document
    from slotwise.store.connect.caller_transaction import Joinable
    from slotwise.store.connect.database import Database
    from slotwise.store.connect.database_errors import (
        describe_address,
        describe_error,
        is_locked,
        is_transient,
    )
    from slotwise.store.connect.dsn import connect_arguments, database_url
    from slotwise.store.dialects.locking import Locking
    from slotwise.store.dialects.one_writer import OneWriter
    from slotwise.store.dialects.port import ClaimRequest, Dialect
    from slotwise.store.dialects.registered import register_dialect
    from slotwise.store.planning.planner import Plan
    from slotwise.store.queue.queue import Inserted
    from slotwise.store.queue.traces import store_trace
    from slotwise.store.reading.facts import Facts, plan_row, slot_state
    from slotwise.store.schema.tables import Tables, tables

_HOMES = {
    # listeners
    "slotwise.model.events": (
        "Event",
        "Finished",
        "BatchClaimed",
        "BatchSettled",
        "BatchSkipped",
        "ClaimLostEvent",
        "DatabaseLost",
        "HandedBackEvent",
        "HandlerStarted",
        "HeartbeatSent",
        "Pruned",
        "Reaped",
        "Settled",
        "SlotsSkipped",
        "SlotsSuperseded",
        "log_record",
    ),
    # hooks around an insert, and the connections that they may join
    "slotwise.store.queue.queue": ("Inserted",),
    "slotwise.store.queue.traces": ("store_trace",),
    "slotwise.store.connect.caller_transaction": ("Joinable",),
    # declarations, as the core has read them
    "slotwise.jobs.definition": (
        "NAME_LIMIT",
        "Definition",
        "define",
        "shortest_interval",
    ),
    "slotwise.jobs.context": ("TaskOptions",),
    "slotwise.jobs.steering": ("Steering",),
    "slotwise.jobs.functions": ("FunctionJob", "FunctionTask"),
    "slotwise.jobs.job": ("JobPolicies",),
    "slotwise.jobs.policies": ("OnLost", "growing_pauses"),
    # words
    "slotwise.model.vocabulary": (
        "REASONS",
        "TASK_STATES",
        "Kind",
        "ListedState",
        "Origin",
        "Outcome",
        "Reason",
        "RowState",
        "SlotState",
        "WorkerState",
        "register_reason",
    ),
    # schedules made of others
    "slotwise.schedules.combinators": ("Arranged", "Between", "Spread"),
    # files of settings
    "slotwise.settings.documents": ("read_document",),
    # spans of time, durations and time zones
    "slotwise.model.clock": ("Clock", "DatabaseClock", "elapsed"),
    "slotwise.model.durations": (
        "LONGEST_DURATION",
        "format_duration",
        "parse_duration",
        "short_duration",
    ),
    "slotwise.model.records": (
        "KNOWN_YEARS",
        "Claim",
        "Key",
        "LedgerKey",
        "Row",
        "is_known",
        # what an attempt came to
        "AttemptOutcome",
        "Aborted",
        "Failed",
        "FollowUps",
        "HandedBack",
        "Snoozed",
        "Succeeded",
    ),
    "slotwise.errors": ("pasteable",),
    "slotwise.schedules.base": ("instant_text",),
    "slotwise.schedules.cron_fields": ("quoted",),
    "slotwise.schedules.zones": ("zone_named",),
    # a worker inside a host
    "slotwise.registry.host": ("START_WAIT", "Host", "RegistrySource"),
    "slotwise.engine.worker": ("Worker",),
    "slotwise.engine.run.runner": ("Runner",),
    "slotwise.engine.run.active_claims": ("Holding",),
    # a worker that a test drives
    "slotwise.store.planning.planner": ("Plan",),
    "slotwise.engine.loops.service": ("Service",),
    "slotwise.model.identity": ("Identity",),
    # one slot as the purpose of a process
    "slotwise.store.reading.facts": ("Facts", "plan_row", "slot_state"),
    "slotwise.engine.process.signals": ("StopRequests",),
    "slotwise.engine.process.single_run": ("Ended", "SingleRun"),
    "slotwise.registry.validation": (
        "check_callables",
        "check_lifespan",
        "definitions_of",
    ),
    # commands of a plug-in
    "slotwise.registry.plugin": ("CommandLine", "PluginCommand", "Section"),
    # errors as text
    "slotwise.model.error_text": (
        "error_summary",
        "escaped",
        "hide_password",
        "redact",
        "storable",
    ),
    "slotwise.store.connect.database_errors": (
        "describe_address",
        "describe_error",
        "is_locked",
        "is_transient",
    ),
    # the port to a database
    "slotwise.store.dialects.port": ("ClaimRequest", "Dialect"),
    "slotwise.store.dialects.one_writer": ("OneWriter",),
    "slotwise.store.dialects.locking": ("Locking",),
    "slotwise.store.dialects.registered": ("register_dialect",),
    # addresses of databases
    "slotwise.store.connect.dsn": ("connect_arguments", "database_url"),
    "slotwise.store.connect.database": ("Database",),
    # the tables, for statements of your own
    "slotwise.store.schema.tables": ("Tables", "tables"),
    # codecs, and types of payloads
    "slotwise.payload.codecs": ("JSON", "register_codec"),
    "slotwise.payload.converters": ("invalid_type", "model_shape"),
    "slotwise.payload.shape": ("Shape",),
}
__all__ = [
    "JSON",
    "KNOWN_YEARS",
    "LONGEST_DURATION",
    "NAME_LIMIT",
    "REASONS",
    "START_WAIT",
    "TASK_STATES",
    "Aborted",
    "Arranged",
    "AttemptOutcome",
    "BatchClaimed",
    "BatchSettled",
    "BatchSkipped",
    "Between",
    "Claim",
    "ClaimLostEvent",
    "ClaimRequest",
    "Clock",
    "CommandLine",
    "Database",
    "DatabaseClock",
    "DatabaseLost",
    "Definition",
    "Dialect",
    "Ended",
    "Event",
    "Facts",
    "Failed",
    "Finished",
    "FollowUps",
    "FunctionJob",
    "FunctionTask",
    "HandedBack",
    "HandedBackEvent",
    "HandlerStarted",
    "HeartbeatSent",
    "Holding",
    "Host",
    "Identity",
    "Inserted",
    "JobPolicies",
    "Joinable",
    "Key",
    "Kind",
    "LedgerKey",
    "ListedState",
    "Locking",
    "OnLost",
    "OneWriter",
    "Origin",
    "Outcome",
    "Plan",
    "PluginCommand",
    "Pruned",
    "Reaped",
    "Reason",
    "RegistrySource",
    "Row",
    "RowState",
    "Runner",
    "Section",
    "Service",
    "Settled",
    "Shape",
    "SingleRun",
    "SlotState",
    "SlotsSkipped",
    "SlotsSuperseded",
    "Snoozed",
    "Spread",
    "Steering",
    "StopRequests",
    "Succeeded",
    "Tables",
    "TaskOptions",
    "Worker",
    "WorkerState",
    "check_callables",
    "check_lifespan",
    "connect_arguments",
    "database_url",
    "define",
    "definitions_of",
    "describe_address",
    "describe_error",
    "elapsed",
    "error_summary",
    "escaped",
    "format_duration",
    "growing_pauses",
    "hide_password",
    "instant_text",
    "invalid_type",
    "is_known",
    "is_locked",
    "is_transient",
    "log_record",
    "model_shape",
    "parse_duration",
    "pasteable",
    "plan_row",
    "quoted",
    "read_document",
    "redact",
    "register_codec",
    "register_dialect",
    "register_reason",
    "short_duration",
    "shortest_interval",
    "slot_state",
    "storable",
    "store_trace",
    "tables",
    "zone_named",
]


if not TYPE_CHECKING:
    __getattr__, __dir__ = late(__name__, _HOMES)
