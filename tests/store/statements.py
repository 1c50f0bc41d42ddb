"""Every verb of the store, played once on the real clock, and the statements that it sent."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.kit.records import Failed, HandedBack, Succeeded
from tests.kit.store import (
    Badge,
    LedgerFence,
    Planner,
    Revision,
    Store,
    WorkerRegistry,
    claim_trigger,
)
from tests.store.bench import LEASE, Bench, a_job, a_task, claim_due
from tests.store.hearing import hearing

from slotwise import Client, Every
from slotwise.spi import Claim
from slotwise.store.slots.tuning import MANY

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
FAR_AWAY = datetime(8000, 1, 1, tzinfo=UTC)
WIDTH = 116


class Stage:
    """A store by the database's own clock; ``bench`` prepares, ``store`` is listened to."""

    def __init__(self, bench: Bench) -> None:
        """On a bench whose jobs are planned."""
        self.bench = bench
        self.store = Store(bench.database, bench.definitions)
        self.names = sorted(self.bench.definitions)

    def due(self, *names: str, late: bool = False) -> None:
        for name in names:
            following = LONG_AGO + timedelta(minutes=1) if late else FAR_AWAY
            self.bench.change(
                name, slot=LONG_AGO, execution_time=LONG_AGO, next_slot=following
            )

    def claim(self, *names: str) -> list[Claim]:
        return claim_due(
            self.store, "host:1:a", 100, lease=LEASE, names=names or self.names
        )[1]

    def held(self, *names: str) -> list[Claim]:
        self.due(*(name for name in names if self.bench.definitions[name].is_job))
        for name in names:
            if not self.bench.definitions[name].is_job:
                self.bench.client.schedule(name, id="1", at=LONG_AGO)
        return self.claim(*names)

    def listen(self, play: Callable[[], Any]) -> list[str]:
        """The statements that this sends, as they are sent."""
        with hearing(self.store.database) as heard:
            play()
        sent = [tidy(statement) for statement, _ in heard]
        return [statement for statement in sent if statement != "BEGIN IMMEDIATE"]


