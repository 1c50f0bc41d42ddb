"""What jobs declare, on a real cluster: a worker is killed, one is frozen, the database is away
for a while.

One scene for all policies; then the handlers' own log and the ledger are asked, policy by policy.
Times between starts are the ledger's, by the clock that judged them; handlers start when their
thread comes to it, and never before that.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from tests.faults.bench import (
    HEARTBEAT,
    SLACK,
    TAKE_OVER,
    Bench,
    Seen,
    eventually,
    loaded,
)
from tests.faults.cast.policies import NARROW, Spread
from tests.faults.conftest import MakeBench
from tests.kit.records import from_micros
from tests.kit.times import spread_out

from slotwise import AnyOf, Once, parse_schedule
from slotwise.demo.evidence import LogLine
from slotwise.embedded import EmbeddedPostgres

pytestmark = pytest.mark.extended

SECOND = timedelta(seconds=1)
RANKS = ("rank-90", "rank-50", "rank-10")
CAST = (
    "abreast",
    "replaced",
    "queued",
    "queued-all",
    "apart",
    "spread",
    "in-time",
    "paced",
    "isolated",
    *RANKS,
)
RATE, FLOODS = 10, [f"flood@{number}" for number in range(20)]
#: All their slots come in the outage.
MISSED = (*FLOODS, "oldest", "capped", "never-late")
LATER = AnyOf(Once("2100-01-01T00:00:00Z"), Once("2100-01-01T00:00:01Z"))


class Scene:
    """Three workers for most jobs, and one with a tag and room for one handler."""

    def __init__(self, stage: Bench, server: EmbeddedPostgres) -> None:
        self.stage = stage
        self.server = server
        cast = ",".join((*CAST, *(f"{name}={LATER}" for name in MISSED), "nowhere"))
        self.crew = [stage.start(cast=cast) for _ in range(3)]
        self.narrow = stage.start(
            "narrow", cast=",".join(RANKS), tags=NARROW, threads="1"
        )
        for player in stage.players:
            stage.wait("worker_start", by=player)
        self.down = self.up = stage.now()

    def an_operator_cancels(self) -> None:
        """What runs in a process of its own, and listens to nobody."""
        for job in ("queued", "queued-all"):
            self.stage.wait("settled", job=job)
        eventually(lambda: self.stage.starts("isolated"))
        self.stage.registry.client.operations.cancel("isolated", note="it hangs")
        self.stage.wait("settled", job="isolated", outcome="cancelled")

    def a_worker_is_killed(self) -> None:
        """While it runs slots side by side."""
        victim = self._one_of_the_crew()
        self.crew.remove(victim.worker)
        victim.worker.kill()
        dead = self.stage.wait("exit", by=victim.worker)
        assert dead["status"] == -signal.SIGKILL
        reaped = self.stage.wait("reaped", job="abreast", token=victim["token"])
        assert timedelta(seconds=reaped.at - dead.at) <= TAKE_OVER + loaded(SLACK)

    def a_worker_is_frozen(self) -> None:
        """Past its lease; others take over, and it comes back."""
        victim = self._one_of_the_crew()
        victim.worker.freeze()
        self.stage.wait("reaped", job="abreast", token=victim["token"])
        victim.worker.thaw()
        self.stage.wait(
            "claim_lost", by=victim.worker, job="abreast", token=victim["token"]
        )

    def _one_of_the_crew(self) -> Seen:
        """Whoever starts the next slot of those that run side by side."""
        crew, latest = self.crew, self.stage.mark()
        return self.stage.wait(
            "handler_start",
            job="abreast",
            by=lambda player: player in crew,
            after=latest,
        )

    def the_database_is_away(self) -> None:
        """For long enough that slots of all are missed; many jobs have their only two in that
        time.
        """
        self.stage.wait("settled", job="paced", after=self.stage.mark())
        ahead = min(loaded(2 * SECOND), 6 * SECOND)
        missed = (self.stage.now() + ahead).replace(microsecond=0)
        self.missed = parse_schedule(f"ANY({Once(missed)}; {Once(missed + SECOND)})")
        with self.stage.connect() as connection:
            change = (
                "update scheduled_tasks set schedule = %s, slot = %s, next_slot = %s, "
                "execution_time = %s"
            )
            values = (str(self.missed), missed, missed + SECOND, missed, list(MISSED))
            connection.exec_driver_sql(f"{change} where task_name = any(%s)", values)
        self.down = self.stage.now()
        self.server._cluster.stop("fast")
        assert datetime.now(UTC) < missed, "the database went away too late"
        self.stage.rest(max(4 * SECOND, missed + 2 * SECOND - datetime.now(UTC)))
        self.server.start()
        self.up = self.stage.now()

    def all_catch_up(self) -> None:
        """Until every job has begun with a slot of the time after all this."""
        until = self.stage.now()
        for job in CAST:
            begun = (
                ("handler_start",) if job in ("abreast", "replaced") else ("settled",)
            )
            self.stage.wait(*begun, job=job, slot=lambda slot: slot > until)
        for job in (*FLOODS, "oldest", "capped"):
            self.stage.wait("settled", job=job)
        self.stage.wait("skipped", job="never-late")
        self.unroutable = self.stage.registry.inspect.health(SECOND).unroutable
        self.stage.end_all()
        self.stage.expect_clean(
            until=until, schedules=dict.fromkeys(MISSED, self.missed)
        )


def runs(stage: Bench, job: str) -> list[tuple[LogLine, LogLine | None]]:
    """Starts and ends of a job's attempts, in the order in which they started."""
    ends = {
        (line.slot, line.token): line
        for line in stage.log.read()
        if line.job == job and line.mark == "end"
    }
    return [
        (line, ends.get((line.slot, line.token)))
        for line in sorted(stage.starts(job), key=lambda line: line.at)
    ]


