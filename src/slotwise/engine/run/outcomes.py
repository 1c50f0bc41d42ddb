"""What an attempt came to: the handler's result, its exception, or the end of a fork, as a value
for the settlement.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from slotwise.engine.run.active_claims import Holding
from slotwise.errors import InvalidPayload, JobCancelled, NewerPayload
from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import leaves
from slotwise.jobs.steering import Cancel, Fail, Skip, Snooze, Steering
from slotwise.model.durations import format_duration
from slotwise.model.error_text import storable
from slotwise.model.records import (
    SUCCEEDED,
    Aborted,
    AttemptOutcome,
    Cancelled,
    Failed,
    FollowUps,
    HandedBack,
    Skipped,
    Snoozed,
    Succeeded,
)
from slotwise.model.vocabulary import Reason
from slotwise.payload.results import encode_result

#: Frames of this package at the top of a traceback are left out.
_OWN = str(Path(__file__).parent)


#: Raised by a handler that was asked to stop.
_STOPPED = (JobCancelled, asyncio.CancelledError)


class LeftAlone(Exception):
    """Only a newer release can read the data of this attempt, whose handler has not been
    called.
    """


class Unfit(Fail):
    """No release can read the data of this attempt, whose handler has not been called."""


#: Exceptions that ask for an outcome; ``Snooze`` does so, too.
_REQUESTS = (Cancel, Skip, Fail, LeftAlone, NewerPayload)


def returned(
    result: object, holding: Holding, definition: Definition
) -> AttemptOutcome:
    if (slip := _slip(result, holding)) is not None:
        return Failed(slip, final=True)
    if definition.leaves_traces or holding.checkpointed:
        holding.follow_ups = holding.follow_ups or FollowUps()
        holding.follow_ups.checkpointed = holding.checkpointed
        if definition.result_retention is not None:
            _keep_result(holding.follow_ups, result)
    elif holding.is_plain:
        return SUCCEEDED
    return timed_out(holding, definition) or Succeeded(
        promised=holding.promised, follow_ups=holding.follow_ups
    )


def _slip(result: object, holding: Holding) -> str | None:
    """Return what is wrong with the handler if it has no effect; another attempt cannot mend it."""
    if isinstance(result, Steering):
        word = type(result).__name__
        return f"the handler returned {result!r}, which has no effect; raise it: `raise {word}(…)`"
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        return "the handler returned a coroutine that was not awaited; declare it `async def`"
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return "the handler returned a generator, which nothing iterates over"
    if holding.unawaited is not None:
        word = f"ctx.{holding.unawaited}"
        return f"{word} was given an async connection and not awaited; write `await {word}(…)`"
    return None


def _keep_result(follow_ups: FollowUps, result: object) -> None:
    try:
        follow_ups.result = encode_result(result)
    except InvalidPayload as error:  # the task still succeeds: a retry would not help
        follow_ups.problem = str(error)


def timed_out(holding: Holding, definition: Definition) -> AttemptOutcome | None:
    """Return the failure of an attempt that timed out, even if its handler returned after that,
    else None.
    """
    if holding.stop_reason != Reason.TIMEOUT:
        return None
    said = (
        f"timed out after {format_duration(definition.timeout)}"
        if definition.timeout
        else "timed out"
    )
    return Failed(said, promised=holding.promised, reason=Reason.TIMEOUT)


def raised(
    error: BaseException, holding: Holding, definition: Definition
) -> AttemptOutcome:
    """Return what an exception means. A group counts as what all of its errors are."""
    errors = leaves(error)
    reason = holding.stop_reason
    if reason is not None and all(isinstance(one, _STOPPED) for one in errors):
        return timed_out(holding, definition) or Aborted(reason)
    request = _request(errors)
    if request is not None:
        outcome = _requested(request, holding, definition)
        if outcome is not None:
            return outcome
    is_final = any(isinstance(one, Fail) for one in errors)
    return _failed(error, holding, definition, is_final=is_final)


def _request(errors: Sequence[BaseException]) -> BaseException | None:
    """Return the request that these errors agree on, of several snoozes the longest; else None."""
    snoozes = [one for one in errors if isinstance(one, Snooze)]
    if len(snoozes) == len(errors):
        return max(snoozes, key=lambda snooze: snooze.duration)
    for kind in _REQUESTS:
        if all(isinstance(one, kind) for one in errors):
            return errors[0]
    return None


def _requested(
    request: BaseException, holding: Holding, definition: Definition
) -> AttemptOutcome | None:
    match request:
        case Snooze(duration=duration):
            return timed_out(holding, definition) or Snoozed(duration)
        case Cancel(reason=said):
            return timed_out(holding, definition) or Cancelled(storable(said))
        case Skip(reason=said, detail=detail):
            error = None if detail is None else storable(detail)
            kind = Cancelled if holding.started else Skipped
            return kind(storable(said), error)
        case Unfit(reason=said):
            return Failed(storable(said), final=True, reason=Reason.UNREADABLE)
        case Fail(reason=said):
            return Failed(storable(said), final=True, promised=holding.promised)
        case LeftAlone() | NewerPayload():
            is_met_by_handler = isinstance(request, NewerPayload) and holding.started
            return (
                None
                if is_met_by_handler
                else HandedBack(Reason.NEWER, storable(request))
            )
    return None


def _failed(
    error: BaseException, holding: Holding, definition: Definition, *, is_final: bool
) -> Failed:
    try:
        text = error_text(error)
    except Exception:
        # Any exception must end the claim, even one whose traceback cannot be formatted.
        text = type(error).__name__
    if definition.retry is not None and not definition.retry.retries(error):
        is_final = True
    error.__traceback__ = _of_handler(error)  # as it is stored
    return Failed(text, exception=error, final=is_final, promised=holding.promised)


#: One entry per fork between the first process and this one. Asking the system for a process id
#: takes as long as everything else around a short handler.
forks: list[None] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: forks.append(None))


def leave_fork(outcome: AttemptOutcome) -> None:
    """End a fork that a handler made and that returns from the handler as well.

    The attempt belongs to the parent, so the child exits here, with the status that Python would
    give it. All other threads are in the parent.

    Race: a child that went on after an error here, as on a full disk, would be a second worker
    under the parent's claims.
    """
    status = int(isinstance(outcome, Failed))
    try:
        error = outcome.exception if isinstance(outcome, Failed) else None
        if isinstance(error, SystemExit):
            status = (
                error.code
                if isinstance(error.code, int)
                else int(error.code is not None)
            )
        elif isinstance(outcome, Failed):
            print(outcome.error, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def error_text(error: BaseException) -> str:
    """Return the traceback from the handler on, as it is stored; the last line names the error."""
    return storable(
        "".join(traceback.format_exception(type(error), error, _of_handler(error)))
    )


def _of_handler(error: BaseException) -> TracebackType | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next
    return trace
