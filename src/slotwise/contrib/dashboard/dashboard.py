"""The dashboard: a function from a request to a response, for every host."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Final

from slotwise import (
    DatabaseProblem,
    InvalidSetting,
    SchemaMismatch,
    SchemaMissing,
    SlotwiseError,
)
from slotwise.contrib.dashboard.access import (
    Access,
    Refused,
    Role,
    RoleOf,
    Visitor,
    check_role,
)
from slotwise.contrib.dashboard.exchange import (
    Request,
    Response,
    document,
    see_other,
    text,
)
from slotwise.contrib.dashboard.faces import ASGIFace, WSGIFace
from slotwise.contrib.dashboard.operations import (
    FIELDS,
    effect_of,
    kind_of,
    shown_after,
)
from slotwise.contrib.dashboard.pages import PAGES, MakePage
from slotwise.contrib.dashboard.reading import Page, Reading, in_one_line
from slotwise.contrib.dashboard.recent import Recent
from slotwise.contrib.dashboard.rendering import Rendering, link
from slotwise.contrib.dashboard.source import Source, Where
from slotwise.contrib.reconciliation import reconcile
from slotwise.inspect import json_value

logger = logging.getLogger("slotwise.dashboard")

#: The secret of all processes of a dashboard, where ``secret=`` is not given.
SECRET: Final = "SLOTWISE_DASHBOARD_SECRET"
_STATIC: Final = {
    "/static/page.css": "text/css; charset=utf-8",
    "/static/page.js": "text/javascript; charset=utf-8",
    "/static/icon.svg": "image/svg+xml",
}
OPERATE: Final = "/operate"
RECONCILE: Final = "/reconcile"
_READING: Final = ("GET", "HEAD")
_AWAY: Final = (DatabaseProblem, SchemaMissing, SchemaMismatch)


class Dashboard:
    """Pages about one installation: ``asgi`` and ``wsgi`` are applications to mount.

    ``where`` is a JobRegistry, settings, or the database's address; without it, environment and
    settings file say it. ``role`` is what a visitor may do: a Role, or a function of the Request
    that returns a Role, a Visitor, or None to refuse. Without ``role`` every address answers 403.
    ``secret`` signs the forms of operations, and is the same in all processes of the host; without
    it, and without SLOTWISE_DASHBOARD_SECRET, there are no operations. ``read_from`` is the
    address of a replica for the reads.

    Connections are opened at the first request. Raises ConfigurationError for a role that does
    not exist.
    """

    def __init__(
        self,
        where: Where = None,
        *,
        role: RoleOf | Role | str | None = None,
        secret: str | None = None,
        read_from: str | None = None,
        is_local: bool = False,
    ) -> None:
        """``is_local``: serve browsers on this machine only, which have no login."""
        self._source = Source(where, read_from)
        self._access = Access(
            role, secret or os.environ.get(SECRET), is_local=is_local
        )
        self._rendering = Rendering()
        self._recent = Recent[tuple[Page, Reading]]()
        #: The ASGI application, for Starlette and FastAPI: ``app.mount("/slotwise", it)``.
        self.asgi = ASGIFace(self)
        #: The WSGI application, for Flask and others.
        self.wsgi = WSGIFace(self)

    def close(self) -> None:
        """Close the connections to the database."""
        self._source.close()

    def prepare(self) -> None:
        """Read what Today keeps for all visitors, so that the first one does not wait for it.

        Without a database it does nothing; the first page says why.
        """
        viewer = Visitor(name="", role=Role.VIEWER)
        with suppress(SlotwiseError):
            self._read(PAGES["/"], viewer, {})

    def forget(self) -> None:
        """Read the next page from the database, even if it was read a moment ago."""
        self._recent.clear()
        self._source.forget()

    def respond(self, request: Request) -> Response:
        """Answer a request. Raises nothing: what goes wrong is an answer, and is logged."""
        try:
            visitor = self._access.visitor(request)
            return self._answer(request, visitor)
        except Refused as error:
            return text(error.status, str(error))
        except InvalidSetting as error:
            logger.error(
                "the dashboard cannot read its settings: %s", in_one_line(error)
            )
            return text(500, "the settings are wrong; the log says why")
        except SlotwiseError as error:  # an unknown name, an id that cannot be
            return text(404, in_one_line(error))
        except Exception:
            logger.exception("the dashboard could not answer %.200r", request.path)
            return text(500, "this page failed; the log says why")

    def visitor_of(self, request: Request) -> Visitor | Response:
        """Return who asks for a stream, or the refusal."""
        try:
            return self._access.visitor(request)
        except Refused as error:
            return text(error.status, str(error))
        except Exception:
            logger.exception("the role of a request could not be found")
            return text(500, "this page failed; the log says why")

    def pulse(self) -> str:
        """Return the database's time for all open pages, or that it is away, as JSON."""
        try:
            return json.dumps({"now": json_value(self._source.inspect.now())})
        except _AWAY:
            return json.dumps({"away": True})

    def _answer(self, request: Request, visitor: Visitor) -> Response:
        path, is_json = _split(request.path)
        if path in _STATIC and not is_json:
            return _static(path)
        try:
            if path == OPERATE and not is_json:
                return self._operate(request, visitor)
            if path == RECONCILE and not is_json:
                return self._reconcile(request, visitor)
            return self._show(request, visitor, path, is_json=is_json)
        except _AWAY as error:
            return self._away(request, visitor, error, is_json=is_json)

    def _show(
        self, request: Request, visitor: Visitor, path: str, *, is_json: bool
    ) -> Response:
        make = PAGES.get(path)
        if make is None:
            raise Refused("there is no such page", 404)
        if request.method not in _READING:
            raise Refused("this page is only read", 405)
        key = (path, request.query, visitor.role)
        page, reading = self._recent.get(
            key, lambda: self._read(make, visitor, request.given)
        )
        if is_json:
            return _as_json(page, reading)
        return self._as_html(request, visitor, page, reading)

    def _read(
        self, make: MakePage, visitor: Visitor, given: Mapping[str, str]
    ) -> tuple[Page, Reading]:
        reading = Reading.begin(self._source, visitor, given)
        return make(reading), reading

    def _operate(self, request: Request, visitor: Visitor) -> Response:
        """Show what an operation would do; carry it out if the form is sure."""
        if request.method != "POST":
            raise Refused("operations are submitted by a form", 405)
        self._access.check_form(request, visitor, _this_hour())
        form = request.form
        kind = kind_of(form)
        check_role(visitor, kind.role)
        is_sure = form.get("sure") == "yes"
        address, given = shown_after(kind, form)
        back = link(request.root, address, **given)
        operations = self._source.operations(visitor.name)
        try:
            inspect = self._source.client().inspect
            effect = effect_of(kind, operations, inspect, form, dry_run=not is_sure)
        except Refused as error:
            data: dict[str, object] = {"reason": str(error)}
            return self._result(
                request, visitor, "refused.html", back, data, error.status
            )
        if is_sure:
            self.forget()
            if not effect.is_more:
                return see_other(back)
        kept = {field: form[field] for field in FIELDS if field in form}
        data = {"kind": kind, "effect": effect, "form": form, "fields": kept}
        template = "progress.html" if is_sure else "preview.html"
        return self._result(request, visitor, template, back, data)

    def _reconcile(self, request: Request, visitor: Visitor) -> Response:
        """Compare the schedules with the ledger since midnight, and show Today."""
        if request.method != "POST":
            raise Refused("a comparison is requested by a form", 405)
        self._access.check_form(request, visitor, _this_hour())
        check_role(visitor, Role.OPERATOR)
        reading = Reading.begin(self._source, visitor, {})
        found = reconcile(reading.inspect, reading.midnight, reading.now)
        self._source.keep(found)
        self._recent.clear()
        return see_other(link(request.root, "/"))

    def _result(
        self,
        request: Request,
        visitor: Visitor,
        template: str,
        back: str,
        data: dict[str, object],
        status: int = 200,
    ) -> Response:
        reading = Reading.begin(self._source, visitor, {})
        shown = {**data, "back": back}
        page = Page(template=template, title="Operation", data=shown, status=status)
        return self._as_html(request, visitor, page, reading)

    def _as_html(
        self, request: Request, visitor: Visitor, page: Page, reading: Reading
    ) -> Response:
        token = self._access.token(request, visitor, _this_hour())
        main = self._rendering.main(request, page, reading, token)
        etag = f'"{hashlib.sha256(main.encode()).hexdigest()[:32]}"'
        as_of = f"{reading.now.astimezone(reading.zone):%H:%M:%S}"
        headers = {"ETag": etag, "Slotwise-As-Of": as_of}
        if request.headers.get("if-none-match") == etag:
            return Response(status=304, headers=headers)
        html = self._rendering.whole(request, visitor, page, reading, main)
        return Response(status=page.status, body=html.encode(), headers=headers)

    def _away(
        self,
        request: Request,
        visitor: Visitor,
        error: SlotwiseError,
        *,
        is_json: bool,
    ) -> Response:
        """Say that the tables cannot be read. The reason names hosts and roles, which viewers do
        not see.
        """
        reason = in_one_line(error)
        logger.warning("the dashboard cannot read its tables: %s", reason)
        told = reason if visitor.may(Role.OPERATOR) else "the server's log says why"
        if is_json:
            return document({"error": told}, status=503)
        html = self._rendering.away(request, visitor, told)
        return Response(status=503, body=html.encode(), headers={"Retry-After": "5"})


def _split(path: str) -> tuple[str, bool]:
    """Return the address of the page, and whether its JSON is wanted."""
    if path.endswith(".json"):
        name = path.removesuffix(".json")
        return ("/" if name == "/today" else name), True
    return path or "/", False


def _static(path: str) -> Response:
    body = files("slotwise.contrib.dashboard").joinpath(path.lstrip("/")).read_bytes()
    return Response(body=body, content_type=_STATIC[path])


def _as_json(page: Page, reading: Reading) -> Response:
    of = {"now": reading.now, "counted": reading.counted, "shard": reading.shard}
    found = {**of, **page.data, "missing": reading.missing}
    return document(json_value(found), page.status)


def _this_hour() -> int:
    return int(time.time() // 3600)
