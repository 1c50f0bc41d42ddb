"""What each reason in the ledger means, in a sentence. A test finds all that the code writes, and looks for each here.

``{ended}`` is when the slot ended, and after how long; ``{outcome}`` is how.
"""

from __future__ import annotations

#: Why a slot did not run.
SKIPPED = {
    "collapsed": "Nobody held the job when it came, and of the slots that were missed it was left out.",
    "overlap": "It came while the slot before it was held, or waited for its retry's time.",
    "late": "Nobody could start it in time; or it was within the grace of CatchUp.none, and a newer one was, too.",
    "calendar": "A business calendar of its schedule passes over that day.",
    "paused": "The job, or all, was paused.",
    "settled": "An operator settled it, after a restore: it may have run in the time that was lost.",
    "deleted": "The job was deleted before it began.",
    "operator": "An operator left it out.",
}

#: How a slot ended that had begun, or was about to.
ENDED = {
    "max_lost": "It ended as dead {ended}: so many of its workers died with it that it is not tried again.",
    "may still be running": (
        "Its worker fell silent, and the job gives up on it ({ended}): its handler may still be running."
    ),
    "lost": "Its worker lost the claim, and the job gives up on it ({ended}): its handler may still be running.",
    "shutdown": "Its worker was stopped while it ran, and the job gives up on it: it ended as {outcome} {ended}.",
    "operator": "An operator cancelled it {ended}.",
    "overlap": "A newer slot took its place: it was asked to stop, and ended as {outcome} {ended}.",
    "deleted": "The job was deleted, and it ended as {outcome} {ended}.",
    "settled": "An operator settled it, after a restore, before it was tried again: it ended as {outcome} {ended}.",
    "orphaned": "Its row was gone from the queue, as after a restore of that alone: it ended as {outcome} {ended}.",
    "unreadable": "It ended as {outcome} {ended}, and its row could not be read: slotwise jobs list says why.",
    "next slot": "It ended as {outcome} {ended}. It is not tried again: the next slot came first, and is the next try.",
    "give_up": "It ended as {outcome} {ended}. Another start was ordered, and refused: the job starts each slot once.",
}

#: Of a slot that was begun, and went from the queue alone by a restore, until the job went past it.
PASSED = "It was begun, and a restore of the queue alone lost sight of it ({reason}): it ended as {outcome} {ended}."

#: Why a slot waits that was claimed before.
AGAIN = {
    "retry": "it is tried again",
    "backfill": "a backfill has it run again",
    "rerun": "its worker fell silent",
    "snoozed": "its handler asked for a later time",
    "shutdown": "its worker was stopped",
    "lost": "its worker lost the claim",
    "suspect": "its worker could not be sure of the claim",
    "queued": "its worker had no thread for it in time",
    "unknown": "its worker did not know of the claim",
    "mark refused": "its start was not allowed any more",
    "mark not acknowledged": "nobody knows whether its start was allowed",
    "operator": "an operator called it off",
    "overlap": "a newer slot called it off",
    "timeout": "its time was over",
    "unreadable": "its row could not be read by the worker that took it",
    "recovery": "it has a place among the late starts of a recovery: recovery_rate",
    "min_interval": "another start of the job was too near: min_interval",
}


def skipped(reason: str | None) -> str | None:
    """The sentence for a slot that did not run."""
    return SKIPPED.get(reason or "")


def ended(outcome: str, reason: str | None, when: str) -> str:
    """The sentence for a slot that has ended; ``when``: at its time, and after how long."""
    if outcome == "succeeded":
        return f"It succeeded {when}."
    if reason is None:
        return f"It ended as {outcome} {when}, for good."
    unsaid = "It ended as {outcome} ({reason}) {ended}."  # a handler's own words
    is_passed = outcome == "lost" and reason in SKIPPED
    sentence = PASSED if is_passed else ENDED.get(reason, unsaid)
    return sentence.format(outcome=outcome, reason=reason, ended=when)


def again(reason: str | None) -> str | None:
    """Why it waits, as a part of a sentence."""
    return AGAIN.get(reason or "")


def unbegun(reason: str | None) -> str:
    """Who called it off before it began, as a part of a sentence."""
    return "the job was deleted" if reason == "deleted" else AGAIN.get(reason or "") or "it was called off"