def claimed(start: LogLine) -> datetime:
    """When this attempt was let start, by the database's time: its token says so.

    Its handler starts a moment later, and on a machine that is busy much later: that is nobody's
    law.
    """
    return from_micros(start.token)


# -- one policy each ------------------------------------------------------------------------------


def allow_runs_two_side_by_side_and_no_third(scene: Scene) -> None:
    """Two at a time in the whole cluster, also over a kill and a freeze; the rest is skipped
    (overlap).

    What a zombie's handlers still do is not counted.
    """
    rows = scene.stage.ledger("abreast").values()
    assert _most_at_a_time(scene, "abreast") == 2
    assert any(row.outcome == "skipped" and row.reason == "overlap" for row in rows)
    assert any(row.lost and row.outcome == "succeeded" for row in rows)


def _most_at_a_time(scene: Scene, job: str) -> int:
    """What a zombie still does is not counted, also if its slot ended as cancelled."""
    believed = {
        (row.slot, row.token)
        for row in scene.stage.ledger(job).values()
        if row.outcome != "lost"
    }
    zombies = {seen["token"] for seen in scene.stage.events.all("reaped", job=job)}
    ran = [
        (start.at, end.at)
        for start, end in runs(scene.stage, job)
        if end and (end.slot, end.token) in believed and end.token not in zombies
    ]
    return max(sum(start <= at < end for start, end in ran) for at, _ in ran)


def cancel_previous_lets_the_new_slot_in(scene: Scene) -> None:
    """Each slot ends as cancelled because the next one came, which then starts; no two at a
    time.
    """
    assert _most_at_a_time(scene, "replaced") == 1
    ended = [
        row
        for row in scene.stage.ledger("replaced").values()
        if row.outcome == "cancelled"
    ]
    soon = 2 * SECOND + 2 * HEARTBEAT + loaded(SLACK)
    assert any(
        row.finished - row.slot <= soon for row in ended if row.reason == "overlap"
    )


def queue_runs_the_newest_afterwards(scene: Scene) -> None:
    """Of the three slots or more that came until the end of the first handler, the newest two run,
    and in order.

    The second of them gives way if two newer ones have come until the first of them is settled.
    """
    first, *later = _slots_that_ran(scene, "queued")
    ledger = scene.stage.ledger("queued")

    def are_right(chosen: datetime, newest: datetime) -> bool:
        if later[0] != chosen or later[1] == newest:
            return later[0] == chosen
        is_displaced = ledger[chosen].finished >= newest + 2 * SECOND
        return newest not in later and is_displaced

    at_least, at_most = _came_meanwhile(scene, "queued")
    assert at_least >= 3
    assert any(
        are_right(first + (count - 1) * SECOND, first + count * SECOND)
        for count in range(at_least, at_most + 1)
    ), (first, later[:4], at_least, at_most)


def queue_all_runs_all_afterwards(scene: Scene) -> None:
    """None of those that came during the first run is left out, and they run in order."""
    first, *later = _slots_that_ran(scene, "queued-all")
    at_least, _ = _came_meanwhile(scene, "queued-all")
    assert at_least >= 3
    came = [first + number * SECOND for number in range(1, at_least + 1)]
    assert later[:at_least] == came


def _slots_that_ran(scene: Scene, job: str) -> list[datetime]:
    """The slots of a job, in the order in which their first attempts started."""
    slots = [start.slot for start, _ in runs(scene.stage, job)]
    return list(dict.fromkeys(slot for slot in slots if slot is not None))


