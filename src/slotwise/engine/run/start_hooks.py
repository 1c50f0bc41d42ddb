"""The hooks of an application; those before a start refuse it, or hold something until the attempt has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TypeAlias

from slotwise.engine.run.active_claims import Holding
from slotwise.jobs.context import Context
from slotwise.store.queue.queue import AtInsert
from slotwise.store.slots.settlements import AfterSettle

logger = logging.getLogger(__name__)

#: ``before_start(ctx)`` is called in a thread of the worker before each attempt, also of ``async def`` and isolated
#: handlers. It raises Skip to refuse the start for good; with any other exception the attempt has failed. A context
#: manager that it returns is entered before the handler starts, and left when the attempt has ended, or when its start
#: is refused after all.
BeforeStart: TypeAlias = Callable[[Context], AbstractContextManager[object] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Functions of an application that take part in a start, or in a transaction of the queue."""

    before_start: tuple[BeforeStart, ...] = ()
    at_insert: tuple[AtInsert, ...] = ()
    after_settle: tuple[AfterSettle, ...] = ()


NO_HOOKS = Hooks()


class StartHooks:
    """The hooks of a worker, in the order in which they were registered."""

    def __init__(self, hooks: Sequence[BeforeStart] = ()) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def enter(self, holding: Holding, ctx: Context) -> None:
        """Call the hooks, and hold what they return. Raise what a hook raises; what was entered before stays held."""
        holding.held = stack = ExitStack()
        for hook in self._hooks:
            if (held := hook(ctx)) is not None:
                stack.enter_context(held)

    def leave(self, holding: Holding) -> None:
        """Leave what the hooks have returned, the last first. An error is logged: the attempt's outcome stands."""
        stack, holding.held = holding.held, None
        try:
            if stack is not None:
                stack.close()
        except Exception:
            logger.exception("what a before_start hook returned has failed on the way out; the outcome stands")
