"""Commands on one-time tasks, whatever state the row is in: what they answer, and what they leave
behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.kit.records import (
    FOREVER,
    Failed,
    HandedBack,
    Snoozed,
    Succeeded,
    Wanted,
    When,
    to_micros,
)
from tests.store.bench import Bench, at

from slotwise import (
    BulkResult,
    ConfigurationError,
    Every,
    InstanceExists,
    Item,
    Receipt,
)
from slotwise.inspect import RECURRING
from slotwise.spi import Key, Row
from slotwise.store.queue.queue import queue_of

STATES = ("gone", "waiting", "retrying", "paused", "dead", "running")


def brought(bench: Bench, state: str) -> Row | None:
    """The row mail/1 in this state, scheduled at noon with the data 1; the clock stands a minute
    later.
    """
    if state != "gone":
        bench.client.schedule("mail", 1, id="1")
    if state in ("running", "retrying", "dead"):
        claim = bench.claim_one("mail")
        if state != "running":
            bench.settle(claim, Failed("boom", final=state == "dead"))
    if state == "paused":
        bench.change(
            "mail", "1", state="paused", parked_due=at(0), execution_time=FOREVER
        )
    bench.tick()
    return bench.find("mail", "1")


Command = Callable[[Bench], Receipt]


def schedule(**options: Any) -> Command:
    return lambda bench: bench.client.schedule(
        "mail", 2, id="1", delay="1h", priority=90, **options
    )


COMMANDS: dict[str, Command] = {
    "keep": schedule(if_exists="keep"),
    "replace": schedule(if_exists="replace"),
    "reschedule": schedule(if_exists="reschedule"),
    "move": lambda bench: bench.client.reschedule(
        "mail", "1", delay="1h", priority=90
    ),
    "cancel": lambda bench: bench.client.cancel("mail", "1"),
}

#: What each command answers for each state of the row.
ANSWERS = {
    "keep": ("scheduled", "exists", "exists", "exists", "exists", "running"),
    "replace": (
        "scheduled",
        "scheduled",
        "scheduled",
        "scheduled",
        "scheduled",
        "running",
    ),
    "reschedule": (
        "scheduled",
        "scheduled",
        "scheduled",
        "scheduled",
        "exists",
        "running",
    ),
    "move": ("gone", "scheduled", "scheduled", "scheduled", "exists", "running"),
    "cancel": ("gone", "cancelled", "cancelled", "cancelled", "cancelled", "running"),
}


@pytest.mark.parametrize(
    ("command", "state", "status"),
    [
        (name, state, status)
        for name, row in ANSWERS.items()
        for state, status in zip(STATES, row, strict=True)
    ],
)
def test_what_a_command_answers(
    bench: Bench, command: str, state: str, status: str
) -> None:
    """As a value, whatever the row's state; and an answer that says "nothing was changed" is
    true.
    """
    before = brought(bench, state)
    assert COMMANDS[command](bench) == Receipt(task="mail", id="1", status=status)  # type: ignore[arg-type]
    after = bench.find("mail", "1")
    if status in ("exists", "gone"):
        assert after == before
    if status == "cancelled":
        assert after is None
    if status == "scheduled":
        assert after is not None
        due = bench.due_of("mail", "1")
        assert due == at(61)
        assert after.priority == 90


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("waiting", "is already scheduled; choose another id, or if_exists='keep'"),
        ("retrying", "is already scheduled; choose another id, or if_exists='keep'"),
        ("paused", "is already scheduled; choose another id, or if_exists='keep'"),
        (
            "dead",
            "is dead; retry it, or put this one in its place with if_exists='replace'",
        ),
        ("running", "is running; choose another id, or if_exists='keep'"),
    ],
)
def test_an_id_that_is_taken_is_told_with_what_has_it(
    bench: Bench, state: str, words: str
) -> None:
    """What helps depends on it."""
    before = brought(bench, state)
    with pytest.raises(InstanceExists) as refused:
        bench.client.schedule("mail", 2, id="1", if_exists="raise")
    assert str(refused.value) == f"task 'mail' with id '1' {words}"
    assert bench.find("mail", "1") == before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda client: client.retry("mail", [7]),
            "retry('mail', id=7): an id is a string; write id='7'",
        ),
        (
            lambda client: client.list(limit=-1),
            "list(limit=-1): expected a whole number, 1 or more",
        ),
        (
            lambda client: client.list(limit="3"),
            "list(limit='3'): expected a whole number, 1 or more",
        ),
        (
            lambda client: client.list(after="a"),
            "list(after='a'): ids are a task's; name the task, or pass a TaskInfo",
        ),
        (
            lambda client: client.schedule("mail", countdown=2**31),
            "countdown=2147483648): a whole number, 0 to 2,147,483,647",
        ),
    ],
    ids=["a number as id", "below 1", "no number", "no task", "too many"],
)
def test_a_call_that_cannot_be_right(
    bench: Bench, call: Callable[[Any], object], words: str
) -> None:
    """In one line, with the value and the cure."""
    with pytest.raises(ConfigurationError) as refused:
        call(bench.client)
    assert words in str(refused.value)


@pytest.mark.parametrize("state", ["waiting", "retrying", "paused", "dead"])
def test_a_row_that_is_replaced_begins_anew(bench: Bench, state: str) -> None:
    """Another task under the same id: its data, its attempts, its idempotency key; and its token
    has risen.
    """
    before = brought(bench, state)
    bench.client.schedule("mail", 2, id="1", if_exists="replace")
    row = bench.row("mail", "1")
    assert before is not None
    assert (row.task_data, row.attempt, row.lost_count, row.consecutive_failures) == (
        b"2",
        0,
        0,
        0,
    )
    assert row.created_version == row.version == to_micros(at(1))
    assert row.version > before.version
    assert row.state == ("paused" if state == "paused" else None)


def test_a_token_rises_even_where_the_clock_stands(bench: Bench) -> None:
    """Two replacements in one microsecond are two tasks."""
    bench.client.schedule("mail", id="1")
    first = bench.row("mail", "1").version
    bench.client.schedule("mail", id="1", if_exists="replace")
    bench.client.schedule("mail", id="1", if_exists="replace")
    assert (
        bench.row("mail", "1").version
        == bench.row("mail", "1").created_version
        == first + 2
    )


@pytest.mark.parametrize("if_exists", ["keep", "replace", "reschedule"])
def test_a_held_row_keeps_what_it_was_claimed_with(
    bench: Bench, if_exists: str
) -> None:
    """Version, slot, due time and data of a held row are its holder's: its settlement is as if
    nobody had asked.
    """
    bench.client.schedule("mail", 1, id="1")
    claim = bench.claim_one("mail")
    before = bench.row("mail", "1")
    bench.client.schedule("mail", 2, id="1", delay="1h", if_exists=if_exists)  # type: ignore[arg-type]
    after = bench.row("mail", "1")
    assert (after.version, after.slot, after.execution_time, after.task_data) == (
        before.version,
        before.slot,
        before.execution_time,
        before.task_data,
    )
    assert bench.settle(claim) is not None
    assert bench.find("mail", "1") is None


@pytest.mark.parametrize(
    "outcome",
    [Failed("boom"), Snoozed(timedelta(minutes=5)), HandedBack()],
    ids=lambda outcome: outcome.name,
)
def test_a_held_row_is_rescheduled_when_it_is_let_go(
    bench: Bench, outcome: Any
) -> None:
    """Its next attempt is at the time that was wished for, once; the wish goes with the
    settlement.
    """
    bench.client.schedule("mail", id="1")
    claim = bench.claim_one("mail")
    assert bench.client.reschedule("mail", "1", at=at(30)).status == "running"
    bench.settle(claim, outcome)
    row = bench.row("mail", "1")
    assert (row.execution_time, row.wanted_due) == (at(30), None)
    bench.tick(30)
    bench.settle(bench.claim_one("mail"), Failed("boom"))
    assert bench.row("mail", "1").execution_time > at(30)


def test_a_wish_for_a_task_that_succeeds_is_void(bench: Bench) -> None:
    """There is no next attempt."""
    bench.client.schedule("mail", id="1")
    claim = bench.claim_one("mail")
    bench.client.reschedule("mail", "1", at=at(30))
    bench.settle(claim, Succeeded())
    assert bench.find("mail", "1") is None


def test_jobs_are_not_touched(bench: Bench) -> None:
    """A job's plan row and its triggers are no tasks, whatever command names them."""
    before, key = bench.row("plain"), Key("plain", RECURRING)
    other = Bench(
        bench.database, [], bench.clock
    ).client  # a process that does not know the job
    with pytest.raises(ConfigurationError, match="this id is reserved for job rows"):
        other.schedule("plain", id=RECURRING, if_exists="replace")
    queue, wanted = (
        queue_of(bench.store.dialect),
        Wanted(RECURRING, None, When(None), 90),
    )
    with bench.store.transaction() as connection:
        assert queue.put(connection, "plain", wanted, "replace") == "exists"
        assert queue.put(connection, "plain", wanted, "reschedule") == "exists"
        assert queue.tasks.move(connection, key, When(None), 90) == "exists"
        assert queue.tasks.cancel(connection, key) == "gone"
        assert queue.reader.find(connection, key) is None
    assert other.list("plain") == []
    assert bench.row("plain") == before


