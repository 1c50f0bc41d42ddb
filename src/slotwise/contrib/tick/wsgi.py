"""The route for WSGI: an application of its own, or middleware."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from slotwise.contrib.hosting import checked_application
from slotwise.contrib.tick.access import Check
from slotwise.contrib.tick.route import Route, checked_path
from slotwise.contrib.tick.tick import BUDGET, EARLY
from slotwise.spi import RegistrySource

_CALLER: Final = "TickWSGI"


class TickWSGI:
    """Answers POST at ``path`` with a tick, and passes everything else on to ``application``.

    It blocks one of the server's threads for the time of the tick; the server's timeout must be
    longer than ``budget`` and ``shutdown_grace`` together. Arguments are those of ``TickASGI``.
    """

    def __init__(
        self,
        registry: RegistrySource,
        application: WSGIApplication | None = None,
        *,
        path: str = "/tick",
        secret: str | Sequence[str] | None = None,
        check: Check | None = None,
        budget: timedelta | str = BUDGET,
        early: timedelta | str = EARLY,
    ) -> None:
        if application is not None:
            checked_application(application, _CALLER)
        self._application = application
        self._path = checked_path(path, _CALLER)
        self._route = Route(
            registry,
            secret=secret,
            check=check,
            budget=budget,
            early=early,
            caller=_CALLER,
        )

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Serve one request."""
        application = self._application
        if application is not None and environ.get("PATH_INFO") != self._path:
            return application(environ, start_response)
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        answer = self._route.answer(str(environ["REQUEST_METHOD"]), headers)
        status = f"{answer.status.value} {answer.status.phrase}"
        start_response(status, answer.all_headers())
        return [answer.body]
