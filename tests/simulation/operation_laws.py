"""The laws of operations: each is carried out once, or the ledger says why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.kit.laws import Ledger
from tests.kit.records import Fence, from_micros
from tests.simulation.trace import Trace

from slotwise.spi import Claim, Definition

Slot = tuple[str, Any]


@dataclass
class OperationLaws:
    """Told of every operation that was given, and of every claim and start."""

    trace: Trace
    definitions: Mapping[str, Definition]
    starts: Counter[Slot]
    after_restores: bool = False
    #: Commands, as the audit should have them.
    signed: Counter[str] = field(default_factory=Counter)
    #: Slots that an operator wanted to run, and how often each had started before.
    wanted: dict[Slot, int] = field(default_factory=dict)
    #: How often a slot that had ended was opened again.
    opened: Counter[Slot] = field(default_factory=Counter)
    #: Slots that an operator has left out, or called off.
    left_out: set[Slot] = field(default_factory=set)
    called_off: set[Slot] = field(default_factory=set)
    #: Claims that were made of a slot after it was called off.
    in_vain: set[Fence] = field(default_factory=set)
    #: Paused jobs, each with the end of its pause, if it ends by itself.
    paused: dict[str, datetime | None] = field(default_factory=dict)
    #: What the table of pauses says, whose rows no restore of the queue takes back.
    kept: dict[str, datetime | None] = field(default_factory=dict)
    #: The latest end that any pause of a job has had.
    ends: dict[str, datetime] = field(default_factory=dict)
    all_paused: bool = False

    # -- what is requested -----------------------------------------------------------------------

    def requested(self, command: str, count: int = 1) -> None:
        self.signed[command] += count

    def wants(
        self, job: str, slots: Iterable[datetime], *, again: bool = False
    ) -> None:
        """These are to run: by a trigger, a retry or a backfill."""
        for slot in slots:
            key = (job, slot)
            self.wanted[key] = self.starts[key]
            self.opened[key] += again and self.starts[key] > 0
            self.left_out.discard(key)
            self.called_off.discard(key)

    def leaves_out(self, job: str, slot: datetime) -> None:
        if self.starts[job, slot] and not self.after_restores:
            raise self.trace.fail(
                "skip_next", "leaves out what has started", job, slot
            )
        self.left_out.add((job, slot))

    def calls_off(self, job: str, slots: Iterable[datetime]) -> None:
        for slot in slots:
            self.called_off.add((job, slot))
            self.wanted.pop((job, slot), None)

    def restored(self, ledger: Ledger) -> None:
        """What only the rows knew is as old as they are: pauses, calls, and triggers."""
        self.paused = {
            row["task_name"]: self.kept.get(row["task_name"])
            for row in ledger.rows
            if row["state"] == "paused"
        }
        self.called_off.clear()
        self.wanted.clear()

    def pauses(self, job: str, until: datetime | None) -> None:
        self.paused[job] = self.kept[job] = until
        if until is not None:
            self.ends[job] = max(until, self.ends.get(job, until))

    def resumes(self, job: str) -> None:
        self.paused.pop(job, None)
        self.kept.pop(job, None)

    # -- what happens -----------------------------------------------------------------------------

    def claimed(self, claim: Claim) -> None:
        """pause: nothing that is paused is claimed, before its end."""
        name = claim.row.task_name
        until = self.paused.get(name)
        has_ended = until is not None and from_micros(claim.token) >= until
        if has_ended:
            self.resumes(name)
        if self.all_paused or name in self.paused:
            raise self._broken("pause", "claimed while it is paused", claim)
        if (name, claim.slot) in self.called_off:
            self.in_vain.add(claim.fence)

    def started(self, claim: Claim) -> None:
        """skip_next: what was left out does not start; cancel: nor what was called off, by a
        later claim.
        """
        if (claim.row.task_name, claim.slot) in self.left_out:
            raise self._broken("skip_next", "started, and was left out", claim)
        if claim.fence in self.in_vain:
            raise self._broken(
                "cancel",
                "started by a claim that was made after it was called off",
                claim,
            )

    # -- what the tables say ----------------------------------------------------------------------

    def check(self, ledger: Ledger) -> None:
        """What is wanted stands in a row, or has ended."""
        if not self.wanted:
            return
        standing = {
            (row["task_name"], row["slot"])
            for row in ledger.rows
            if row["plan_instance"]
        }
        for key in list(self.wanted):
            entry = ledger.slots.get(key)
            is_final = entry is not None and entry["finished"] is not None
            if key not in standing and not is_final:
                raise self.trace.fail(
                    "carried out", "wanted, in no row, and not ended", *key
                )
            if is_final and key not in standing:
                self._was_carried_out(key, entry)
                del self.wanted[key]

    def _was_carried_out(self, key: Slot, entry: Any) -> None:
        """It has started since, or the ledger says why not."""
        why_not = (
            entry["outcome"] in ("cancelled", "skipped", "lost", "dead")
            or entry["reason"] == "give_up"
        )
        if self.starts[key] == self.wanted[key] and not why_not:
            raise self.trace.fail(
                "carried out", f"wanted, and {entry['outcome']} without a start", *key
            )

    def check_end(self, ledger: Ledger, audit: Counter[str]) -> None:
        """Everything wanted has ended; the audit has each operation once."""
        for key in () if self.after_restores else self.wanted:
            raise self.trace.fail("carried out", "wanted, and has not ended", *key)
        for row in ledger.rows:
            if row["state"] in ("paused", "queued"):
                raise self.trace.fail(
                    "carried out",
                    f"stays {row['state']}",
                    row["task_name"],
                    row["slot"],
                )
        self._check_maintenance(ledger)
        audit = Counter(audit)
        del audit["deploy"]  # an entry of a worker that planned, and no operation
        if audit != self.signed:
            text = (
                f"the audit has {sorted(audit.items())}, given were "
                f"{sorted(self.signed.items())}"
            )
            raise self.trace.fail("one operation", text, "", None)

    def _check_maintenance(self, ledger: Ledger) -> None:
        """maintenance: only slots before the end of a pause are skipped for it."""
        skipped = [
            (job, gap["last_slot"], gap["reason"])
            for job, gaps in ledger.gaps.items()
            for gap in gaps
        ]
        skipped += [(*key, slot["reason"]) for key, slot in ledger.slots.items()]
        for job, slot, reason in skipped:
            is_its = job in self.ends and slot < self.ends[job]
            if reason == "maintenance" and not is_its:
                raise self.trace.fail(
                    "maintenance", "skipped after the end", job, slot
                )

    def _broken(self, law: str, text: str, claim: Claim) -> Exception:
        return self.trace.fail(law, text, claim.row.task_name, claim.slot)
