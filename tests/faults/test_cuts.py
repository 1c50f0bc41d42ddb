"""Outages that begin at any phase, judged by the rules of overlap and catch-up from the handlers'
own log.

python -m pytest -m "" tests/faults/test_cuts.py
three cuts CAST_CUTS=200 python -m pytest -m "" tests/faults/test_cuts.py -s -o
faulthandler_timeout=0     the long form
"""

from __future__ import annotations

import os
import random
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from tests.faults.bench import Bench, Player, eventually
from tests.faults.cast.cuts import GRACE, KINDS
from tests.faults.conftest import MakeBench
from tests.faults.proxy import CAN_CUT, Proxy
from tests.kit.laws import Ledger, none_in_two_places
from tests.kit.patience import PATIENCE
from tests.kit.records import from_micros

from slotwise.spi import parse_duration, tables

USUAL = 3
CUTS = int(os.environ.get("CAST_CUTS", USUAL))
#: So many workers, each behind a link of its own, are cut off independently of each other.
LANES = min(CUTS, 8)
HEARTBEAT = timedelta(milliseconds=300)
LEASE = 4 * HEARTBEAT
#: An outage lasts so many leases. The long form has longer ones.
LEASES = (4.0, 4.5 if CUTS == USUAL else 7.0)
SECOND = timedelta(seconds=1)
#: How long after its hold a handler may have written its end; slots so close to the end of a hold
#: prove nothing.
MARGIN = timedelta(seconds=0.25)

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(
        not CAN_CUT, reason="a link is cut with a filter of Linux on a socket"
    ),
    pytest.mark.timeout(280 if CUTS == USUAL else 0),
]


# -- the scene ------------------------------------------------------------------------------------


@dataclass
class Lane:
    """One worker with a job of each kind, and its link to the database."""

    stage: Bench
    proxy: Proxy
    number: int
    #: When the link was certainly cut.
    cuts: list[tuple[datetime, datetime]] = field(default_factory=list)

    @property
    def jobs(self) -> list[str]:
        return [f"{kind}@{self.number}" for kind in KINDS]

    def start(self) -> Player:
        return self.stage.start(
            f"w{self.number}", cast=",".join(self.jobs), database_url=self.proxy.url
        )

    def run(self, player: Player, cuts: int) -> None:
        rng = random.Random(f"{self.number}/{os.getpid()}/{time.time_ns()}")
        for _ in range(cuts):
            time.sleep(rng.uniform(0, 3))
            self.proxy.cut()
            begin = datetime.now(UTC)
            time.sleep(rng.uniform(*LEASES) * LEASE.total_seconds())
            end = datetime.now(UTC)
            self.proxy.heal()
            self.cuts.append((begin, end))
            eventually(
                lambda after=end: self._is_over(after), within=2 * PATIENCE, pause=0.3
            )
            assert player.is_alive

    def _is_over(self, after: datetime) -> bool:
        """Whether each job has decided about all slots of the outage, and no tail of slow runs
        goes on.

        A second outage would extend such a tail by all that has come, so that it would grow from
        cut to cut.
        """
        behind = (
            "select from scheduled_tasks where task_name = any(:jobs) and (slot < :after or "
            "task_name like 'cut-all-3000@%' and pending ->> 'catch_up_until' is not null)"
        )
        return not self.stage.rows(behind, jobs=self.jobs, after=after + SECOND)


# -- the judge ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hold:
    """Rule 1: from an attempt's claim to the end of its handler, or to the last heartbeat of a
    claim that was lost.
    """

    slot: datetime
    since: datetime
    until: datetime
    is_tail: bool
    #: Rule 2: an absence before this attempt; the slots that came due during it are catch-up's,
    #: too.
    after_absence: bool

    def covers(self, slot: datetime, margin: timedelta) -> bool:
        return self.since - margin <= slot <= self.until + margin