# -- many -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [False, True], ids=["unnest", "copy"])
def test_many(bench: Bench, copy: bool) -> None:
    """Each with its own data, id, time and priority where it has them, in the order of the
    chunks.
    """
    told: list[BulkResult] = []
    items = [
        7,
        None,
        Item("x\\y\n\t,é", id="a\\b,c"),
        Item({}, at=at(9), priority=90),
        Item(1, delay="1m"),
    ]
    tally = bench.client.schedule_many(
        "mail", items, delay="2m", chunk_size=2, copy=copy, progress=told.append
    )
    assert tally == BulkResult(scheduled=5)
    assert [one.total for one in told] == [2, 4, 5]
    rows = [bench.row("mail", line.id) for line in bench.client.list("mail")]
    assert sorted(
        (row.task_data or b"", row.execution_time, row.priority) for row in rows
    ) == sorted(
        [
            (b"7", at(2), 50),
            (b"", at(2), 50),
            ('"x\\\\y\\n\\t,é"'.encode(), at(2), 50),
            (b"{}", at(9), 90),
            (b"1", at(1), 50),
        ]
    )
    assert (
        {row.version for row in rows}
        == {row.created_version for row in rows}
        == {to_micros(at(0))}
    )
    assert all(row.slot == row.execution_time and not row.picked for row in rows)
    assert bench.row("mail", "a\\b,c").task_data == '"x\\\\y\\n\\t,é"'.encode()
    bench.tick(10)
    assert len(bench.claim("mail")) == 5


