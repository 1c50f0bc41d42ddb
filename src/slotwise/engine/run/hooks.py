"""What an application adds to the life of a worker, and to its attempts and transactions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from slotwise.engine.run.event_loop import Lifespan
from slotwise.jobs.context import Context
from slotwise.jobs.definition import Definition
from slotwise.model.events import Listener
from slotwise.store.queue.queue import AtInsert
from slotwise.store.slots.settlement_hooks import AfterSettle

Interceptor: TypeAlias = Callable[[Context], AbstractContextManager[object]]
#: Called in a thread of the worker before each attempt. Skip refuses the start for good; with any
#: other exception the attempt has failed. A context manager that it returns is left when the
#: attempt has ended, or its start is refused.
BeforeStart: TypeAlias = Callable[[Context], AbstractContextManager[object] | None]


@runtime_checkable
class VerifiedAtStart(Protocol):
    """A ``before_start`` hook that is verified when a worker starts."""

    def verify_at_start(self, names: Collection[str]) -> object:
        """Raise what ends the start. ``names`` are those of all jobs and tasks of the
        application.
        """


@runtime_checkable
class VerifiesHooks(Protocol):
    """A handler that runs only under certain ``before_start`` hooks."""

    def verify_hooks(self, hooks: Sequence[BeforeStart]) -> object:
        """Raise what ends the start of a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The functions of an application; see JobRegistry."""

    lifespan: Lifespan | None = None
    listeners: tuple[Listener, ...] = ()
    interceptors: tuple[Interceptor, ...] = ()
    before_start: tuple[BeforeStart, ...] = ()
    at_insert: tuple[AtInsert, ...] = ()
    #: By job or task.
    after_settle: Mapping[str, AfterSettle] = field(default_factory=dict)

    def verify(
        self, definitions: Iterable[Definition], names: Collection[str]
    ) -> None:
        """Raise what a handler or a hook raises that is verified at the start of a worker.

        ``names`` are those of all jobs and tasks of the application.
        """
        for found in definitions:
            if isinstance(found.handler, VerifiesHooks):
                found.handler.verify_hooks(self.before_start)
        for hook in self.before_start:
            if isinstance(hook, VerifiedAtStart):
                hook.verify_at_start(names)
