"""Events as log records of std logging, and two formats for them: one for people, one JSON object
per line.

Importing this module configures nothing. ``slotwise worker`` calls ``configure``. An application
that embeds a registry adds ``LogListener()`` to its listeners and keeps its own logging.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TextIO

from slotwise.inspect import json_value
from slotwise.spi import escaped as escaped
from slotwise.spi import storable

if (
    TYPE_CHECKING
):  # every command imports this module for its escapes, few for the events
    from slotwise.spi import Event

#: The attributes of every record; all others come from ``extra`` and are shown.
_STANDARD: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}

#: Characters of a value that JSON cannot express.
_LONGEST: Final = 500
#: These come first, in this order, in both formats.
_FIRST: Final = (
    "event",
    "job",
    "id",
    "slot",
    "attempt",
    "outcome",
    "reason",
    "error",
    "took",
)
_LAST: Final = ("token", "worker")


class LogListener:
    """A listener that turns each event into a record of the logger ``slotwise``.

    The message is readable by itself. For formatters, the record also has the event's fields as
    attributes: ``event``, ``job``, ``slot``, ``attempt``, ``token``, ``worker`` and so on.
    """

    #: The core then does not log these events itself.
    writes_log = True

    def __init__(
        self, logger: logging.Logger | None = None, *, shard: str | None = None
    ) -> None:
        """``shard``: the lines name it, where a process has workers of several."""
        from slotwise.spi import log_record  # late, as above

        self._record = log_record
        self._logger = logger or logging.getLogger("slotwise")
        self._shard = {} if shard is None else {"shard": shard}

    def of_shard(self, name: str) -> LogListener:
        """Return the listener for the worker of this shard."""
        return LogListener(self._logger, shard=name)

    def wants(self, kind: type[Event]) -> bool:
        """Whether the logger's level lets events of this kind through."""
        return self._logger.isEnabledFor(kind.level)

    def __call__(self, event: Event) -> None:
        if self._logger.isEnabledFor(event.level):
            facts = {**event.facts(), **self._shard}
            text = escaped(" ".join([event.name, *_pairs(facts)]))
            self._logger.handle(self._record(self._logger, event, text))


class HumanFormatter(logging.Formatter):
    """``2026-01-31T02:00:00.123Z INFO     settled job=… slot=… outcome=succeeded …``; times in
    UTC.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname:<8} {escaped(self._text(record))}"
        trace = _trace(self, record)
        return f"{line}\n{indented_lines(trace)}" if trace else line

    def _text(self, record: logging.LogRecord) -> str:
        """The message of an event; of other records, the logger, the message and the fields."""
        if hasattr(record, "event"):
            return _message(record)
        head = f"{record.name}: {_message(record)}"
        extra = _extra(record)
        try:
            return " ".join([head, *_pairs(extra)])
        except Exception:  # of a value, such as a list that contains itself
            return " ".join([head, *_pairs(_expressible(extra))])


class JsonFormatter(logging.Formatter):
    """One object per line: ``time``, ``level``, ``event`` (``log`` for other records), ``message``
    and the fields.

    Instants are ISO 8601 in UTC, durations are seconds. Every line has ``worker`` once its name is
    known.
    """

    def __init__(self, worker: str | None = None) -> None:
        super().__init__()
        self.worker = worker

    def format(self, record: logging.LogRecord) -> str:
        extra = _extra(record)
        try:
            return self._line(record, extra)
        except Exception:  # of a value, such as NaN, or a list that contains itself
            return self._line(record, _expressible(extra))

    def _line(self, record: logging.LogRecord, facts: dict[str, object]) -> str:
        extra = dict(facts)
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname,
            "event": extra.pop("event", "log"),
            "logger": record.name,
            **{name: json_value(extra[name]) for name in _ordered(extra)},
            "message": _message(record),
        }
        if self.worker is not None:
            line.setdefault("worker", self.worker)
        if trace := _trace(self, record):
            line["traceback"] = trace
        return json.dumps(line, default=repr, allow_nan=False)


class _Lines(logging.StreamHandler[TextIO]):
    """Writes lines to a stream. One that is full or closed loses them, and raises nothing."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        with suppress(OSError, ValueError):
            super().handleError(record)