@pytest.mark.parametrize("if_exists", ["keep", "replace", "reschedule"])
def test_many_of_which_some_exist(bench: Bench, if_exists: str) -> None:
    """The tally says how many were left alone: those that run, always."""
    bench.client.schedule_many("mail", [Item(0, id=name) for name in ("dead", "held")])
    for claim in bench.claim("mail"):
        if claim.row.task_instance == "dead":
            bench.settle(claim, Failed("boom", final=True))
    bench.client.schedule("mail", 0, id="waits")
    items = [Item(1, id=name) for name in ("new", "waits", "held", "dead")]
    tally = bench.client.schedule_many("mail", items, if_exists=if_exists)  # type: ignore[arg-type]
    assert tally.scheduled == {"keep": 1, "replace": 3, "reschedule": 2}[if_exists]
    assert tally.total == 4


@pytest.mark.parametrize("copy", [False, True], ids=["unnest", "copy"])
def test_many_of_which_one_is_taken(bench: Bench, copy: bool) -> None:
    """An error; its chunk is not written, chunks before it stay."""
    bench.client.schedule("mail", id="3")
    told: list[BulkResult] = []
    with pytest.raises(
        InstanceExists,
        match=r"^items\[3\]: task 'mail' with id '3' is already scheduled; choose",
    ):
        bench.client.schedule_many(
            "mail",
            [Item(0, id=str(n)) for n in range(6)],
            if_exists="raise",
            chunk_size=2,
            copy=copy,
            progress=told.append,
        )
    assert [one.scheduled for one in told] == [2]
    assert [line.id for line in bench.client.list("mail")] == ["0", "1", "3"]


