"""How an attempt ended, as a value: what its handler returned or raised, and whether it was told to stop."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import traceback
from pathlib import Path

from slotwise.engine.run.active_claims import Holding
from slotwise.engine.run.results import kept
from slotwise.errors import JobCancelled
from slotwise.jobs.control_flow import Cancel, Fail, Snooze, Steering
from slotwise.jobs.definition import Definition
from slotwise.model.durations import format_duration
from slotwise.model.records import SUCCEEDED, Aborted, AttemptOutcome, Cancelled, Failed, Snoozed, Succeeded
from slotwise.model.vocabulary import Reason

#: What the ledger keeps of an error's text.
ERROR_LIMIT = 16_384
#: Its frames begin each traceback, and tell nobody anything.
_RUNNER = str(Path(__file__).with_name("runner.py"))


def returned(result: object, holding: Holding, definition: Definition) -> AttemptOutcome:
    if result is not None:
        if isinstance(result, Steering):
            word = type(result).__name__
            return Failed(
                f"the handler returned {result!r}, which steers nothing; raise it: `raise {word}(…)`", final=True
            )
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            return Failed("the handler returned a coroutine that nobody awaited; declare it `async def`", final=True)
    if holding.unawaited is not None:
        word = f"ctx.{holding.unawaited}"
        return Failed(
            f"{word} was given an async connection and nobody awaited it; write `await {word}(…)`", final=True
        )
    if definition.leaves_traces:
        holding.sequel = kept(result, definition, holding.sequel)
    elif holding.stop_reason is None and not holding.promised and holding.sequel is None:
        return SUCCEEDED
    return timed_out(holding, definition) or Succeeded(promised=holding.promised, sequel=holding.sequel)


def timed_out(holding: Holding, definition: Definition) -> AttemptOutcome | None:
    """An attempt that was told to stop has failed, also if its handler came to a good end after that."""
    if holding.stop_reason != Reason.TIMEOUT:
        return None
    said = f"timed out after {format_duration(definition.timeout)}" if definition.timeout else "timed out"
    return Failed(said, promised=holding.promised)


def raised(error: BaseException, holding: Holding, definition: Definition) -> AttemptOutcome:
    reason = holding.stop_reason
    if reason is not None and isinstance(error, JobCancelled | asyncio.CancelledError):
        return timed_out(holding, definition) or Aborted(reason)
    match error:
        case Snooze(duration=duration):
            return timed_out(holding, definition) or Snoozed(duration)
        case Cancel(reason=said):
            return timed_out(holding, definition) or Cancelled(storable(said))
        case Fail(reason=said):
            return Failed(storable(said), final=True, promised=holding.promised)
    try:
        text = error_text(error)
    except Exception:  # an exception may be anything; the claim must not stay held for want of words
        text = type(error).__name__
    return Failed(text, exception=error, promised=holding.promised)


#: How many forks lie between the first process and this one. To ask the system for a process number takes as long as
#: all else around a short handler.
_forks: list[None] = []

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forks.append(None))


def descent() -> int:
    """A number that differs between a process and the children that it forks."""
    return len(_forks)


def leave_fork(origin: int, outcome: AttemptOutcome) -> None:
    """Where a handler has forked, its child comes out of it as well. The attempt is the parent's: the child ends here,
    with the status that Python would give it. Nobody else could: all other threads are in the parent. ``origin``: the
    descent before the handler was entered.
    """
    if descent() == origin:
        return
    error = outcome.exception if isinstance(outcome, Failed) else None
    status = int(isinstance(outcome, Failed))
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif isinstance(outcome, Failed):
        print(outcome.error, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def error_text(error: BaseException) -> str:
    """The traceback from the handler on, as it is stored; the last line names the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == _RUNNER:
        trace = trace.tb_next
    return storable("".join(traceback.format_exception(type(error), error, trace)))


def storable(said: object) -> str:
    """As a database can keep it: without NUL and halves of letters, which are escaped, and cut in the middle."""
    text = str(said).replace("\x00", "\\x00").strip().encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= ERROR_LIMIT:
        return text
    half = ERROR_LIMIT // 2
    return f"{text[:half]}\n… {len(text) - ERROR_LIMIT} characters left out …\n{text[-half:]}"
