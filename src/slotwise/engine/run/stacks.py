"""Where the handlers of this process are: the lines of code that each is in.

Only files, lines and functions; no values of variables, which may be secret.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType

from slotwise.engine.run.active_claims import Holding
from slotwise.engine.run.tuning import LONGEST_STACK, MOST_STACKS
from slotwise.model.records import AttemptOutcome

_RUNNER = "runner.py"
#: The functions of the runner that call a handler.
_CALLERS = ("_attempt", "_intercepted", "_call_async", "_attempt_isolated")


def stacks(held: Iterable[Holding]) -> list[dict[str, object]]:
    """Return name, id, version and stack of what runs; of very many, those that were claimed
    first.
    """
    running = [one for one in held if one.started and not one.ended]
    running.sort(key=lambda one: one.since)
    return [
        {
            "task": one.claim.row.task_name,
            "id": one.claim.row.task_instance,
            "version": one.claim.row.version,
            "stack": stack_of(one)[-LONGEST_STACK:],
        }
        for one in running[:MOST_STACKS]
    ]


def stack_of(holding: Holding) -> str:
    """Return the lines that a handler is in, the innermost last."""
    if holding.process is not None:
        return (
            f"it runs in the process {holding.process}, which this worker cannot look into; "
            f"on its host: py-spy dump --pid {holding.process}\n"
        )
    place = holding.runs_in
    frames = (
        list(_of_thread(place)) if isinstance(place, int) else list(_of_task(place))
    )
    return "".join(traceback.format_list(_without_ours(_summary(frames))))


def _of_thread(thread: int) -> Iterator[FrameType]:
    """Yield the frames of a thread, the outermost first. Race: it may have ended."""
    return reversed(list(_callers(sys._current_frames().get(thread))))


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _coroutines_of(task: asyncio.Task[AttemptOutcome] | None) -> Iterator[FrameType]:
    """Yield the frames of the coroutines that a task waits in, the outermost first."""
    found: object = None if task is None else task.get_coro()
    while found is not None:
        frame = getattr(found, "cr_frame", None) or getattr(found, "gi_frame", None)
        if frame is not None:
            yield frame
        found = getattr(found, "cr_await", None) or getattr(
            found, "gi_yieldfrom", None
        )


def _of_task(task: asyncio.Task[AttemptOutcome] | None) -> Iterator[FrameType]:
    """Yield the frames of the coroutines that a task waits in; and, if it does not wait, of what
    it calls.
    """
    last: FrameType | None = None
    for last in _coroutines_of(task):
        yield last
    for current in list(sys._current_frames().values()):
        called = list(_callers(current))
        if last in called:
            yield from reversed(called[: called.index(last)])


def _summary(frames: Iterable[FrameType]) -> traceback.StackSummary:
    return traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)


def _without_ours(found: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Leave out what comes before the call of the handler."""
    calls = [
        number
        for number, one in enumerate(found)
        if one.filename.endswith(_RUNNER) and one.name in _CALLERS
    ]
    return list(found[calls[-1] + 1 :]) if calls else list(found)
