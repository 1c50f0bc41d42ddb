"""What an application declares: handlers of events, and the types of their data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypedDict, cast

from slotwise import (
    ConfigurationError,
    InvalidJob,
    JobRegistry,
    OneTimeTask,
    Retry,
    task,
)
from slotwise.contrib.events.order import BLOCK, CONTINUE, OnFailure
from slotwise.contrib.events.publishing import checked_event
from slotwise.contrib.events.subscriptions import Registration
from slotwise.spi import Definition, OnLost, define

#: The pauses of the guide: 30 s, doubled up to 5 min; the last attempt is a day after the first.
RETRY: Final = Retry.exponential(
    max_attempts=300, initial="30s", max_wait="5m", jitter="1s"
)


class HandlerPolicies(TypedDict, total=False):
    """The keywords of ``on``: those of ``@task`` that a handler may have."""

    on_lost: OnLost
    max_lost: int
    retry: Retry | None
    timeout: timedelta | str | None
    warn_after: timedelta | str | None
    priority: int
    isolation: Literal["process"] | None
    runs_on: Sequence[str]
    aliases: Sequence[str]
    concurrency: int | None
    rate_limit: str | None
    record: Literal["none", "failures", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A task that handles events. ``place``: where it was declared, for errors."""

    task: OneTimeTask[object, object]
    definition: Definition
    events: tuple[str, ...]
    on_failure: OnFailure
    place: str

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its former ones."""
        return (self.name, *self.definition.aliases)

    def registration(self) -> Registration:
        return Registration(
            handler=self.name,
            events=self.events,
            on_failure=self.on_failure,
            priority=self.definition.priority,
            former=self.definition.aliases,
        )


def handler_of(
    subject: object,
    events: Sequence[object],
    name: str | None,
    on_failure: str,
    policies: HandlerPolicies,
) -> Handler:
    """Return the handler that a function, or a one-time task, is. Raise InvalidJob."""
    place = _place(subject)
    if not events:
        raise InvalidJob(f'{place}: name the events, such as @events.on("order.paid")')
    names = tuple(dict.fromkeys(checked_event(one, place) for one in events))
    if on_failure not in (BLOCK, CONTINUE):
        raise InvalidJob(
            f"{place}: on_failure={on_failure!r:.40}; expected {BLOCK!r} (later events of the "
            f"key wait) or {CONTINUE!r}"
        )
    made = _task(subject, name, policies, place)
    return Handler(
        task=made,
        definition=define(made),
        events=names,
        on_failure=CONTINUE if on_failure == CONTINUE else BLOCK,
        place=place,
    )


def _task(
    subject: object, name: str | None, policies: HandlerPolicies, place: str
) -> OneTimeTask[object, object]:
    if isinstance(subject, type) and issubclass(subject, OneTimeTask):
        subject = subject()
    if isinstance(subject, OneTimeTask):
        if name is not None or policies:
            given = sorted({**policies, **({"name": name} if name else {})})
            raise InvalidJob(
                f"{place} is a task already; declare {', '.join(given)} there, not in on(…)"
            )
        return subject
    if not callable(subject):
        raise InvalidJob(f"{place} is no function; decorate a function or a task")
    chosen = {"retry": RETRY, **policies}
    if name is not None:
        chosen["name"] = name
    decorator = task(**chosen)  # type: ignore[call-overload]
    make = cast("Callable[..., OneTimeTask[object, object]]", decorator)
    return make(subject)


def refuse_double(handler: Handler, known: Collection[Handler]) -> None:
    """Raise InvalidJob if one of the names of a handler is another one's."""
    for other in known:
        if taken := sorted(set(handler.names) & set(other.names)):
            raise InvalidJob(
                f"{handler.place}: the handler {taken[0]!r} is registered already, by "
                f"{other.place}; give one of them another name"
            )


def _place(subject: object) -> str:
    module = getattr(subject, "__module__", None)
    name = getattr(subject, "__qualname__", None)
    if module is None or name is None:
        return f"{subject!r:.80}"
    return f"{module}.{name}"


def missing_tasks(
    handlers: Iterable[Handler], registry: JobRegistry
) -> list[OneTimeTask[object, object]]:
    """Return the tasks of handlers that the registry has not got.

    Raises ConfigurationError if another task or job has the name of one: it would get the
    handler's events.
    """
    found = list[OneTimeTask[object, object]]()
    for one in handlers:
        other = registry.definitions.get(one.name)
        if other is None:
            found.append(one.task)
        elif other.handler != one.definition.handler:
            raise ConfigurationError(
                f"the handler {one.name!r}, declared by {one.place}, has the name of another job "
                "or task of this registry; give one of them another name"
            )
    return found
