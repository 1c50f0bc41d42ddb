"""FastAPI: a lifespan, a dependency that yields the client, and a health router.

app = FastAPI(lifespan=slotwise_lifespan(registry))
app.include_router(health_router())

@app.post("/orders")
def create(order: Order, client: SlotwiseClient) -> None:
    client.schedule(send_mail, {"to": order.email})
"""

from __future__ import annotations

import asyncio
from typing import Annotated
from weakref import WeakKeyDictionary

from slotwise import Client, ConfigurationError, JobRegistry
from slotwise.contrib.asgi import SlotwiseASGI, host_of, slotwise_lifespan
from slotwise.contrib.injection import FastAPIDependencies
from slotwise.contrib.readiness import LIMIT, Readiness
from slotwise.spi import Host

try:
    from fastapi import APIRouter, Depends
    from fastapi.responses import JSONResponse
    from starlette.requests import HTTPConnection
except ImportError:
    raise ConfigurationError(
        "this needs FastAPI; run: pip install 'slotwise[fastapi]'"
    ) from None

__all__ = [
    "FastAPIDependencies",
    "SlotwiseASGI",
    "SlotwiseClient",
    "SlotwiseRegistry",
    "health_router",
    "slotwise_client",
    "slotwise_lifespan",
    "slotwise_registry",
]


def slotwise_client(connection: HTTPConnection) -> Client:
    """Return the client of this application's registry: ``client: Annotated[Client,
    Depends(slotwise_client)]``.

    Raises ConfigurationError without ``slotwise_lifespan``.
    """
    return host_of(connection).client


def slotwise_registry(connection: HTTPConnection) -> JobRegistry:
    """Return the registry of this application, for operations and inspection. Raises what
    ``slotwise_client`` does.
    """
    return host_of(connection).registry


#: The annotation of an argument that receives the client.
SlotwiseClient = Annotated[Client, Depends(slotwise_client)]
#: The annotation of an argument that receives the registry.
SlotwiseRegistry = Annotated[JobRegistry, Depends(slotwise_registry)]


def health_router(prefix: str = "/health", *, details: bool = False) -> APIRouter:
    """Return a router with two checks: ``live`` and ``ready``, below ``prefix``.

    ``live`` is 200 unless this process's worker cannot start. ``ready`` is 200 if the worker runs
    and the database answers within five seconds; else 503. All requests of one second share one
    answer. Both return the state. The reason may name hosts, databases and roles, so it is logged;
    with ``details`` the answer has it too, for routes that only you can reach.
    """
    if not isinstance(prefix, str) or (
        prefix and (not prefix.startswith("/") or prefix.endswith("/"))
    ):
        raise ConfigurationError(
            f"health_router({prefix!r:.80}): the prefix must be a path, e.g. '/health'"
        )
    router = APIRouter(prefix=prefix, tags=["slotwise"])
    readiness: WeakKeyDictionary[Host, Readiness] = WeakKeyDictionary()

    def answer(state: str, reason: str | None, *, is_well: bool) -> JSONResponse:
        told = reason if details or is_well else "the log says why"
        return JSONResponse(
            {"state": state, "reason": told}, status_code=200 if is_well else 503
        )

    @router.get("/live")
    async def live(connection: HTTPConnection) -> JSONResponse:
        host = host_of(connection)
        return answer(host.state, host.failure, is_well=host.state != "failed")

    @router.get("/ready")
    async def ready(connection: HTTPConnection) -> JSONResponse:
        host = host_of(connection)
        asked = readiness.setdefault(host, Readiness(host)).ask()
        try:
            reason = await asyncio.wait_for(
                asyncio.shield(asyncio.wrap_future(asked)), LIMIT
            )
        except TimeoutError:
            reason = f"the database has not answered for {LIMIT:g} s"
        return answer(host.state, reason, is_well=reason is None)

    return router