def _came_meanwhile(scene: Scene, job: str) -> tuple[int, int]:
    """How many slots have come until the first handler ended, at least and at most.

    It ended between its last line and its settlement, which on a busy machine is much later.
    """
    (held, end), *_ = runs(scene.stage, job)
    assert held.slot is not None
    assert end is not None
    finished = scene.stage.ledger(job)[held.slot].finished
    at_least, at_most = (int((at - held.slot) / SECOND) for at in (end.at, finished))
    return at_least, at_most


def no_handler_starts_before_the_ledger_says_so(scene: Scene) -> None:
    """What the ledger tells of the last attempt that began is true of its handler, whatever was
    claimed after it.
    """
    last = {
        (line.job, line.slot, line.attempt): line.at
        for line in scene.stage.log.read()
        if line.mark == "start"
    }
    rows = scene.stage.rows(
        "select task_name, slot, attempts, started from scheduled_slots where started is not null"
    )
    both = [(row, last.get((row.task_name, row.slot, row.attempts))) for row in rows]
    assert [(row, at) for row, at in both if at is not None and at < row.started] == []


def min_interval_keeps_starts_apart(scene: Scene) -> None:
    """By the database's clock, whoever runs them."""
    starts = sorted(
        row.started for row in scene.stage.ledger("apart").values() if row.started
    )
    assert min(after - before for before, after in pairwise(starts)) >= timedelta(
        seconds=1.7
    )


def spread_moves_the_start_and_not_the_slot(scene: Scene) -> None:
    """Each start is so much after its slot; slots stay on their grid."""
    by = spread_out(Spread.schedule, Spread.name, timedelta(seconds=1.5)).wait(
        scene.up
    )
    lines = scene.stage.starts("spread")
    assert all(
        line.slot.microsecond == 0 and line.slot.second % 2 == 0 for line in lines
    )
    late = [claimed(line) - line.slot for line in lines]
    assert timedelta(0) < by <= min(late) <= by + loaded(timedelta(seconds=1.5))


def start_within_skips_what_is_too_late(scene: Scene) -> None:
    """No first attempt starts later than that after its slot; what the outage made later is
    skipped (late).
    """
    first = [
        row
        for row in scene.stage.ledger("in-time").values()
        if row.started and row.attempts == 1
    ]
    assert max(row.started - row.slot for row in first) <= timedelta(seconds=1.5)
    left_out = scene.stage.rows(
        "select distinct reason from scheduled_gaps where task_name = 'in-time'"
    )
    reasons = {row.reason for row in left_out} | {
        row.reason for row in scene.stage.ledger("in-time").values()
    } - {None}
    assert reasons
    assert reasons <= {
        "late",
        "overlap",
    }  # overlap, if it was held when the database went away


def catch_up_first_runs_the_oldest_for_all(scene: Scene) -> None:
    """One run, as the first slot that was missed; the one after it is collapsed into it."""
    first, second = scene.missed.slots(scene.down - SECOND, scene.up)
    rows = scene.stage.ledger("oldest")
    assert {
        slot: (row.outcome, row.reason, row.collapsed) for slot, row in rows.items()
    } == {
        first: ("succeeded", None, 1),
        second: ("skipped", "collapsed", 0),
    }
    assert [line.slot for line in scene.stage.starts("oldest")] == [first]


def catch_up_all_runs_no_more_than_its_max(scene: Scene) -> None:
    """The newest of what was missed; the one before it is collapsed, and stands for itself."""
    first, second = scene.missed.slots(scene.down - SECOND, scene.up)
    rows = scene.stage.ledger("capped")
    assert {
        slot: (row.outcome, row.reason, row.collapsed) for slot, row in rows.items()
    } == {
        first: ("skipped", "collapsed", 0),
        second: ("succeeded", None, 0),
    }
    assert [line.slot for line in scene.stage.starts("capped")] == [second]


def catch_up_none_runs_nothing_that_is_late(scene: Scene) -> None:
    """No start; all that was missed is skipped (late), as one range."""
    first, second = scene.missed.slots(scene.down - SECOND, scene.up)
    left_out = (
        "select first_slot, last_slot, count, reason from scheduled_gaps where "
        "task_name = 'never-late'"
    )
    assert [tuple(row) for row in scene.stage.rows(left_out)] == [
        (first, second, 2, "late")
    ]
    assert (scene.stage.starts("never-late"), scene.stage.ledger("never-late")) == (
        [],
        {},
    )


