"""The route for WSGI: a whole application, or middleware before another one."""

from __future__ import annotations

from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from slotwise.contrib.tick.route import Mount


class TickWSGI(Mount[WSGIApplication]):
    """Answers POST at ``path`` with a tick, and passes everything else on to ``application``.

    It blocks one of the server's threads for the time of the tick; the server's timeout must be
    longer than ``budget`` and ``shutdown_grace`` together. Arguments are those of ``TickASGI``.
    """

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