@pytest.mark.parametrize("chunk", [1, 2, 3, 10])
@pytest.mark.parametrize(
    ("if_exists", "tally", "data"),
    [
        ("keep", BulkResult(scheduled=3, exists=1), b"0"),
        ("replace", BulkResult(scheduled=4), b"2"),
        ("raise", None, b"0"),
    ],
    ids=["keep", "replace", "raise"],
)
def test_an_id_that_stands_twice(
    bench: Bench, if_exists: Any, tally: BulkResult | None, data: bytes, chunk: int
) -> None:
    """The second finds the first, wherever chunks end."""
    items = [Item(place, id=id) for place, id in enumerate("abac")]
    if tally is None:
        with pytest.raises(
            InstanceExists, match=r"^items\[2\]: task 'mail' with id 'a'"
        ):
            bench.client.schedule_many(
                "mail", items, chunk_size=chunk, if_exists="raise"
            )
    else:
        assert (
            bench.client.schedule_many(
                "mail", items, chunk_size=chunk, if_exists=if_exists
            )
            == tally
        )
    assert bench.row("mail", "a").task_data == data
    assert len(bench.client.list("mail")) == (2 if tally is None else 3)


@pytest.mark.parametrize("copy", [False, True], ids=["unnest", "copy"])
def test_many_from_a_stream_that_takes_its_time(bench: Bench, copy: bool) -> None:
    """Each chunk is written as soon as it is full, whether or not another item ever comes; if one
    fails, it stays.
    """
    told: list[BulkResult] = []

    def items() -> Iterator[Item[int]]:
        for number in range(4):
            yield Item(number, id=str(number))
        while len(bench.client.list("mail")) < 4:
            pass
        raise LookupError("no more")

    with pytest.raises(LookupError):
        bench.client.schedule_many(
            "mail", items(), chunk_size=2, copy=copy, progress=told.append
        )
    assert [one.scheduled for one in told] == [2, 4]
    assert len(bench.client.list("mail")) == 4


def test_many_from_a_stream(bench: Bench) -> None:
    """Items are taken as they come: what is told so far is written already."""
    written: list[int] = []

    def items() -> Any:
        for number in range(5):
            written.append(len(bench.client.list("mail")))
            yield number

    bench.client.schedule_many("mail", items(), chunk_size=2)
    assert written == [0, 0, 2, 2, 4]


# -- dead letters ---------------------------------------------------------------------------------


def killed(bench: Bench, *names: str) -> None:
    for name in names:
        bench.client.schedule("mail", id=name)
    for claim in bench.claim("mail"):
        bench.settle(claim, Failed("boom", final=True))


def told(receipts: list[Receipt]) -> dict[str, str]:
    return {receipt.id: receipt.status for receipt in receipts}


