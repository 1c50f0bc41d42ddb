"""What a reason in the ledger means for a slot, in a sentence."""

from __future__ import annotations

from slotwise.model.vocabulary import REASONS, Outcome, Reason, Sentences

#: Of a slot that was begun, and went from the queue alone by a restore, until the job went past it.
PASSED = "It was begun, and a restore of the queue alone lost sight of it ({reason}): it ended as {outcome} {ended}."
#: Of a reason without a sentence: a handler's own words, or those of a feature that is not installed here.
_UNSAID = "It ended as {outcome} ({reason}) {ended}."
_NONE = Sentences()


def skipped(reason: str | None) -> str | None:
    """The sentence for a slot that did not run."""
    return _of(reason).skipped


def ended(outcome: str, reason: str | None, when: str) -> str:
    """The sentence for a slot that has ended; ``when``: at its time, and after how long."""
    if outcome == Outcome.SUCCEEDED:
        return f"It succeeded {when}."
    if reason is None:
        return f"It ended as {outcome} {when}, for good."
    sentences = _of(reason)
    is_passed = outcome == Outcome.LOST and sentences.skipped is not None
    sentence = PASSED if is_passed else sentences.ended or _UNSAID
    return sentence.format(outcome=outcome, reason=reason, ended=when)


def again(reason: str | None) -> str | None:
    """Why it waits, as a part of a sentence."""
    return _of(reason).waits


def unbegun(reason: str | None) -> str:
    """Who called it off before it began, as a part of a sentence."""
    return "the job was deleted" if reason == Reason.DELETED else again(reason) or "it was called off"


def _of(reason: str | None) -> Sentences:
    return REASONS.get(reason or "", _NONE)
