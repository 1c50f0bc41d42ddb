"""Hooks before the start of an attempt: they may refuse it, or hold something until it has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeAlias

from slotwise.engine.run.active_claims import Holding
from slotwise.jobs.context import JobContext, Skip
from slotwise.model.records import AttemptOutcome, Skipped

logger = logging.getLogger(__name__)

#: ``before_start(ctx)`` is called in a thread of the worker before each attempt, also of ``async def`` and isolated
#: handlers. It raises Skip to refuse the start for good. A context manager that it returns is entered before the
#: handler starts, and left when the attempt has ended, or when its start is refused after all.
BeforeStart: TypeAlias = Callable[[JobContext], AbstractContextManager[Any] | None]


class StartHooks:
    """The hooks of a worker, in the order in which they were registered."""

    def __init__(self, hooks: Sequence[BeforeStart] = ()) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def enter(self, holding: Holding, ctx: JobContext) -> AttemptOutcome | None:
        """Call the hooks, and hold what they return. Return the outcome of a start that is skipped, else None.

        Any other exception of a hook is raised: the attempt fails with it.
        """
        holding.held = stack = ExitStack()
        try:
            for hook in self._hooks:
                if (held := hook(ctx)) is not None:
                    stack.enter_context(held)
        except Skip as skip:
            return Skipped(skip.reason)
        return None

    def leave(self, holding: Holding) -> None:
        """Leave what the hooks have returned, the last first. An error is logged: the attempt's outcome stands."""
        stack, holding.held = holding.held, None
        try:
            if stack is not None:
                stack.close()
        except Exception:
            logger.exception("what a before_start hook returned has failed on the way out; the outcome stands")