def test_one_retry_is_for_one_or_for_many_whatever_they_are(bench: Bench) -> None:
    """A dead one has all its attempts again; one that waits for its next attempt has it now; the
    others stay.
    """
    killed(bench, "dead")
    bench.client.schedule("mail", id="waits")
    bench.settle(bench.claim_one("mail"), Failed("boom"))
    bench.client.schedule("mail", id="runs")
    claim = bench.claim_one("mail")
    assert told(bench.client.retry("mail", "dead")) == {"dead": "scheduled"}
    statuses = {
        "dead": "scheduled",
        "waits": "scheduled",
        "runs": "running",
        "never": "gone",
    }
    assert told(bench.client.retry("mail", statuses)) == statuses
    rows = [bench.row("mail", id) for id in ("dead", "waits")]
    assert [(row.attempt, row.execution_time) for row in rows] == [
        (0, at(0)),
        (1, at(0)),
    ]
    bench.settle(claim)
    assert sorted(claim.row.task_instance for claim in bench.claim("mail")) == [
        "dead",
        "waits",
    ]


def test_dead_tasks_are_driven_again(bench: Bench) -> None:
    """Those named, or all: with all their attempts, due now, the same task as before by its key;
    once.
    """
    killed(bench, "1", "2", "3")
    before = bench.row("mail", "1")
    assert told(bench.client.retry("mail", ["1", "9"])) == {
        "1": "scheduled",
        "9": "gone",
    }
    assert told(bench.client.retry("mail", delay="5m")) == {
        "2": "scheduled",
        "3": "scheduled",
    }
    assert bench.client.retry("mail") == []
    row = bench.row("mail", "1")
    assert (row.state, row.execution_time, row.attempt) == (None, at(0), 0)
    assert row.created_version == before.created_version
    assert [claim.row.task_instance for claim in bench.claim("mail")] == ["1"]
    bench.tick(5)
    assert len(bench.claim("mail")) == 2


def test_whoever_is_driven_again_has_all_its_tries(bench: Bench) -> None:
    """As if it had never failed."""
    bench.client.schedule("mail", id="1")
    for _ in range(10):
        bench.tick(1_000)
        bench.settle(bench.claim_one("mail"), Failed("boom"))
    assert bench.row("mail", "1").state == "dead"
    bench.client.retry("mail")
    bench.settle(bench.claim_one("mail"), Failed("boom"))
    row = bench.row("mail", "1")
    assert (row.state, row.attempt, row.consecutive_failures) == (None, 1, 1)


def test_a_running_task_that_is_cancelled_goes(bench: Bench) -> None:
    """Its id is free, and no retry brings it back."""
    bench.client.schedule("mail", id="1")
    claim = bench.claim_one("mail")
    assert bench.client.cancel("mail", "1").status == "running"
    bench.settle(claim, Failed("boom"))
    assert bench.client.retry("mail") == []
    assert bench.client.schedule("mail", id="1").status == "scheduled"


def test_more_dead_tasks_than_one_statement_takes(bench: Bench) -> None:
    """All of them, 500 at a time."""
    bench.client.schedule_many("mail", range(501))
    with bench.store.transaction() as connection:
        connection.execute(
            bench.tables.tasks.update().values(state="dead", execution_time=FOREVER)
        )
    assert len(bench.client.retry("mail")) == 501
    assert bench.client.list("mail", state="dead") == []


# -- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (None, ["held", "often"]),
        ("waiting", ["asleep", "blocked", "dead", "held", "often"]),
        ("dead", ["asleep", "blocked", "due", "held", "often"]),
        ("blocked", ["asleep", "dead", "due", "held", "often"]),
        ("paused", ["blocked", "dead", "due", "held", "often"]),
    ],
)
def test_all_are_cancelled(bench: Bench, state: str | None, left: list[str]) -> None:
    """But for those that run, those of another task, and what recurs."""
    client = bench.client
    client.schedule("mail", id="held")
    assert len(bench.claim("mail")) == 1
    for id in ("due", "dead", "asleep"):
        client.schedule("mail", id=id)
    bench.change("mail", "dead", state="dead")
    bench.change("mail", "asleep", state="paused")
    client.schedule("mail", id="blocked", countdown=1)
    client.schedule_recurring("mail", "often", Every("1h"))
    client.schedule("plain-task", id="other")
    assert client.cancel_all("mail", state=state) == 6 - len(left)
    ids = [line.id for line in client.list("mail")] + (
        ["often"] if bench.find("mail", "often") else []
    )
    assert sorted(ids) == left
    assert client.get("plain-task", "other") is not None


