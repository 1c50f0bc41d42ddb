"""Events as log lines: for people, for programs, and for whoever brings a logging of their own."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_origin, get_type_hints

import pytest
from tests.kit.events import events

from slotwise.contrib.logging import (
    HumanFormatter,
    JsonFormatter,
    LogListener,
    configure,
    escaped,
    escaped_lines,
    keep_one_console,
)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SETTLED = events.Settled(
    worker="host:1:f00",
    job="nightly",
    id="recurring",
    slot=NOON,
    attempt=2,
    token=17,
    outcome="failed",
    error="ValueError: no\n\x1b[31mway",
)
DOCUMENTED = {
    "poll_begin",
    "claimed",
    "handler_start",
    "handler_end",
    "settle_sent",
    "settled",
    "claim_lost",
    "heartbeat",
    "reaped",
    "planned",
    "drain_begin",
    "drain_end",
}


@pytest.fixture(autouse=True)
def _own_root() -> Iterator[None]:
    """The root logger as it was."""
    loggers = [logging.getLogger(), logging.getLogger("slotwise")]
    before = [(list(one.handlers), one.level, one.propagate) for one in loggers]
    yield
    for one, (handlers, level, propagate) in zip(loggers, before, strict=True):
        one.handlers[:] = handlers
        one.setLevel(level)
        one.propagate = propagate
    logging.captureWarnings(False)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def all_events(base: type[events.Event] = events.Event) -> list[type[events.Event]]:
    """Every kind of event that has a name."""
    found = [base] if isinstance(vars(base).get("name"), str) else []
    return found + [
        kind for child in base.__subclasses__() for kind in all_events(child)
    ]


def example(kind: type[events.Event]) -> events.Event:
    """An event of this kind with every field set."""
    samples: dict[Any, Any] = {
        str: "text",
        int: 3,
        float: 0.5,
        datetime: NOON,
        timedelta: timedelta(seconds=1.5),
        BaseException: None,
    }
    hints = get_type_hints(
        kind,
        vars(events)
        | {"datetime": datetime, "timedelta": timedelta, "Sequence": Sequence}
        | {"Claim": object, "Key": object, "Gap": object},
    )
    values = {}
    for spec in fields(kind):
        parts = getattr(hints[spec.name], "__args__", (hints[spec.name],))
        values[spec.name] = (
            () if get_origin(hints[spec.name]) is Sequence else samples[parts[0]]
        )
    return kind(**values)


@pytest.mark.parametrize("kind", all_events(), ids=lambda kind: kind.__name__)
def test_every_event(kind: type[events.Event], stream: io.StringIO) -> None:
    """Each event is one line in either format, flushed at once, with its name and all its
    fields.
    """
    event = example(kind)
    for format in ("human", "json"):
        handler = configure(format, "DEBUG", stream)
        LogListener()(event)
        logging.getLogger().removeHandler(handler)
    human, machine = stream.getvalue().splitlines()
    assert f" {event.name} " in f"{human} "
    line = json.loads(machine)
    assert line["event"] == event.name
    assert line["level"] == logging.getLevelName(event.level)
    assert set(event.facts()) <= set(line)


def test_documented_events() -> None:
    """The names in the documentation are those of events."""
    assert {kind.name for kind in all_events()} >= DOCUMENTED


def test_json_line(stream: io.StringIO) -> None:
    """The fields under their names: instants in UTC, the rest as it is; control characters cannot
    break the line.
    """
    configure("json", "INFO", stream)
    LogListener()(SETTLED)
    assert stream.getvalue().count("\n") == 1
    line = json.loads(stream.getvalue())
    datetime.fromisoformat(line.pop("time"))
    assert line.pop("message").startswith("settled job=nightly")
    assert line == {
        "level": "INFO",
        "event": "settled",
        "logger": "slotwise",
        "job": "nightly",
        "id": "recurring",
        "slot": "2026-01-31T12:00:00Z",
        "attempt": 2,
        "outcome": "failed",
        "error": SETTLED.error,
        "token": 17,
        "worker": "host:1:f00",
    }


def test_human_line(stream: io.StringIO) -> None:
    """One line, nothing in it that a terminal would obey, and no word about what goes without
    saying.
    """
    configure("human", "INFO", stream)
    LogListener()(SETTLED)
    time, level, text = stream.getvalue().rstrip("\n").split(maxsplit=2)
    datetime.fromisoformat(time)
    assert level == "INFO"
    assert text == (
        "settled job=nightly slot=2026-01-31T12:00:00Z attempt=2 outcome=failed "
        r'error="ValueError: no\n\u001b[31mway" token=17 worker=host:1:f00'
    )


def test_other_records(stream: io.StringIO) -> None:
    """Whatever else is logged comes out, too: with its logger, what it carries, its traceback and
    our worker.
    """
    handler = configure("json", "INFO", stream)
    assert isinstance(handler.formatter, JsonFormatter)
    handler.formatter.worker = "host:1:f00"
    try:
        raise ValueError("no\x1b[31m way")
    except ValueError:
        logging.getLogger("shop").exception(
            "could not %s", "sell", extra={"job": "nightly"}
        )
    line = json.loads(stream.getvalue())
    assert (line["event"], line["logger"], line["job"], line["worker"]) == (
        "log",
        "shop",
        "nightly",
        "host:1:f00",
    )
    assert line["message"] == "could not sell"
    assert line["traceback"].endswith("ValueError: no\x1b[31m way")


def test_traceback_for_people(stream: io.StringIO) -> None:
    """A traceback keeps its lines and loses its control characters."""
    configure("human", "INFO", stream)
    try:
        raise ValueError("no\x1b[31m way")
    except ValueError:
        logging.getLogger("shop").exception("could not", extra={"job": "nightly"})
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("ERROR    shop: could not job=nightly")
    assert trace[0].startswith("  Traceback")
    assert trace[-1] == r"  ValueError: no\x1b[31m way"


def test_no_text_of_an_exception_is_a_line_of_the_log(stream: io.StringIO) -> None:
    """Whoever schedules a task may choose what its handler raises."""
    configure("human", "INFO", stream)
    forged = "2026-11-29T00:00:00.000Z INFO     settled job=nightly outcome=succeeded"
    try:
        raise ValueError(f"no such address: x\n{forged}\r{forged}\u2028{forged}")
    except ValueError:
        logging.getLogger("shop").exception("failed")
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("shop: failed")
    assert all(line.startswith("  ") for line in trace)
    assert f"  {forged}" in trace


CONSOLE = {"class": "logging.StreamHandler", "formatter": "plain"}
PLAIN = {"plain": {"format": "app: %(message)s"}}
#: What applications configure while they are imported, or Django before that.
APPLICATIONS: dict[str, dict[str, Any]] = {
    "root": {"root": {"handlers": ["console"], "level": "WARNING"}},
    "root, the other loggers disabled": {
        "disable_existing_loggers": True,
        "root": {"handlers": ["console"], "level": "WARNING"},
    },
    "slotwise": {"loggers": {"slotwise": {"handlers": ["console"], "level": "INFO"}}},
    "both": {
        "root": {"handlers": ["console"]},
        "loggers": {"slotwise": {"handlers": ["console"]}},
    },
    "none": {"handlers": {}, "root": {"level": "ERROR"}},
}


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("format", ["human", "json"])
@pytest.mark.parametrize("configured", APPLICATIONS.values(), ids=APPLICATIONS)
def test_one_line_beside_the_logging_of_an_application(
    configured: dict[str, Any],
    format: str,
    is_before: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each record is one line: JSON if that was asked for, else in the application's form."""
    with capsys.disabled():
        logging.getLogger().handlers.clear()
    common = {"version": 1, "disable_existing_loggers": False, "formatters": PLAIN}
    whole = {**common, "handlers": {"console": CONSOLE}, **configured}
    if is_before:
        logging.config.dictConfig(whole)
    handler = configure(format, "INFO")
    if not is_before:
        logging.config.dictConfig(whole)
    keep_one_console(handler, "INFO")
    LogListener()(SETTLED)
    (line,) = capsys.readouterr().err.splitlines()
    if format == "json":
        assert json.loads(line)["event"] == "settled"
    else:
        assert line.startswith("app: settled") or configured["handlers"] == {}