class Evidence:
    """What handlers and tables say of one job."""

    def __init__(self, stage: Bench, job: str, policy: str) -> None:
        self.job, self.policy = job, policy
        self.ledger = stage.ledger(job)
        self.gaps = stage.rows(
            "select * from scheduled_gaps where task_name = :job order by first_slot",
            job=job,
        )
        self._firsts = [gap.first_slot for gap in self.gaps]
        lines = [line for line in stage.log.read() if line.job == job]
        ends = {
            (line.slot, line.token): line.at for line in lines if line.mark == "end"
        }
        lost = {
            (row.slot, row.token): row.ended
            for row in stage.rows(
                "select * from scheduled_attempts where task_name = :job", job=job
            )
            if row.outcome == "lost"
        }
        self.starts = sorted(
            (line for line in lines if line.mark == "start"),
            key=lambda line: line.token,
        )
        self.holds: list[Hold] = []
        left: dict[datetime | None, datetime] = {}
        for line in self.starts:
            key, since = (line.slot, line.token), from_micros(line.token)
            assert line.slot is not None
            absent = line.slot in left and _slot_between(left[line.slot], since)
            until = lost.get(key) or ends[key]
            is_tail = self.ledger[line.slot].origin == "catch_up"
            self.holds.append(Hold(line.slot, since, until, is_tail, absent))
            if key in lost:
                left[line.slot] = until

    def fate(self, slot: datetime) -> str:
        """``ran``, why it did not, or nothing."""
        row = self.ledger.get(slot)
        if row is not None:
            return "ran" if row.outcome == "succeeded" else row.reason or row.outcome
        at = bisect_left(self._firsts, slot + timedelta(microseconds=1)) - 1
        return (
            self.gaps[at].reason
            if at >= 0 and slot <= self.gaps[at].last_slot
            else "nothing"
        )

    def slots(self, begin: datetime, end: datetime) -> list[datetime]:
        slot, found = begin.replace(microsecond=0) + SECOND, []
        while slot <= end:
            found.append(slot)
            slot += SECOND
        return found

    def missed(self, begin: datetime, end: datetime) -> list[datetime]:
        """The slots of an outage that came due while nobody held the job."""
        return [
            slot
            for slot in self.slots(begin, end)
            if not any(
                hold.slot == slot or hold.covers(slot, MARGIN)
                for hold in self._near(begin, end)
            )
        ]

    def _near(self, begin: datetime, end: datetime) -> list[Hold]:
        return [
            hold
            for hold in self.holds
            if hold.since <= end + SECOND and hold.until >= begin - SECOND
        ]

    def breaches(self, cuts: Sequence[tuple[datetime, datetime]]) -> Iterator[str]:
        yield from self._overlap()
        for begin, end in cuts:
            missed = self.missed(begin, end)
            fates = {slot: self.fate(slot) for slot in missed}
            if not missed:
                continue
            for what in getattr(self, f"_{self.policy}")(missed, fates):
                shown = ", ".join(
                    f"{slot:%H:%M:%S} {fate}" for slot, fate in fates.items()
                )
                holds = "; ".join(
                    (
                        f"{hold.slot:%H:%M:%S} from {hold.since:%H:%M:%S.%f} to "
                        f"{hold.until:%H:%M:%S.%f}"
                    )
                    for hold in self._near(begin - 5 * SECOND, end + 15 * SECOND)
                )
                yield (
                    f"{self.job}, cut {begin:%H:%M:%S.%f} to {end:%H:%M:%S.%f}: {what} "
                    f"({shown}); held: {holds}"
                )

    def _overlap(self) -> Iterator[str]:
        """Overlap decides only about slots that came due while the job was held, and a tail that
        is over about all that came during its runs.
        """
        spans: list[tuple[datetime, datetime]] = []
        for hold in self.holds:
            if hold.after_absence:
                continue
            if spans and hold.is_tail and hold.since - spans[-1][1] <= SECOND:
                spans[-1] = spans[-1][0], max(hold.until, spans[-1][1])
            else:
                spans.append((hold.since, hold.until))
        skipped = [
            slot for slot, row in self.ledger.items() if row.reason == "overlap"
        ]
        for gap in self.gaps:
            if gap.reason == "overlap":
                skipped += self.slots(gap.first_slot - SECOND, gap.last_slot)
        for slot in skipped:
            if not any(
                since - MARGIN <= slot <= until + MARGIN for since, until in spans
            ):
                near = [span for span in spans if abs(span[0] - slot) < 10 * SECOND]
                yield f"{self.job}: {slot} is called overlap, and was not held: {near}"

    # -- the policies -----------------------------------------------------------------------------

    def _all(
        self, missed: Sequence[datetime], fates: dict[datetime, str]
    ) -> Iterator[str]:
        """Every slot runs, the oldest first."""
        if set(fates.values()) != {"ran"}:
            yield "not all ran"
        first = {line.slot: line.token for line in reversed(self.starts)}
        tokens = [first[slot] for slot in missed if slot in first]
        if tokens != sorted(tokens):
            yield "not in their order"

    def _latest(
        self, missed: Sequence[datetime], fates: dict[datetime, str]
    ) -> Iterator[str]:
        """The newest that had come runs for all."""
        *older, newest = missed
        if {fates[slot] for slot in older} - {"collapsed"} or fates[newest] not in (
            "collapsed",
            "ran",
        ):
            yield "one run, as the newest, was expected"
        following = [
            slot
            for slot, row in self.ledger.items()
            if slot >= newest and row.outcome == "succeeded"
        ]
        yield from self._collapsed_into(min(following), -SECOND)

    def _first(
        self, missed: Sequence[datetime], fates: dict[datetime, str]
    ) -> Iterator[str]:
        """The oldest runs for all; it may lie so close to the end of a hold that it is not among
        ``missed``.
        """
        oldest, *newer = missed
        if {fates[slot] for slot in newer} - {"collapsed"} or fates[oldest] not in (
            "collapsed",
            "ran",
        ):
            yield "one run, as the oldest, was expected"
        before = [
            slot
            for slot, row in self.ledger.items()
            if slot <= oldest and row.outcome == "succeeded"
        ]
        yield from self._collapsed_into(max(before), SECOND)

    def _collapsed_into(self, slot: datetime, step: timedelta) -> Iterator[str]:
        """The run says how many slots next to it were collapsed into it."""
        count, other = 0, slot + step
        while self.fate(other) == "collapsed":
            count, other = count + 1, other + step
        if self.ledger[slot].collapsed != count:
            yield f"{slot:%H:%M:%S} says {self.ledger[slot].collapsed} collapsed, which are {count}"

    def _none(
        self, missed: Sequence[datetime], fates: dict[datetime, str]
    ) -> Iterator[str]:
        """None that is later than ``grace`` runs; that is why."""
        for slot in missed:
            if fates[slot] == "ran":
                claimed = min(
                    from_micros(line.token)
                    for line in self.starts
                    if line.slot == slot
                )
                if claimed - slot > parse_duration(GRACE):
                    yield f"{slot:%H:%M:%S} ran {claimed - slot} late"
            elif fates[slot] != "late":
                yield "late was expected"