def test_more_are_cancelled_than_one_statement_takes(bench: Bench) -> None:
    """500 at a time; all of them."""
    bench.client.schedule_many("mail", range(1_001))
    assert bench.client.cancel_all("mail") == 1_001
    with pytest.raises(
        ConfigurationError, match="expected waiting, paused, blocked or dead"
    ):
        bench.client.cancel_all("mail", state="running")


def test_a_task_as_it_is_read(bench: Bench) -> None:
    """Its state, its times, its counters and its data."""
    assert bench.client.get("mail", "1") is None
    bench.client.schedule("mail", {"n": 1}, id="1", delay="1m", priority=10)
    line = bench.client.get("mail", "1")
    assert line is not None
    assert (line.state, line.due, line.scheduled, line.priority, line.data) == (
        "waiting",
        at(1),
        at(0),
        10,
        {"n": 1},
    )
    bench.tick()
    claim = bench.claim_one("mail")
    line = bench.client.get("mail", "1")
    assert line is not None
    assert (line.state, line.worker, line.attempt) == ("running", "host:1:a", 1)
    bench.settle(claim, Failed("no such address", final=True))
    line = bench.client.get("mail", "1")
    assert line is not None
    assert (line.state, line.due, line.last_error) == ("dead", None, "no such address")


def test_pages(bench: Bench) -> None:
    """In the order of name and id, which never change: nothing is missed or seen twice, whatever
    ends meanwhile.
    """
    bench.client.schedule_many(
        "mail", [Item(0, id=f"{number:02}") for number in range(7)]
    )
    bench.client.schedule("once", id="x")
    page, seen = bench.client.list(limit=3), []
    while page:
        seen += [line.id for line in page]
        bench.client.cancel("mail", page[0].id)
        page = bench.client.list(limit=3, after=page[-1])
    assert seen == ["00", "01", "02", "03", "04", "05", "06", "x"]


def test_filters(bench: Bench) -> None:
    """By task, and by state."""
    killed(bench, "dead")
    bench.client.schedule("mail", id="held")
    bench.claim("mail")
    bench.client.schedule("mail", id="waits")
    bench.client.schedule("once", id="other")
    bench.client.schedule("mail", id="paused")
    bench.change("mail", "paused", state="paused")
    found = {
        state: [line.id for line in bench.client.list("mail", state=state)]
        for state in STATES[1:2] + STATES[3:]
    }
    assert found == {
        "waiting": ["waits"],
        "running": ["held"],
        "paused": ["paused"],
        "dead": ["dead"],
    }
    assert [line.id for line in bench.client.list(state="waiting")] == [
        "waits",
        "other",
    ]


@pytest.mark.parametrize("id", ["", " ", "a\nb", "x" * 251, "\u202e"])
def test_a_task_under_any_id_can_be_named(bench: Bench, id: str) -> None:
    """Another program may have written it: it is read, moved, retried and cancelled by its id."""
    tasks = bench.tables.tasks

    def write() -> None:
        row = {"task_name": "mail", "task_instance": id, "version": 1, "picked": False}
        with bench.store.transaction() as connection:
            connection.execute(tasks.insert().values(**row, execution_time=at(60)))

    write()
    found = bench.client.get("mail", id)
    assert found is not None
    assert found.id == id
    assert bench.client.history("mail", id) == []
    assert bench.client.reschedule("mail", id).status == "scheduled"
    assert bench.client.retry("mail", id)[0].status == "scheduled"
    assert bench.client.cancel("mail", id).status == "cancelled"
    write()
    assert bench.client.cancel_all("mail") == 1
