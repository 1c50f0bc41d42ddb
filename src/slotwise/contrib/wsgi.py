"""WSGI: middleware for any WSGI application."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from slotwise.contrib.hosting import checked_application
from slotwise.spi import START_WAIT, Host, RegistrySource

#: The key of the Host in the environment of a request.
ENVIRON: Final = "slotwise"


class SlotwiseWSGI:
    """WSGI middleware that runs a registry with the server: ``application =
    SlotwiseWSGI(application, registry)``.

    WSGI has no start and no end. So the worker starts with the first request of each process,
    after the server's fork, or earlier by ``start()`` in a server's hook, such as gunicorn's
    ``post_worker_init``. It drains when the process exits, but not if a signal kills the process.
    Requests find the Host at ``environ["slotwise"]``. Arguments are those of ``Host``.
    """

    def __init__(
        self,
        application: WSGIApplication,
        registry: RegistrySource,
        *,
        worker: bool = True,
        start_wait: timedelta | str = START_WAIT,
    ) -> None:
        checked_application(application, "SlotwiseWSGI")
        self._application = application
        self.host = Host(
            registry, worker=worker, start_wait=start_wait, caller="SlotwiseWSGI"
        )

    def start(self) -> None:
        """Start the worker of this process, once, and stop it when the process ends."""
        self.host.start_once()

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Serve one request; if the worker cannot start, the log says why, and the request is
        served.
        """
        self.host.start_at_request()
        environ[ENVIRON] = self.host
        return self._application(environ, start_response)