def catch_up_all_runs_everything_and_keeps_its_pace(scene: Scene) -> None:
    """Every slot of the outage runs, the oldest first, and none sooner than the pace after the one
    before.

    Slots that came after the first of them had started joined the tail.
    """
    missed = [
        line
        for line, _ in runs(scene.stage, "paced")
        if scene.down < line.slot < scene.up and line.attempt == 1
    ]
    assert len({line.slot for line in missed}) == len(missed) >= 3
    assert [line.slot for line in missed] == sorted(line.slot for line in missed)
    ledger = scene.stage.ledger("paced")
    starts = [
        ledger[line.slot].started
        for line in missed
        if line.slot <= ledger[missed[0].slot].started
    ]
    assert min(after - before for before, after in pairwise(starts)) >= timedelta(
        seconds=0.4
    )


def recovery_keeps_to_its_rate(scene: Scene) -> None:
    """All missed slots of all jobs together: no second of the database's has more starts than the
    rate.
    """
    ended = scene.stage.rows(
        "select started, task_name, slot, outcome, reason, origin, attempts, lost, aborted"
        " from scheduled_slots where started is not null order by started"
    )
    caught_up = [row for row in ended if row.origin == "catch_up"]
    assert {row.task_name for row in caught_up} >= set(FLOODS), "\n".join(
        str(row) for row in ended if row.task_name in FLOODS
    )
    # of a slot that was started again, the first start is not kept
    rows = [row for row in caught_up if row.attempts == 1]
    for first in rows:
        together = [
            row
            for row in rows
            if first.started <= row.started < first.started + SECOND
        ]
        assert len(together) <= RATE, "\n".join(map(str, together))


def ranks_go_first_on_the_worker_that_may(scene: Scene) -> None:
    """Due together where one may run: the highest first. Only the worker with the tag runs
    them.
    """
    by_slot: dict[datetime | None, list[LogLine]] = defaultdict(list)
    for rank in RANKS:
        for line in scene.stage.starts(rank):
            assert line.pid == scene.narrow.pid
            by_slot[line.slot].append(line)
    orders = [
        [line.job for line in sorted(lines, key=claimed)] for lines in by_slot.values()
    ]
    assert [order for order in orders if len(order) == 3].count(list(RANKS)) >= 3
    whole = [order for order in orders if len(order) == 3]
    assert (
        sum(order == list(RANKS) for order in whole) > len(whole) / 2
    )  # started in order, but by three threads
    assert scene.unroutable == {
        "nowhere": "no live worker that knows it carries elsewhere"
    }
    assert scene.stage.starts("nowhere") == []


def a_cancelled_child_is_killed(scene: Scene) -> None:
    """It did not listen: its slot ends as cancelled (operator), its handler never ended, the
    schedule goes on.
    """
    (held, end), *later = runs(scene.stage, "isolated")
    assert (end, len(later) > 0) == (None, True)
    assert held.pid not in {player.pid for player in scene.stage.players}
    row = scene.stage.ledger("isolated")[held.slot]
    assert (row.outcome, row.reason, row.attempts) == ("cancelled", "operator", 1)


POLICIES: tuple[Callable[[Scene], None], ...] = (
    allow_runs_two_side_by_side_and_no_third,
    cancel_previous_lets_the_new_slot_in,
    queue_runs_the_newest_afterwards,
    queue_all_runs_all_afterwards,
    no_handler_starts_before_the_ledger_says_so,
    min_interval_keeps_starts_apart,
    spread_moves_the_start_and_not_the_slot,
    start_within_skips_what_is_too_late,
    catch_up_first_runs_the_oldest_for_all,
    catch_up_all_runs_no_more_than_its_max,
    catch_up_none_runs_nothing_that_is_late,
    catch_up_all_runs_everything_and_keeps_its_pace,
    recovery_keeps_to_its_rate,
    ranks_go_first_on_the_worker_that_may,
    a_cancelled_child_is_killed,
)


@pytest.mark.timeout(300)
def test_policies_hold_on_a_cluster_in_trouble(
    bench: MakeBench, own_server: EmbeddedPostgres
) -> None:
    """Each policy by ledger and handlers' log, over a kill, a freeze, an outage and an operation
    by hand.
    """
    scene = Scene(
        bench(",".join((*CAST, *MISSED)), url=own_server.dsn, recovery_rate=str(RATE)),
        own_server,
    )
    scene.an_operator_cancels()
    scene.a_worker_is_killed()
    scene.a_worker_is_frozen()
    scene.the_database_is_away()
    scene.all_catch_up()
    broken = [
        error for policy in POLICIES if (error := _breach(policy, scene)) is not None
    ]
    if broken:
        raise ExceptionGroup("policies do not hold", broken)


def _breach(policy: Callable[[Scene], None], scene: Scene) -> AssertionError | None:
    try:
        policy(scene)
    except AssertionError as error:
        return error
    return None