def tidy(statement: str) -> str:
    """Folded, so that it can be read, without a change to its words."""
    lines = []
    for line in statement.splitlines():
        text = re.sub(r"\s+$", "", line)
        indent = " " * (len(text) - len(text.lstrip()))
        lines += textwrap.wrap(
            text,
            WIDTH,
            subsequent_indent=indent + "    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(line for line in lines if line.strip())


Verb = Callable[[Stage], Callable[[], Any]]


def _claim(stage: Stage) -> Callable[[], Any]:
    stage.due("plain", "strict")
    return lambda: stage.claim("plain", "strict", "mail")


def _claim_late(stage: Stage) -> Callable[[], Any]:
    stage.due("plain", late=True)
    return lambda: stage.claim("plain")


def _claim_limited(stage: Stage) -> Callable[[], Any]:
    bench = Bench(
        stage.bench.database, [a_task("few", concurrency=2, rate_limit="9/m")]
    )
    bench.client.schedule_many("few", range(3), at=LONG_AGO)
    stage.store = Store(bench.database, bench.definitions)
    return lambda: stage.store.claims.claim_tasks(
        "host:1:a", 100, lease=LEASE, names=["few", "mail"]
    )


def _claim_instance(stage: Stage) -> Callable[[], Any]:
    return lambda: claim_trigger(
        stage.store, "host:1:a", "plain", lease=LEASE, strict=False
    )


def _mark(stage: Stage) -> Callable[[], Any]:
    (claim,) = stage.held("strict")
    return lambda: stage.store.held.mark_running(claim)


def _mark_tasks(stage: Stage) -> Callable[[], Any]:
    (claim,) = stage.held("once")
    return lambda: stage.store.held.mark_running(claim)


def _settle(stage: Stage) -> Callable[[], Any]:
    claims = stage.held("plain", "mail")
    return lambda: stage.store.settlements.settle(
        [(claim, Succeeded()) for claim in claims]
    )


def _advance(stage: Stage) -> Callable[[], Any]:
    stage.due("plain")
    stage.bench.change("plain", slot=stage.store.now(), schedule=str(Every("3650d")))
    claims = stage.claim("plain")
    return lambda: stage.store.settlements.settle(
        [(claim, Succeeded()) for claim in claims]
    )


def _finish(stage: Stage) -> Callable[[], Any]:
    claims = stage.held("mail")
    return lambda: stage.store.settlements.finish(claims)


def _settle_with_gap(stage: Stage) -> Callable[[], Any]:
    (claim,) = stage.held("plain")
    stage.bench.change("plain", slot=LONG_AGO, watermark=LONG_AGO)
    return lambda: stage.store.settlements.settle([(claim, Failed("boom"))])


def _hand_back(stage: Stage) -> Callable[[], Any]:
    claims = stage.held("plain")
    return lambda: stage.store.settlements.settle(
        [(claim, HandedBack()) for claim in claims]
    )


def _take_over(stage: Stage) -> Callable[[], Any]:
    silent = [claim.row for claim in stage.held("plain", "mail")]
    return lambda: stage.store.settlements.take_over(silent)


def _beat(stage: Stage) -> Callable[[], Any]:
    claims = stage.held("plain", "strict")
    stage.store.settlements.settle(
        [(claims[0], Succeeded())]
    )  # one of them is lost: it is read again
    return lambda: stage.store.held.beat("host:1:a", claims)


def _look(stage: Stage) -> Callable[[], Any]:
    stage.held("plain")
    return lambda: stage.store.held.silent_rows(stage.names)


def _held_by(stage: Stage) -> Callable[[], Any]:
    return lambda: stage.store.held.held_by("host:1:a")


def _next_due(stage: Stage) -> Callable[[], Any]:
    return lambda: stage.store.due.next_due(["mail", "plain"])


def _next_due_of_tasks(stage: Stage) -> Callable[[], Any]:
    return lambda: stage.store.due.next_due(["mail"])


def _next_due_of_many(stage: Stage) -> Callable[[], Any]:
    return lambda: stage.store.due.next_due(
        ["plain", *(f"other-{number}" for number in range(MANY))], ()
    )


def _plan_new(stage: Stage) -> Callable[[], Any]:
    return lambda: Planner(stage.store).plan([a_job("fresh")])


def _plan_kept(stage: Stage) -> Callable[[], Any]:
    jobs = [found for found in stage.bench.definitions.values() if found.is_job]
    return lambda: Planner(stage.store).plan(jobs, Revision(text="9"))


def _plan_changed(stage: Stage) -> Callable[[], Any]:
    return lambda: Planner(stage.store).plan(
        [a_job("plain", Every("5m"))], Revision(text="9")
    )


def _schedule(stage: Stage) -> Callable[[], Any]:
    client = Client(lambda: stage.store)
    return lambda: client.schedule("mail", {"n": 1}, id="1", delay="10s")


def _schedule_many(stage: Stage) -> Callable[[], Any]:
    client = Client(lambda: stage.store)
    return lambda: client.schedule_many(
        "mail", [{"n": 1}, None], delay="10s", if_exists="replace"
    )


def _guard(stage: Stage) -> Callable[[], Any]:
    claims = stage.held("plain", "mail")
    return lambda: _fenced(stage, "guard", claims)


def _complete_in(stage: Stage) -> Callable[[], Any]:
    claims = stage.held("plain", "mail")
    return lambda: _fenced(stage, "complete_in", claims)


def _fenced(stage: Stage, verb: str, claims: list[Claim]) -> None:
    fence = LedgerFence(stage.store)
    for claim in claims:
        with stage.store.database.main.begin() as connection:
            getattr(fence, verb)(claim, connection)


def _sign_in(stage: Stage) -> Callable[[], Any]:
    badge = Badge(
        worker="host:1:a",
        host="host",
        pid=1,
        boot_id="a",
        version="1",
        capacity=10,
        tags=[],
        tasks=["plain"],
        lease=LEASE,
        started=LONG_AGO,
        revision="9",
        refused=[],
        passed_over={},
    )
    return lambda: WorkerRegistry(stage.store).sign_in(badge, "running")


#: Name of the golden file: what is played.
VERBS: dict[str, Verb] = {
    "claim": _claim,
    "claim_late": _claim_late,
    "claim_limited": _claim_limited,
    "claim_trigger": _claim_instance,
    "mark_running": _mark,
    "mark_tasks": _mark_tasks,
    "settle": _settle,
    "advance": _advance,
    "finish": _finish,
    "settle_with_gap": _settle_with_gap,
    "hand_back": _hand_back,
    "take_over": _take_over,
    "beat": _beat,
    "look": _look,
    "held_by": _held_by,
    "next_due": _next_due,
    "next_due_of_tasks": _next_due_of_tasks,
    "next_due_of_many": _next_due_of_many,
    "plan_new": _plan_new,
    "plan_kept": _plan_kept,
    "plan_changed": _plan_changed,
    "schedule": _schedule,
    "schedule_many": _schedule_many,
    "guard": _guard,
    "complete_in": _complete_in,
    "sign_in": _sign_in,
}
