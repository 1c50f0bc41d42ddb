"""The laws of the contract, as checks on what happened and on what the tables say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from tests.kit.laws import (
    Breach,
    Ledger,
    none_double,
    none_in_two_places,
    none_invented,
    none_missing,
    nothing_left,
)
from tests.kit.records import TICK, Fence
from tests.kit.times import succeed
from tests.simulation.claim_laws import ClaimLaws
from tests.simulation.operation_laws import OperationLaws
from tests.simulation.row_laws import RowLaws
from tests.simulation.trace import Trace

from slotwise import Schedule
from slotwise.spi import Claim, Definition, Key, Reaped, Reason, Settled

#: Rows that operators have requested, beside the slots of the plan.
REQUESTED = ("trigger", "retry", "backfill")

#: A slot of a job, or the life of a one-time task: id and first version.
Slot = tuple[str, Any]


@dataclass
class Laws:
    """Told of everything that happens; raises LawBroken at once, or when it looks at the
    tables.
    """

    trace: Trace
    definitions: Mapping[str, Definition]
    #: Whether the queue may be put back from a backup.
    after_restores: bool = False
    starts: Counter[Slot] = field(default_factory=Counter)
    claims_of: ClaimLaws = field(init=False)
    operations: OperationLaws = field(init=False)
    rows: RowLaws = field(init=False)
    #: By which claims: token and holder.
    successes: defaultdict[Slot, set[tuple[int, str]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    failures: Counter[Slot] = field(default_factory=Counter)
    #: The newest token of each row's life, and what each claim was for.
    tokens: dict[tuple[Key, int | None], int] = field(default_factory=dict)
    claims: dict[tuple[str, str, int, str], Slot] = field(default_factory=dict)
    #: Schedule texts that were ever in force, as one schedule, and since when.
    history: dict[str, Schedule] = field(default_factory=dict)
    since: dict[str, datetime] = field(default_factory=dict)
    watermarks: dict[str, datetime] = field(default_factory=dict)
    final: dict[Slot, tuple[str, int | None]] = field(default_factory=dict)
    #: The tables as they were looked at last; and slots in gaps that a restored row claimed again,
    #: on time after the clock was stepped back, or by an older schedule: such a claim looks at no
    #: gap (docs/restore.md).
    seen: Ledger | None = None
    claimed_in_gaps: set[Slot] = field(default_factory=set)
    #: Slots of which a start was refused, perhaps after its mark was committed.
    unsure: set[Slot] = field(default_factory=set)
    #: When the claims of each job were made that came to start, and whether an operator had
    #: requested them.
    claimed_at: dict[str, list[tuple[datetime, bool]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    has_stepped: bool = False
    #: The claims that were made before the clock was last stepped.
    claimed_before: set[tuple[str, str, int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        shared: Any = self.trace, self.definitions
        self.claims_of = ClaimLaws(*shared, self.after_restores)
        self.operations = OperationLaws(*shared, self.starts, self.after_restores)
        self.rows = RowLaws(*shared, self.after_restores)

    # -- what happens -----------------------------------------------------------------------------

    def claimed(self, claim: Claim, tags: Collection[str]) -> None:
        """Tokens rise with every claim of a row."""
        self.claims_of.claimed(claim, tags)
        self.operations.claimed(claim)
        life = (claim.key, claim.row.created_version)
        last = self.tokens.get(life, 0)
        if claim.token <= last:
            raise self._broken(
                "tokens rise", f"token {claim.token} after {last}", claim
            )
        self.tokens[life] = claim.token
        self.claims[(*claim.key, claim.token, claim.holder)] = slot = _slot(claim)
        is_allowed = self.after_restores and (
            self.has_stepped or claim.row.task_name == "changing"
        )
        if (
            is_allowed
            and claim.slot
            and self.seen
            and self.seen.gap_at(claim.row.task_name, claim.slot)
        ):
            self.claimed_in_gaps.add(slot)

    def knows(self, claim: Claim) -> bool:
        return (*claim.key, claim.token, claim.holder) in self.claims

    def started(self, claim: Claim) -> None:
        """give_up: at most one start; nobody starts what has succeeded."""
        slot = _slot(claim)
        self.operations.started(claim)
        self.starts[slot] += 1
        self._keeps_its_distance(claim)
        if self.successes[slot]:
            raise self._broken("one completion", "a start after a success", claim)
        if self.definitions[claim.row.task_name].gives_up and self.starts[slot] > 1:
            raise self._broken(
                "give_up: one start", f"start number {self.starts[slot]}", claim
            )

    def refused(self, claim: Claim) -> None:
        """The claim was not started after all; its mark may stand until it is handed back."""
        self.unsure.add(_slot(claim))

    def clock_stepped(self, now: datetime) -> None:
        """The distance to what was claimed before, by the clock that was, is not known any
        more.
        """
        self.has_stepped = True
        self.claims_of.clock_stepped(now)
        self.claimed_at.clear()
        self.claimed_before = set(self.claims)

    def _keeps_its_distance(self, claim: Claim) -> None:
        """min_interval: two starts are so far apart, by the database's time. What an operator
        operations does not wait, nor does a retry for it.
        """
        name, is_requested = claim.row.task_name, claim.row.origin in REQUESTED
        least, others = self.definitions[name].min_interval, self.claimed_at[name]
        if (*claim.key, claim.token, claim.holder) in self.claimed_before:
            return
        if least is not None and not is_requested and not self.after_restores:
            for other, was_ordered in others:
                apart = (
                    claim.claimed_at - other
                )  # a handler may be entered after that of a later claim
                # Of two claims at one instant, the operation may have been the later one.
                if abs(apart) < least and (
                    not was_ordered
                    or (claim.row.attempt == 1 and apart > timedelta(0))
                ):
                    raise self._broken(
                        "min_interval", f"{apart} from another start", claim
                    )
        others.append((claim.claimed_at, is_requested))

    def ended(self, event: Settled | Reaped) -> None:
        """At most one attempt completes a slot."""
        holder = event.holder if isinstance(event, Reaped) else str(event.worker)
        slot = self.claims[event.job, event.id, event.token, holder]
        if event.outcome == "failed":
            self.failures[slot] += 1
        is_unsure = (
            slot in self.unsure or self.after_restores
        )  # a restored row may find its slot done long ago
        if (
            event.reason == Reason.MAY_STILL_BE_RUNNING
            and not self.starts[slot]
            and not is_unsure
        ):
            raise self.trace.fail(
                "give_up: what has not started is not lost",
                "no start",
                event.job,
                event.slot,
            )
        # A restored row may bring an older claim back, whose holder still lives; the ledger keeps
        # the newer one's end.
        is_older = any(event.token < token for token, _ in self.successes[slot])
        if event.outcome == "succeeded" and not (
            self.after_restores and (is_older or isinstance(event, Reaped))
        ):
            self.successes[slot].add((event.token, holder))
        if len(self.successes[slot]) > 1:
            raise self.trace.fail(
                "one completion", f"by {self.successes[slot]}", event.job, event.slot
            )

    def taken_over(self, event: Reaped, alive: Collection[Fence]) -> None:
        """Nobody loses a claim who stirred, or has every reason to believe in it."""
        if Fence(Key(event.job, event.id), event.token) in alive:
            text = f"token {event.token} was taken from a holder that lives"
            raise self.trace.fail("death is observed", text, event.job, event.slot)

    def planned(
        self, job: str, schedule: Schedule, now: datetime, watermark: datetime | None
    ) -> None:
        """The text of a job's row has changed (or it is new): slots after this activation are the
        new text's.
        """
        before = self.history.get(job)
        if before is None:
            self.history[job], self.since[job] = schedule, now
        else:
            activation = max(now, watermark or now)
            self.history[job] = succeed(before, activation, schedule)
            self.since[job] = min(
                self.since[job], activation
            )  # the clock was set back before a slot was decided

    def reopened(self, job: str, slot: datetime) -> None:
        """An operator wants a slot to run that had ended."""
        self.final.pop((job, slot), None)
        # By the ledger it has not succeeded: that was an older claim, which came back.
        if self.after_restores:
            self.successes.pop((job, slot), None)

    def restored(self, ledger: Ledger) -> None:
        """The queue is back where it was: rows may be behind; one-time tasks, which have no
        ledger, live again.
        """
        self.operations.restored(ledger)
        self.watermarks.clear()
        self.tokens.clear()
        counted: list[dict[Slot, Any]] = [self.starts, self.successes, self.failures]
        for counter in counted:
            for slot in [
                slot for slot in counter if not self.definitions[slot[0]].is_job
            ]:
                del counter[slot]

    def _broken(self, law: str, text: str, claim: Claim) -> Exception:
        return self.trace.fail(law, text, claim.row.task_name, claim.slot)

    # -- what the tables say ----------------------------------------------------------------------

    def check(self, ledger: Ledger) -> None:
        """Every law that can be read off the tables at any moment."""
        for row in ledger.rows:
            if row["kind"] == "plan":
                self._only_forward(row, ledger)
        self.rows.check(ledger)
        if not self.after_restores:
            self.operations.check(ledger)
        for entry in ledger.slots.values():
            if (
                entry["origin"] != "task"
            ):  # complete_in's word for a one-time task, whose id may live again
                self._final_stays(entry)
                if (
                    not self.after_restores
                ):  # a hand-back forgets an orphan's start with its own
                    self._starts_are_explained(entry)
        for job in self.history:
            self._every_slot_is_accounted_for(job, ledger)
        self.seen = ledger

    def _only_forward(self, row: Any, ledger: Ledger) -> None:
        """Slots of a plan row only move forward: the watermark never falls, and no row waits for a
        slot before it.
        """
        job, slot, watermark = row["task_name"], row["slot"], row["watermark"]
        last = self.watermarks.get(job)
        if last is not None and (watermark is None or watermark < last):
            raise self.trace.fail(
                "only forward", f"watermark {watermark} after {last}", job, slot
            )
        if watermark is not None:
            self.watermarks[job] = watermark
        left_out = {
            at
            for (name, at), entry in ledger.slots.items()
            if name == job
            and (
                entry["outcome"] == "skipped"
                or (name, at)
                in self.operations.opened  # a backfill of what skip_next had left out
                or (self.after_restores and entry["finished"])
            )
        }
        if slot is None or watermark is None or slot >= watermark:
            return
        if self.after_restores and job == "changing":
            # an older text may be back, and its deploy decides up to an instant between its own
            # slots
            return
        # A deploy decides all slots up to an instant, which is none of them; then the newest
        # before it counts.
        newest = self.history[job].latest_before(watermark + TICK) or watermark
        if not any(
            at == slot or at in left_out or ledger.gap_at(job, at)
            for at in (watermark, newest)
        ):
            raise self.trace.fail(
                "only forward", f"waits behind its watermark {watermark}", job, slot
            )

    def _final_stays(self, entry: Any) -> None:
        """What has ended stays as it ended."""
        slot = (entry["task_name"], entry["slot"])
        if entry["finished"] is None:
            if slot in self.final:
                raise self.trace.fail(
                    "final", f"open again after {self.final[slot]}", *slot
                )
            return
        end = (entry["outcome"], entry["token"])
        if self.final.setdefault(slot, end) != end:
            raise self.trace.fail("final", f"{self.final[slot]} became {end}", *slot)

    def _starts_are_explained(self, entry: Any) -> None:
        """Each start after the first has a lost, aborted or failed attempt in the ledger."""
        slot = (entry["task_name"], entry["slot"])
        reasons = (
            entry["lost"]
            + entry["aborted"]
            + self.failures[slot]
            + self.operations.opened[slot]
        )
        if self.starts[slot] > 1 + reasons:
            raise self.trace.fail(
                "starts have reasons",
                f"{self.starts[slot]} starts, {reasons} reasons",
                *slot,
            )
        if entry["outcome"] == "succeeded" and not self.starts[slot]:
            raise self.trace.fail(
                "starts have reasons", "succeeded without a start", *slot
            )
        if self.starts[slot] > entry["attempts"] and entry["finished"] is not None:
            raise self.trace.fail(
                "attempts", f"{self.starts[slot]} starts in {entry['attempts']}", *slot
            )

    def _every_slot_is_accounted_for(self, job: str, ledger: Ledger) -> None:
        """Every slot up to the watermark is in the ledger or in exactly one gap; none is missing,
        none there twice.
        """
        row = ledger.plan_row(job)
        if row is None or row["watermark"] is None:
            return
        self.trace.expect_none(self._unallowed(none_in_two_places(job, ledger)))
        gaps, entries = ledger.gaps.get(job, []), ledger.planned(job)
        if self.history[job].from_end or (self.after_restores and job == "changing"):
            return  # … whose older text may be back, and then come to be replaced a second time
        # The effective watermark: after a restore, ledger and gaps know more than the row.
        watermark = max(
            [row["watermark"], *entries[-1:], *(gap["last_slot"] for gap in gaps)]
        )
        # Restored, a held row may stand for a slot that the ledger has forgotten, since it was
        # handed back.
        own = [
            row
            for row in ledger.rows
            if row["task_name"] == job
            and row["origin"] not in REQUESTED
            and (self.after_restores or not row["picked"])
        ]
        waiting = {row["slot"] for row in own}
        slots = list(self.history[job].slots(self.since[job], watermark))
        due = [slot for slot in slots if slot not in waiting]
        if not self.after_restores:
            self._none_started_is_skipped(job, ledger)
        requested = {
            row["slot"]
            for row in ledger.rows
            if row["task_name"] == job and row["origin"] in REQUESTED
        }
        unrequested = [slot for slot in due if slot not in requested]
        self.trace.expect_none(
            none_missing(job, self._not_with_its_row(job, unrequested, ledger), ledger)
        )
        self.trace.expect_none(none_invented(job, {*due, *waiting}, ledger))
        # A restored row may wait for a slot that is in a gap since.
        double = none_double(job, slots if self.after_restores else due, ledger)
        self.trace.expect_none(self._unallowed(double))

    def _unallowed(self, found: Iterable[Breach]) -> Iterable[Breach]:
        return (
            one for one in found if (one.job, one.slot) not in self.claimed_in_gaps
        )

    def _none_started_is_skipped(self, job: str, ledger: Ledger) -> None:
        """What has started is in the ledger as that, and not among those that did not run."""
        for name, slot in self.starts:
            entry = ledger.slots.get((name, slot))
            if name == job and (entry is None or entry["outcome"] == "skipped"):
                outcome = entry and entry["outcome"]
                raise self.trace.fail(
                    "every slot",
                    f"has started, and the ledger says {outcome}",
                    job,
                    slot,
                )

    def _not_with_its_row(
        self, job: str, due: list[datetime], ledger: Ledger
    ) -> list[datetime]:
        """Of a slot that waited, undecided, when skip_next left out the one after it, only the
        lost row knew.
        """
        if not self.after_restores:
            return due
        left_out = {
            at
            for (name, at), entry in ledger.slots.items()
            if name == job and entry["reason"] == "operator"
        }
        return [
            slot for slot, after in zip_longest(due, due[1:]) if after not in left_out
        ]

    def check_end(self, ledger: Ledger, now: datetime) -> None:
        """After the storm: nothing is held, nothing is due, nothing is left open."""
        self.trace.expect_none(nothing_left(ledger, now))
        for job, schedule in self.history.items():
            row = ledger.plan_row(job)
            if (
                row is None
                or row["slot"] is None
                or schedule.from_end
                or self.definitions[job].min_interval
            ):
                continue
            policies = self.definitions[job]
            is_deferred = (
                policies.catch_up.pace
                or row["attempt"]
                or policies.overlap.mode == "cancel_previous"
            )
            if row["execution_time"] > now and is_deferred:
                continue  # its time, which was set before a step back of the clock, comes again
            if row["slot"] + schedule.wait(row["slot"]) <= now - TICK:
                raise self.trace.fail(
                    "nothing stays due", "not decided", job, row["slot"]
                )


def _slot(claim: Claim) -> Slot:
    if claim.slot is not None:
        return claim.row.task_name, claim.slot
    return claim.row.task_name, (claim.row.task_instance, claim.row.created_version)