def _slot_between(begin: datetime, end: datetime) -> bool:
    return begin.replace(microsecond=0) + SECOND < end


# -- the test -------------------------------------------------------------------------------------


def test_an_outage_at_any_phase_is_judged_by_the_seven_rules(
    bench: MakeBench, pg_url: str
) -> None:
    """``all`` runs each slot that nobody held, ``latest`` and ``first`` one, ``none`` none;
    overlap has no such slot.

    Gaps are disjoint, and every slot is accounted for.
    """
    settings = {
        "heartbeat_interval": "300ms",
        "threads": "16",
        "shutdown_grace": "20s",
    }
    jobs = ",".join(f"{kind}@{number}" for number in range(LANES) for kind in KINDS)
    stage = bench(jobs, **settings)
    with ExitStack() as links, ThreadPoolExecutor(LANES) as pool:
        lanes = [
            Lane(stage, links.enter_context(Proxy(pg_url)), number)
            for number in range(LANES)
        ]
        players = [lane.start() for lane in lanes]
        for player in players:
            for kind in KINDS:
                starts = {
                    "by": player,
                    "job": lambda job, kind=kind: job.startswith(f"{kind}@"),
                }
                stage.wait("handler_start", within=LANES * PATIENCE, **starts)
        shares = [CUTS // LANES + (number < CUTS % LANES) for number in range(LANES)]
        for done in [
            pool.submit(lane.run, *one)
            for lane, *one in zip(lanes, players, shares, strict=True)
        ]:
            done.result()
        until = min(lane.cuts[-1][1] for lane in lanes)
        assert set(stage.end_all()) == {0}
    stage.expect_clean(until=until)
    with stage.connect() as connection:
        ledger = Ledger.read(connection, tables())
    assert [
        one
        for job in stage.registry.jobs
        for one in none_in_two_places(job.name, ledger)
    ] == []
    broken, seen = list[str](), Counter[str]()
    for lane in lanes:
        for job in lane.jobs:
            evidence = Evidence(stage, job, KINDS[job.partition("@")[0]][1])
            broken += evidence.breaches(lane.cuts)
            seen.update(
                evidence.fate(slot)
                for cut in lane.cuts
                for slot in evidence.missed(*cut)
            )
    print(
        f"\n{sum(len(lane.cuts) for lane in lanes)} cuts; slots that nobody held: {dict(seen)}"
    )
    assert not broken, "\n".join(broken)
    assert {"ran", "collapsed", "late"} <= set(seen)
