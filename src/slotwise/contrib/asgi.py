"""ASGI: a lifespan for Starlette and FastAPI, and middleware for any other ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, Final, TypeAlias

from slotwise import ConfigurationError
from slotwise.contrib.hosting import checked_application
from slotwise.spi import START_WAIT, Host, RegistrySource, check_lifespan

Scope: TypeAlias = MutableMapping[str, object]
Message: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Lifespan: TypeAlias = Callable[
    [Any], AbstractAsyncContextManager[Mapping[str, object] | None]
]

#: The key of the Host in the lifespan state: ``request.state.slotwise``.
STATE: Final = "slotwise"

_HOOK = "start it in each worker: the server must run the lifespan after its fork"


def slotwise_lifespan(
    registry: RegistrySource,
    *,
    worker: bool = True,
    start_wait: timedelta | str = START_WAIT,
    lifespan: Lifespan | None = None,
) -> Callable[[object], AbstractAsyncContextManager[dict[str, object]]]:
    """Return a lifespan for ``FastAPI(lifespan=…)`` or ``Starlette(lifespan=…)`` that runs the
    registry.

    ``registry`` is a JobRegistry, or a function that makes one in each process. With ``worker`` a
    worker runs in each process of the server, and ``async def`` handlers run on the server's loop.
    Without, there is the client alone. ``start_wait``: how long the server's start waits for the
    worker; an absent database does not keep it longer. ``lifespan`` is the application's own; it
    is entered first, left last, and its state is passed on.

    Raises, at the server's start, what ``JobRegistry.start`` raises within ``start_wait``.
    """
    host = Host(
        registry,
        worker=worker,
        start_wait=start_wait,
        hook=_HOOK,
        caller="slotwise_lifespan",
    )
    check_lifespan(lifespan)

    @asynccontextmanager
    async def run(app: object) -> AsyncIterator[dict[str, object]]:
        if lifespan is None:
            async with host.running():
                yield {STATE: host}
            return
        async with lifespan(app) as state, host.running():
            yield {**(state or {}), STATE: host}

    return run


class SlotwiseASGI:
    """ASGI middleware that runs a registry with the server: ``application =
    SlotwiseASGI(application, registry)``.

    It answers the server's lifespan messages itself if the wrapped application does not (Django's
    does not), and otherwise passes them on. Requests find the Host at
    ``scope["state"]["slotwise"]`` if the server keeps a state. Arguments are those of
    ``slotwise_lifespan``.
    """

    def __init__(
        self,
        application: Application,
        registry: RegistrySource,
        *,
        worker: bool = True,
        start_wait: timedelta | str = START_WAIT,
    ) -> None:
        checked_application(application, "SlotwiseASGI")
        self._application = application
        self.host = Host(
            registry,
            worker=worker,
            start_wait=start_wait,
            hook=_HOOK,
            caller="SlotwiseASGI",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan."""
        if scope["type"] != "lifespan":
            await self._application(scope, receive, send)
            return
        if isinstance(state := scope.get("state"), MutableMapping):
            state[STATE] = self.host
        await _Lifespan(self._application, self.host).run(scope, receive, send)


class _Lifespan:
    """The lifespan messages, for the wrapped application and for us."""

    def __init__(self, application: Application, host: Host) -> None:
        self._application = application
        self._host = host

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start, wait for the server's shutdown, stop. Raises after a failure is reported, as
        Starlette does.
        """
        await receive()
        inbox: asyncio.Queue[Message] = asyncio.Queue()
        outbox: asyncio.Queue[Message | None] = asyncio.Queue()
        inner = asyncio.ensure_future(self._inner(scope, inbox.get, outbox))
        phase = "startup"
        try:
            await self._pass("startup", inbox, outbox)
            async with self._host.running():
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
            await self._pass("shutdown", inbox, outbox)
            await send({"type": "lifespan.shutdown.complete"})
        except Exception as error:
            await send({"type": f"lifespan.{phase}.failed", "message": str(error)})
            raise
        finally:
            inner.cancel()

    async def _pass(
        self,
        phase: str,
        inbox: asyncio.Queue[Message],
        outbox: asyncio.Queue[Message | None],
    ) -> None:
        """Pass a message on, and wait for the application's answer. Raises ConfigurationError if
        it has failed.
        """
        await inbox.put({"type": f"lifespan.{phase}"})
        answer = await outbox.get()
        if answer is None:
            await outbox.put(None)  # it does not take part, also later
        elif answer["type"] == f"lifespan.{phase}.failed":
            raise ConfigurationError(
                f"the application's own {phase} failed: {answer.get('message') or 'see its log'}"
            )

    async def _inner(
        self, scope: Scope, receive: Receive, outbox: asyncio.Queue[Message | None]
    ) -> None:
        """Run the application's own lifespan. An exception before its first answer means that it
        has none.
        """
        try:
            await self._application(scope, receive, outbox.put)
        except (
            Exception
        ):  # the protocol: such an application does not support lifespans
            pass
        finally:
            await outbox.put(None)


def host_of(connection: object) -> Host:
    """Return the Host of a request or WebSocket of Starlette or FastAPI.

    Raises ConfigurationError if the application runs without ``slotwise_lifespan``, or in a child
    of the process that has started the worker.
    """
    found = getattr(getattr(connection, "state", None), STATE, None)
    if not isinstance(found, Host):
        raise ConfigurationError(
            "this application runs without slotwise; pass "
            "lifespan=slotwise_lifespan(registry), and in tests write: "
            "with TestClient(app) as client"
        )
    return found
