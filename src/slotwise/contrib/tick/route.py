"""What a request for a tick is answered, for ASGI and WSGI alike."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from slotwise import (
    ConfigurationError,
    DatabaseProblem,
    JobCancelled,
    JobRegistry,
    SlotwiseError,
)
from slotwise.contrib.tick.access import Access, Check
from slotwise.contrib.tick.tick import (
    BUDGET,
    EARLY,
    Tick,
    TickResult,
    TickState,
    check_budget,
)
from slotwise.spi import Host, RegistrySource, parse_duration

logger = logging.getLogger("slotwise.tick")

#: In how many seconds to ask again while another tick runs in this process.
_RETRY_AFTER: Final = "5"
_FAILED: Final = "the tick failed; the log of this process says why"


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a JSON document, and headers of its own."""

    status: HTTPStatus
    document: Mapping[str, object]
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        return json.dumps(self.document).encode() + b"\n"

    def all_headers(self) -> list[tuple[str, str]]:
        """Return the headers to send, in order."""
        own = {
            "Content-Type": "application/json",
            "Content-Length": str(len(self.body)),
            "Cache-Control": "no-store",
        }
        return list({**own, **self.headers}.items())


def refusal(
    status: HTTPStatus, why: str, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return an error in one line."""
    return Answer(status, {"error": " ".join(why.split())}, headers or {})


class Route:
    """One tick at a time in this process, for requests that are let in.

    A tick goes on if its client goes away. When the interpreter ends, it drains.
    """

    def __init__(
        self,
        registry: RegistrySource,
        *,
        secret: str | Sequence[str] | None,
        check: Check | None,
        budget: timedelta | str = BUDGET,
        early: timedelta | str = EARLY,
        caller: str,
    ) -> None:
        self.host = Host(registry, worker=False, caller=caller)
        self._access = Access(secret, check)
        self._budget = parse_duration(budget)
        self._early = parse_duration(early)
        if isinstance(registry, JobRegistry):
            check_budget(registry, self._budget)
        self._turn = threading.Lock()
        self._tick: Tick | None = None
        self._is_hooked = False

    def answer(
        self,
        method: str,
        headers: Mapping[str, str],
        *,
        host_loop: asyncio.AbstractEventLoop | None = None,
    ) -> Answer:
        """Answer a request; it blocks until the tick has ended. Names of ``headers`` are in lower
        case.
        """
        if method != "POST":
            allow = {"Allow": "POST"}
            why = f"{method:.20} starts no tick; send POST"
            return refusal(HTTPStatus.METHOD_NOT_ALLOWED, why, allow)
        if not self._access.admits(headers):
            scheme = {"WWW-Authenticate": "Bearer"}
            why = "no tick without a valid secret: send Authorization: Bearer …"
            return refusal(HTTPStatus.UNAUTHORIZED, why, scheme)
        if not self._turn.acquire(blocking=False):
            busy = TickResult(state=TickState.BUSY, ran={})
            again = {"Retry-After": _RETRY_AFTER}
            return Answer(HTTPStatus.OK, busy.as_json(), again)
        try:
            return self._answer(host_loop)
        finally:
            self._tick = None
            self._turn.release()

    def stop(self) -> None:
        """Ask the tick that runs, if any, to drain."""
        if (tick := self._tick) is not None:
            tick.stop("shutdown")

    def _answer(self, host_loop: asyncio.AbstractEventLoop | None) -> Answer:
        try:
            return Answer(HTTPStatus.OK, self._run(host_loop).as_json())
        except (DatabaseProblem, JobCancelled) as error:
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except SlotwiseError as error:
            logger.error("the tick failed: %s", error)
        except Exception:
            logger.exception("the tick failed")
        return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, _FAILED)

    def _run(self, host_loop: asyncio.AbstractEventLoop | None) -> TickResult:
        registry = self.host.registry
        self._tick = tick = Tick(
            registry, budget=self._budget, early=self._early, host_loop=host_loop
        )
        if not self._is_hooked:
            self._is_hooked = True
            _at_exit(self.stop)
        return tick.run()


Mounted = TypeVar("Mounted")


class Mount(Generic[Mounted]):
    """What the routes for ASGI and WSGI have in common: where they answer, and for whom."""

    def __init__(
        self,
        registry: RegistrySource,
        application: Mounted | None = None,
        *,
        path: str = "/tick",
        secret: str | Sequence[str] | None = None,
        check: Check | None = None,
        budget: timedelta | str = BUDGET,
        early: timedelta | str = EARLY,
    ) -> None:
        caller = type(self).__name__
        if application is not None:
            _check_application(application, caller)
        self._application = application
        self._path = checked_path(path, caller)
        self._route = Route(
            registry,
            secret=secret,
            check=check,
            budget=budget,
            early=early,
            caller=caller,
        )


def _check_application(application: object, caller: str) -> None:
    if not callable(application):
        raise ConfigurationError(
            f"{caller}: {application!r:.80} is no application; write "
            f"{caller}(registry, application), or leave it out"
        )


def _at_exit(stop: Callable[[], None]) -> None:
    """Call this when the interpreter ends, before it waits for threads: ``atexit`` is too late."""
    register: object = getattr(
        threading, "_register_atexit", None
    )  # private, since 3.9
    if callable(register):
        register(stop)


def checked_path(path: str, caller: str) -> str:
    """Return the path at which ticks are requested. Raises ConfigurationError."""
    if not path.startswith("/") or "?" in path or "#" in path:
        raise ConfigurationError(f"{caller}: path is {path!r:.80}; write /tick")
    return path
