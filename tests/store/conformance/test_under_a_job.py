"""One-time rows under the name of a job: nobody would ever claim them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.kit.store import Store
from tests.store.bench import Bench, a_task, at

from slotwise import Client, InvalidJob, task
from slotwise.spi import Database
from slotwise.store.reading.routing import UNDER_A_JOB
from slotwise.testing import ManualWorker


def test_who_knows_the_job_makes_none(bench: Bench) -> None:
    """Neither at once, nor with the success of a handler."""
    for call in (
        bench.client.schedule,
        bench.client._follow,
        lambda name: bench.client._key(name, "1"),
    ):
        with pytest.raises(
            InvalidJob, match="'plain' is a job, its schedule says when it runs"
        ):
            call("plain")  # type: ignore[operator]


def test_whoever_lists_it_is_told(bench: Bench) -> None:
    """Somebody who knew nothing of the job has scheduled it; health names it once it is
    overdue.
    """
    stranger = Client(lambda: Store(bench.database, {}, clock=bench.clock))
    look = bench.inspect
    stranger.schedule("plain", id="1")
    stranger.schedule("mail", id="1")
    assert {line.task: (line.state, line.reason) for line in look.tasks()} == {
        "plain": ("unroutable", UNDER_A_JOB),
        "mail": ("no_live_worker", "no worker is alive"),
    }
    assert {
        line.task: (line.reason, line.is_unroutable) for line in look.task_counts()
    } == {
        "plain": (UNDER_A_JOB, True),
        "mail": ("no worker is alive", False),
    }
    bench.clock.set(at(5))
    assert look.health(timedelta(minutes=1)).unroutable == {"plain": UNDER_A_JOB}
    assert look.health(timedelta(minutes=9)).unroutable == {}


def test_a_name_one_letter_off(bench: Bench) -> None:
    """Is refused by each command as it is by schedule, under that command's name; a blank id is
    looked for, as another program may have written such a row.
    """
    client = Bench(bench.database, [a_task("send-mail")], bench.clock).client
    calls: dict[str, Any] = {
        "get": client.get,
        "cancel": client.cancel,
        "reschedule": client.reschedule,
        "history": client.history,
        "retry": lambda name, id: client.retry(name, [id]),
        "list": lambda name, _: client.list(name),
        "cancel_all": lambda name, _: client.cancel_all(name),
        "arrive": client._key,
    }
    for name, call in calls.items():
        with pytest.raises(
            Exception,
            match=rf"^{name}\('sendmail'\): no task .* did you mean 'send-mail'\?",
        ):
            call("sendmail", "1")
    with pytest.raises(
        Exception, match=r"^arrive\('send-mail', id=''\): an id cannot be blank"
    ):
        client._key("send-mail", "")
    assert client.get("send-mail", "") is None
    assert client.list("another") == []


def test_an_arrival_that_nothing_waits_for(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Counts for nothing: the log says so, and the task has succeeded."""
    first = task(name="first")(lambda ctx: ctx.count_down("join", "nobody"))
    with ManualWorker([first, task(name="join")(print)], database) as worker:
        worker.client.schedule("first")
        assert [ended.outcome for ended in worker.run_due()] == ["succeeded"]
    assert (
        "no task 'join' with the id 'nobody' is blocked; this arrival counts for nothing"
        in caplog.text
    )


def test_nobody_is_there_to_be_told(database: Database) -> None:
    """``if_exists="raise"`` is refused in a handler: the row is written after its end."""
    first = task(name="first")(lambda ctx: ctx.then("first", if_exists="raise"))
    with ManualWorker([first], database) as worker:
        worker.client.schedule("first")
        (ended,) = worker.run_due()
        assert (
            'ctx.then(if_exists="raise"): it is written after the handler returned'
            in (ended.error or "")
        )
