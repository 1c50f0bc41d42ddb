"""What an attempt came to: the handler's result, its exception, or the end of a fork, as a value
for the settlement.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

from slotwise.engine.run.active_claims import Holding
from slotwise.errors import InvalidPayload, JobCancelled, NewerPayload
from slotwise.jobs.context import Cancel, Fail, Skip, Snooze, Steering
from slotwise.jobs.definition import Definition
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
from slotwise.payload.converters import encode_result

#: Frames of this package at the top of a traceback are left out.
_OWN = str(Path(__file__).parent)


class LeftAlone(Exception):
    """Only a newer release can read the data of this attempt, whose handler has not been
    called.
    """


class Unfit(Fail):
    """No release can read the data of this attempt, whose handler has not been called."""


def returned(result: object, holding: Holding, definition: Definition) -> AttemptOutcome:
    if isinstance(result, Steering):
        word = type(result).__name__
        return Failed(
            f"the handler returned {result!r}, which has no effect; raise it: `raise {word}(…)`",
            final=True,
        )
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        return Failed(
            "the handler returned a coroutine that was not awaited; declare it `async def`",
            final=True,
        )
    if holding.unawaited is not None:
        word = f"ctx.{holding.unawaited}"
        return Failed(
            f"{word} was given an async connection and not awaited; write `await {word}(…)`",
            final=True,
        )
    if definition.leaves_traces:
        holding.follow_ups = holding.follow_ups or FollowUps()
        if definition.result_retention is not None:
            try:
                holding.follow_ups.result = encode_result(result)
            except (
                InvalidPayload
            ) as error:  # the task still succeeds: a retry would not help
                holding.follow_ups.problem = str(error)
    elif holding.is_plain:
        return SUCCEEDED
    return timed_out(holding, definition) or Succeeded(
        promised=holding.promised, follow_ups=holding.follow_ups
    )


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
    reason = holding.stop_reason
    if reason is not None and isinstance(error, JobCancelled | asyncio.CancelledError):
        return timed_out(holding, definition) or Aborted(reason)
    match error:
        case Snooze(duration=duration):
            return timed_out(holding, definition) or Snoozed(duration)
        case Cancel(reason=said):
            return timed_out(holding, definition) or Cancelled(storable(said))
        case Skip(reason=said):
            return Cancelled(storable(said)) if holding.started else Skipped(storable(said))
        case LeftAlone() | NewerPayload() if (
            isinstance(error, LeftAlone) or not holding.started
        ):
            return HandedBack(Reason.NEWER, storable(error))
        case Unfit(reason=said):
            return Failed(storable(said), final=True, reason=Reason.UNREADABLE)
        case Fail(reason=said):
            return Failed(storable(said), final=True, promised=holding.promised)
    try:
        text = error_text(error)
    except (
        Exception
    ):  # any exception must end the claim, even one whose traceback cannot be formatted
        text = type(error).__name__
    final = definition.retry is not None and not definition.retry.retries(error)
    error.__traceback__ = _of_handler(error)  # as it is stored
    return Failed(text, exception=error, final=final, promised=holding.promised)


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
                error.code if isinstance(error.code, int) else int(error.code is not None)
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