def test_other_handlers_of_an_application_stay(stream: io.StringIO) -> None:
    """A file, or a service, gets its records as before."""
    beside = logging.StreamHandler(stream)
    logging.getLogger().addHandler(beside)
    keep_one_console(configure("json", "INFO"), "INFO")
    LogListener()(SETTLED)
    assert stream.getvalue().startswith("settled job=nightly")


def test_level(stream: io.StringIO) -> None:
    """Below the level nothing is written, nor even put together."""
    configure("human", "WARNING", stream)
    LogListener()(SETTLED)
    assert stream.getvalue() == ""


def test_warnings(stream: io.StringIO) -> None:
    """Python's warnings come out as lines, too."""
    configure("json", "INFO", stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", stacklevel=1)
    assert json.loads(stream.getvalue())["logger"] == "py.warnings"


def test_own_logging(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever brings a logging of their own gets a readable message, and the fields on the
    record.
    """
    with caplog.at_level(logging.INFO, "slotwise"):
        LogListener()(SETTLED)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "settled job=nightly slot=2026-01-31T12:00:00Z"
    )
    assert (vars(record)["event"], vars(record)["slot"], vars(record)["token"]) == (
        "settled",
        NOON,
        17,
    )


def test_no_line_is_forged_under_a_format_of_the_application(
    stream: io.StringIO,
) -> None:
    """No further line of a message or a traceback begins like a record."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("APP %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("slotwise.test.forged")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    forged = (
        "no password=hunter2\nAPP INFO slotwise settled job=nightly outcome=succeeded"
    )
    try:
        raise ValueError(forged)
    except ValueError as error:
        trouble = error
    ended = events.SettledFailed(
        worker="w",
        job="nightly",
        id="recurring",
        slot=NOON,
        attempt=1,
        token=1,
        outcome="failed",
        exception=trouble,
    )
    listener = LogListener(logger)
    listener(ended)
    listener(replace(SETTLED, error="no\noutcome=succeeded"))
    assert "hunter2" not in stream.getvalue()
    lines = stream.getvalue().splitlines()
    assert any("ValueError: no" in line for line in lines)
    begun = [line for line in lines if not line.startswith("  ")]
    assert [line.split()[3] for line in begun] == ["settled", "settled"]


def test_nothing_at_import() -> None:
    """Importing configures nothing."""
    code = (
        "import logging, slotwise.cli, slotwise.contrib.logging as l;"
        "assert not logging.getLogger().handlers; assert not logging.getLogger('slotwise').handlers"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\nb", r"a\nb"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\u2028\x7f\x9b", r"\u2028\x7f\x9b"),
        ("Grüße 🎉", "Grüße 🎉"),
        ("\udc80", r"\udc80"),
        ("\u202egnp", r"\u202egnp"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_escaped(text: str, shown: str) -> None:
    """What could move a cursor, begin a line or turn text around is spelled out; letters stay."""
    assert escaped(text) == shown
    assert escaped_lines(f"{text}\n\tx").splitlines()[-1] == "        x"


def test_human_formatter_alone() -> None:
    """The formatters work in anybody's handler."""
    record = logging.makeLogRecord(
        {"name": "a", "msg": "%d %s", "args": (1, "b"), "levelname": "INFO"}
    )
    assert HumanFormatter().format(record).endswith("INFO     a: 1 b")


def test_a_traceback_in_both_formats(stream: io.StringIO) -> None:
    """Below the line for people, with real newlines and nothing that a terminal would obey; one
    field for programs.
    """
    try:
        raise ValueError("no\x1b[31m such file")
    except ValueError as error:
        event = events.SettledFailed(
            worker="w",
            job="nightly",
            id="recurring",
            slot=NOON,
            attempt=1,
            token=1,
            outcome="failed",
            exception=error,
        )
    for format in ("human", "json"):
        handler = configure(format, "INFO", stream)
        LogListener()(event)
        logging.getLogger().removeHandler(handler)
    line, head, place, source, *_, last, machine = stream.getvalue().splitlines()
    assert " ERROR " in line
    assert (head, last) == (
        "  Traceback (most recent call last):",
        "  ValueError: no\\x1b[31m such file",
    )
    assert place.startswith('    File "')
    assert "raise ValueError" in source
    told = json.loads(machine)
    assert (told["level"], told["event"]) == ("ERROR", "settled")
    assert told["traceback"].splitlines()[-1] == "ValueError: no\x1b[31m such file"
    assert "exception" not in told


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("formatter", [HumanFormatter(), JsonFormatter()])
@pytest.mark.parametrize("arguments", [("x",), (Unspeakable(), 1), (1, 2, 3)])
def test_a_message_whose_arguments_do_not_fit(
    formatter: logging.Formatter, arguments: tuple[object, ...]
) -> None:
    """One line as any other, not a report of the logging module."""
    record = logging.makeLogRecord({"msg": "%s %d", "args": arguments, "name": "shop"})
    line = formatter.format(record)
    assert "'%s %d' with arguments that cannot be formatted" in line
    assert "\n" not in line


def test_a_traceback_of_megabytes_is_cut() -> None:
    """As in the ledger; lone surrogates do no harm."""
    try:
        raise ValueError("\ud800" + "x" * 10_000_000)
    except ValueError:
        record = logging.makeLogRecord({"msg": "m", "exc_info": sys.exc_info()})
    for formatter in (HumanFormatter(), JsonFormatter()):
        assert len(formatter.format(record).encode()) < 20_000


def _looped() -> list[object]:
    looped: list[object] = []
    looped.append(looped)
    return looped


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        ([float("inf")], "[inf]"),
        (_looped(), "[[...]]"),
        (Shy(), "a Shy that cannot be shown"),
        (10**5000, "a int that cannot be shown"),
    ],
    ids=["nan", "inf", "loop", "repr", "big"],
)
def test_a_field_that_json_cannot_express(value: object, shown: str) -> None:
    """The record is a line all the same, and the line is JSON; its other fields stay."""
    record = logging.makeLogRecord({"msg": "m", "name": "shop", "x": value, "y": 1})

    def refuse(constant: str) -> object:
        raise AssertionError(constant)

    line = json.loads(JsonFormatter().format(record), parse_constant=refuse)
    assert (line["x"], line["y"], line["message"]) == (shown, 1, "m")
    assert HumanFormatter().format(record).endswith(" y=1")
