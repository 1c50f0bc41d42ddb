"""What a handler leaves in the context of its thread, the next one does not see."""

from __future__ import annotations

import asyncio
import decimal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from asgiref.local import Local
from tests.kit.records import SUCCEEDED
from tests.unit.engine.parts import Rig

from slotwise import Context, Every, JobContext, job

tenant: ContextVar[str] = ContextVar("tenant", default="none")
#: Django keeps its active time zone and language in such ones.
active = Local()


def set_tenant(ctx: JobContext) -> None:
    tenant.set("customer-17")


def set_precision(ctx: JobContext) -> None:
    decimal.getcontext().prec = 3


def rename_thread(ctx: JobContext) -> None:
    threading.current_thread().name = "of the customer"


def activate_zone(ctx: JobContext) -> None:
    active.zone = "Asia/Tokyo"


def thread_name() -> str:
    return threading.current_thread().name


@pytest.mark.parametrize(
    ("leak", "look"),
    [
        (set_tenant, tenant.get),
        (set_precision, lambda: decimal.getcontext().prec),
        (rename_thread, thread_name),
        (activate_zone, lambda: getattr(active, "zone", None)),
    ],
    ids=["context variable", "decimal context", "thread's name", "Django's local"],
)
def test_the_next_handler_on_the_thread_sees_nothing(
    leak: Callable[[JobContext], None], look: Callable[[], object]
) -> None:
    """A tenant's id, a user or a log context of another task would be a leak of data."""
    seen: list[object] = []

    def observe(ctx: JobContext) -> None:
        seen.append(look())

    observer = job(name="observer", schedule=Every("1h"))(observe)
    leaking = job(name="leaking", schedule=Every("1h"))(leak)
    with Rig(observer, leaking, capacity=1) as rig:
        for name in ("observer", "leaking", "observer"):
            assert rig.run(name) == SUCCEEDED
    assert seen[0] == seen[1]


def _sync(body: Callable[[JobContext], None]) -> object:
    return job(name="job", schedule=Every("1h"))(body)


def _async(body: Callable[[JobContext], None]) -> object:
    async def handler(ctx: JobContext) -> None:
        body(ctx)

    return job(name="job", schedule=Every("1h"))(handler)


BOTH = pytest.mark.parametrize("make", [_sync, _async], ids=["def", "async def"])


@BOTH
def test_interceptors_share_the_context_of_the_handler(
    make: Callable[[Callable[[JobContext], None]], object],
) -> None:
    """One that sets a variable can reset it with its token."""
    seen: list[str] = []

    @contextmanager
    def of_customer(ctx: Context[Any]) -> Iterator[None]:
        token = tenant.set("customer-17")
        yield
        tenant.reset(token)

    with Rig(
        make(lambda ctx: seen.append(tenant.get())), interceptors=(of_customer,)
    ) as rig:
        assert rig.run() == SUCCEEDED
    assert seen == ["customer-17"]


@BOTH
def test_start_hooks_share_a_context_that_ends_with_the_attempt(
    make: Callable[[Callable[[JobContext], None]], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What a hook sets before the start, its context manager can reset after the end."""
    before: list[str] = []

    @contextmanager
    def held(token: Any) -> Iterator[None]:
        yield
        tenant.reset(token)

    def hook(ctx: Context[Any]) -> Any:
        before.append(tenant.get())
        return held(tenant.set("customer-17"))

    with Rig(make(lambda ctx: None), before_start=(hook,), capacity=1) as rig:
        for _ in range(2):
            assert rig.run() == SUCCEEDED
    assert before == ["none", "none"]
    assert caplog.records == []


def test_coroutines_on_the_loop_are_apart() -> None:
    """As asyncio has it for each task."""
    seen: list[str] = []

    @job(name="job", schedule=Every("1h"))
    async def handler(ctx: JobContext) -> None:
        seen.append(tenant.get())
        tenant.set("customer-17")
        await asyncio.sleep(0)

    with Rig(handler) as rig:
        for _ in range(2):
            assert rig.run() == SUCCEEDED
    assert seen == ["none", "none"]