def configure(
    format: str = "human", level: str = "INFO", stream: TextIO | None = None
) -> logging.Handler:
    """Send all log records of this process to ``stream`` (stderr), each flushed at once; for
    commands only.
    """
    handler = _Lines(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else HumanFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)
    return handler


def keep_one_console(handler: logging.Handler, level: str) -> None:
    """Write each record once, whatever logging the imported application has configured.

    JSON lines replace the application's handlers of stdout and stderr; lines for people give way
    to them. Its other handlers, such as files, stay.
    """
    root = logging.getLogger()
    ours = logging.getLogger("slotwise")
    root.removeHandler(handler)
    if isinstance(handler.formatter, JsonFormatter):
        for logger in (root, ours):
            for other in _consoles(logger):
                logger.removeHandler(other)
    if not _consoles(root):
        root.addHandler(handler)
    ours.propagate = not _consoles(ours)
    if ours.level == logging.NOTSET and not ours.isEnabledFor(getattr(logging, level)):
        ours.setLevel(level)
    for name, found in logging.root.manager.loggerDict.items():
        # by default, dictConfig disables all loggers that it does not name
        if isinstance(found, logging.Logger) and name.partition(".")[0] == "slotwise":
            found.disabled = False


def _consoles(logger: logging.Logger) -> list[logging.Handler]:
    """Return the handlers of a logger that write to stdout or stderr."""
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return [one for one in logger.handlers if getattr(one, "stream", None) in streams]


def escaped_lines(text: str) -> str:
    """Escape each line of a string."""
    return "\n".join(escaped(line.expandtabs()) for line in text.splitlines())


def indented_lines(text: str) -> str:
    """Escape and indent each line of a string, so that none looks like a line of the log."""
    return "\n".join(f"  {line}".rstrip() for line in escaped_lines(text).split("\n"))


def _ordered(facts: dict[str, object]) -> list[str]:
    middle = [name for name in facts if name not in _FIRST and name not in _LAST]
    names = [*_FIRST, *middle, *_LAST]
    return [name for name in names if facts.get(name) is not None]


def _pairs(facts: dict[str, object]) -> list[str]:
    """``name=value`` of each field, without the instance of a job's own row."""
    shown = {
        name: value
        for name, value in facts.items()
        if (name, value) != ("id", "recurring")
    }
    return [
        f"{name}={_spelled(shown[name])}"
        for name in _ordered(shown)
        if name != "event"
    ]


def _spelled(value: object) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}s"
    text = f"{value:.6f}" if isinstance(value, float) else str(json_value(value))
    return (
        json.dumps(text, ensure_ascii=False)
        if " " in text or not text or '"' in text
        else text
    )


def _message(record: logging.LogRecord) -> str:
    """Return the message; if its arguments do not fit, both as they are: a record is a line."""
    try:
        return record.getMessage()
    except Exception:  # also of an argument's own __str__
        return f"{record.msg!r} with arguments that cannot be formatted"


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _STANDARD and value is not None
    }


def _expressible(facts: dict[str, object]) -> dict[str, object]:
    """Return the fields; of one that JSON cannot express its repr, or else its type."""
    return {name: _value(value) for name, value in facts.items()}


def _value(value: object) -> object:
    with suppress(Exception):
        json.dumps(json_value(value), default=repr, allow_nan=False)
        return value
    with suppress(Exception):
        return repr(value)[:_LONGEST]
    return f"a {type(value).__name__} that cannot be shown"


def _time(record: logging.LogRecord) -> str:
    second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{second}.{int(record.msecs):03}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    trace = record.exc_text
    if record.exc_info:
        trace = formatter.formatException(record.exc_info)
    stack = formatter.formatStack(record.stack_info) if record.stack_info else ""
    # an exception's message may have many megabytes
    return storable("\n".join(part for part in (trace, stack) if part))
