"""after_settle hooks: their rows are there if and only if the settlement is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from tests.kit.records import Failed, HandedBack, Succeeded
from tests.kit.store import SettlementHooks
from tests.store.bench import Bench
from tests.store.hearing import hearing

from slotwise import ConfigurationError, JobRegistry, task
from slotwise.spi import Settled
from slotwise.testing import ManualWorker


@pytest.fixture
def noted(bench: Bench) -> Bench:
    with bench.store.transaction() as connection:
        connection.execute(sa.text("CREATE TABLE notes (text text)"))
    return bench


def note(rows: Sequence[Settled], tx: sa.Connection) -> None:
    for event in rows:
        said = f"{event.job} {event.outcome} {event.reason} {event.error}"
        tx.execute(sa.text("INSERT INTO notes VALUES (:said)"), {"said": said})


def fail(rows: Sequence[Settled], tx: sa.Connection) -> None:
    note(rows, tx)
    raise RuntimeError("no")


def break_it(rows: Sequence[Settled], tx: sa.Connection) -> None:
    tx.execute(sa.text("INSERT INTO nowhere VALUES (1)"))


def ending(verb: str) -> Callable[[Sequence[Settled], sa.Connection], None]:
    def end(rows: Sequence[Settled], tx: sa.Connection) -> None:
        note(rows, tx)
        getattr(tx, verb)()

    return end


def notes(bench: Bench) -> list[str]:
    with bench.store.transaction() as connection:
        return list(connection.scalars(sa.text("SELECT text FROM notes")))


def test_a_hook_writes_with_the_settlement(noted: Bench) -> None:
    """What ended, how and why; a claim that is handed back, or lost, is settled by nobody."""
    noted.store.settlements.hooks = SettlementHooks({"plain": note, "retried": note})
    noted.tick()
    plain, retried = noted.claim_one("plain"), noted.claim_one("retried")
    noted.settle(plain, HandedBack())
    assert notes(noted) == []
    noted.settle(
        retried,
        Failed("Traceback (most recent call last):\n  a line\nValueError: boom"),
    )
    assert noted.settle(retried) is None
    assert notes(noted) == ["retried failed retry ValueError: boom"]


def test_tasks_that_succeed_are_settled_too(noted: Bench) -> None:
    """The short way of those that only leave the queue is not for whom somebody wants to write
    about.
    """
    ran: list[int] = []
    mail = task(name="mail")(lambda ctx: ran.append(ctx.data))
    registry = JobRegistry(tasks=[mail], after_settle={"mail": note})
    with ManualWorker(registry, noted.database, noted.clock) as worker:
        worker.client.schedule("mail", 1)
        worker.run_due()
    assert ran == [1]
    assert notes(noted) == ["mail succeeded None None"]


def test_takeovers_are_settled_too(noted: Bench) -> None:
    """By whoever takes over."""
    noted.store.settlements.hooks = SettlementHooks({"plain": note})
    noted.tick()
    claim = noted.claim_one("plain")
    noted.tick()
    noted.take_over(claim)
    assert notes(noted) == ["plain lost rerun None"]


@pytest.mark.parametrize(
    "broken",
    [fail, break_it, ending("commit"), ending("rollback"), ending("close")],
    ids=[
        "its own mistake",
        "the database's answer",
        "a commit",
        "a rollback",
        "a close",
    ],
)
def test_a_hook_that_fails_harms_nobody(
    noted: Bench, broken: Callable[[Sequence[Settled], sa.Connection], None]
) -> None:
    """What it wrote is taken back; the slot settles, and the others record it."""
    noted.store.settlements.hooks = SettlementHooks({"plain": broken, "retried": note})
    noted.tick()
    plain, retried = noted.claim_one("plain"), noted.claim_one("retried")
    endings = [(plain, Succeeded()), (retried, Succeeded())]
    assert all(one.transition for one in noted.store.settlements.settle(endings))
    assert notes(noted) == ["retried succeeded None None"]
    assert noted.slot("plain")["outcome"] == "succeeded"


def test_a_hook_gets_what_it_has_asked_for(noted: Bench) -> None:
    """One call has a batch of all its tasks, and nothing of others."""
    calls: list[set[str]] = []

    def count(rows: Sequence[Settled], tx: sa.Connection) -> None:
        calls.append({event.job for event in rows})

    noted.store.settlements.hooks = SettlementHooks({"plain": count, "strict": count})
    noted.tick()
    claims = noted.claim("plain", "strict", "retried")
    noted.store.settlements.settle([(claim, Failed("boom")) for claim in claims])
    assert calls == [{"plain", "strict"}]


def test_tasks_without_a_hook_keep_the_fast_path(pg_bench: Bench) -> None:
    """One statement for slots on time that succeed, beside the settlement of those with a hook."""
    pg_bench.store.settlements.hooks = SettlementHooks(
        {"strict": lambda rows, tx: None}
    )
    pg_bench.tick()
    claim = pg_bench.claim_one("plain")
    with hearing(pg_bench.database) as sent:
        pg_bench.settle(claim)
    assert len(sent) == 1


@pytest.mark.parametrize("wrong", [[note], {"plian": note}, {"mail": 1}])
def test_a_hook_of_nothing_is_refused(wrong: Any) -> None:
    """A list without names; a name that is not registered; and what cannot be called."""
    mail = task(name="mail")(lambda ctx: None)
    with pytest.raises(ConfigurationError, match="after_settle"):
        JobRegistry(
            tasks=[mail], after_settle=wrong, database_url="sqlite://"
        ).make_worker()
