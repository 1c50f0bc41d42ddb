"""Events as log records of std logging, and two formats for them: one for people, one JSON object per line.

Nothing here is configured by importing it. ``slotwise worker`` calls ``configure``; whoever embeds a registry
adds ``LogListener()`` to its listeners and keeps the logging that the application has.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TextIO

from slotwise.model.events import Event

#: What every record has by itself; everything else was given as ``extra`` and is shown.
_STANDARD: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}

#: These come first, in this order, in both formats.
_FIRST: Final = ("event", "job", "instance", "slot", "attempt", "outcome", "reason", "error", "took")
_LAST: Final = ("token", "worker")


class LogListener:
    """A listener that turns each event into a record of the logger ``slotwise``.

    The record's message is readable by itself; the event's fields stand on the record, too, as ``event``,
    ``job``, ``slot``, ``attempt``, ``token``, ``worker`` and so on, for formatters that know them.
    """

    #: The core need not log the trouble itself.
    writes_log = True

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("slotwise")

    def wants(self, kind: type[Event]) -> bool:
        """Nothing below the logger's level need be made."""
        return self._logger.isEnabledFor(kind.level)

    def __call__(self, event: Event) -> None:
        if self._logger.isEnabledFor(event.level):
            facts = event.facts()
            text = " ".join([event.name, *_pairs(facts)])
            self._logger.log(event.level, "%s", text, extra={"event": event.name, **facts})


class HumanFormatter(logging.Formatter):
    """``2026-01-31T02:00:00.123Z INFO     settled job=… slot=… outcome=succeeded …``; times in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname:<8} {escaped(self._text(record))}"
        trace = _trace(self, record)
        return f"{line}\n{escaped_lines(trace)}" if trace else line

    def _text(self, record: logging.LogRecord) -> str:
        """The message; what an event's message does not say already is added to the others'."""
        if hasattr(record, "event"):
            return record.getMessage()
        return " ".join([f"{record.name}: {record.getMessage()}", *_pairs(_extra(record))])


class JsonFormatter(logging.Formatter):
    """One object per line: ``time``, ``level``, ``event`` (``log`` where it is none), ``message`` and the fields.

    Instants are ISO 8601 in UTC, durations are seconds. ``worker`` stands in every line once it is known.
    """

    def __init__(self, worker: str | None = None) -> None:
        super().__init__()
        self.worker = worker

    def format(self, record: logging.LogRecord) -> str:
        extra = _extra(record)
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "event": extra.pop("event", "log"),
            "logger": record.name,
            **{name: plain(extra[name]) for name in _ordered(extra)},
            "message": record.getMessage(),
        }
        if self.worker is not None:
            line.setdefault("worker", self.worker)
        if trace := _trace(self, record):
            line["traceback"] = trace
        return json.dumps(line, default=repr)


def configure(format: str = "human", level: str = "INFO", stream: TextIO | None = None) -> logging.Handler:
    """Send all log records of this process to ``stream`` (stderr), each flushed at once; for commands only."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else HumanFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)
    return handler


def iso(instant: datetime) -> str:
    """The instant in UTC, as ISO 8601 with a Z."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def plain(value: object) -> object:
    """The value as JSON says it: instants as ISO 8601 in UTC, durations as seconds."""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value


def escaped(text: str) -> str:
    """The text on one line: what could move a terminal's cursor or begin a forged line is spelled out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def escaped_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(escaped(line.expandtabs()) for line in text.splitlines())


def _ordered(facts: dict[str, Any]) -> list[str]:
    middle = [name for name in facts if name not in _FIRST and name not in _LAST]
    names = [*_FIRST, *middle, *_LAST]
    return [name for name in names if facts.get(name) is not None]


def _pairs(facts: dict[str, Any]) -> list[str]:
    """``name=value`` of each field; a job's own row is not worth saying that it is one."""
    shown = {name: value for name, value in facts.items() if (name, value) != ("instance", "recurring")}
    return [f"{name}={_spelled(shown[name])}" for name in _ordered(shown) if name != "event"]


def _spelled(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}s"
    text = f"{value:.6f}" if isinstance(value, float) else str(plain(value))
    return json.dumps(text, ensure_ascii=False) if " " in text or not text or '"' in text else text


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None}


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info and not record.exc_text:
        record.exc_text = formatter.formatException(record.exc_info)
    stack = formatter.formatStack(record.stack_info) if record.stack_info else ""
    return "\n".join(part for part in (record.exc_text, stack) if part)
