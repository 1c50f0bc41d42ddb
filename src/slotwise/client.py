"""Schedules one-time tasks from anywhere: a web request, a script, a handler."""

from __future__ import annotations

import json
import uuid
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from slotwise.durations import parse_duration
from slotwise.errors import ConfigurationError, InstanceExists, InvalidJob
from slotwise.store.enqueue import Enqueue
from slotwise.store.fence import _sqlalchemy_connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from slotwise.job import OneTimeTask
    from slotwise.store.store import Store

#: The largest payload; whatever is larger belongs into a table or an object store, with its key as the payload.
PAYLOAD_LIMIT = 1_048_576


class Client:
    """Writes one-time tasks into the queue; works without a worker in this process."""

    def __init__(self, store: Callable[[], Store], wake: Callable[[], None] = lambda: None) -> None:
        self._make_store = store
        self._wake = wake

    def schedule(
        self,
        task: OneTimeTask | type[OneTimeTask] | str,
        data: Any = None,
        *,
        id: str | None = None,
        at: datetime | None = None,
        in_: timedelta | str | None = None,
        priority: int = 50,
        if_exists: Literal["raise", "keep"] = "raise",
        connection: Any = None,
    ) -> str:
        """Schedule ``task`` with ``data`` (anything JSON can say) and return its id.

        ``at`` (aware) or ``in_`` (``timedelta`` or ``"10s"``) say when, by the database's clock; without them
        it is due now. With ``connection`` (a SQLAlchemy Connection or Session) the row joins the caller's
        transaction: it exists if and only if that commits.

        Raises InstanceExists if the id is taken, unless ``if_exists="keep"``.
        """
        name = _task_name(task)
        if at is not None and in_ is not None:
            raise ConfigurationError(f"schedule({name!r}): both at and in_ are given; drop one of them")
        if at is not None and at.tzinfo is None:
            raise ConfigurationError(
                f"schedule({name!r}, at={at.isoformat()}): the instant has no zone; e.g. at=datetime(…, tzinfo=UTC)"
            )
        instance = id if id is not None else str(uuid.uuid4())
        if not instance.strip():
            raise ConfigurationError(f"schedule({name!r}, id={instance!r}): an id cannot be blank")
        delay = parse_duration(in_) if in_ is not None else timedelta(0)
        payload = encode(data, name)
        store = self._make_store()
        own = store.transaction() if connection is None else nullcontext(_sqlalchemy_connection(connection))
        with own as joined:
            added = Enqueue(store).task(
                joined, name, instance, data=payload, at=at.astimezone(UTC) if at else None, delay=delay,
                priority=priority,
            )  # fmt: skip
        if not added and if_exists == "raise":
            raise InstanceExists(
                f"task {name!r} with id {instance!r} is already scheduled; choose another id, or if_exists='keep'"
            )
        if added and connection is None:
            self._wake()  # a worker in this very process need not wait for its next poll
        return instance


def encode(data: Any, name: str) -> bytes | None:
    """The payload as JSON bytes; None for None. Raises InvalidJob with the reason."""
    if data is None:
        return None
    try:
        payload = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"the data for task {name!r} cannot be written as JSON: {error}") from None
    if len(payload) > PAYLOAD_LIMIT:
        raise InvalidJob(
            f"the data for task {name!r} has {len(payload)} bytes, at most {PAYLOAD_LIMIT} are allowed; store it "
            "elsewhere and schedule its key"
        )
    return payload


def _task_name(task: Any) -> str:
    name = task if isinstance(task, str) else getattr(task, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise InvalidJob(f"{task!r} is not a task; pass a OneTimeTask, a function under @task, or a name")
    return name
