"""The dashboard in Django's ``urls.py``:

path("slotwise/", include(dashboard_urls(role=staff_role)))
"""

from __future__ import annotations

from typing import Any

from slotwise import ConfigurationError
from slotwise.contrib.dashboard import Dashboard, Request, Response, Role, Visitor
from slotwise.contrib.dashboard.access import RoleOf
from slotwise.contrib.dashboard.exchange import LONGEST_BODY, Token, text
from slotwise.contrib.django.project import registry

try:
    from django.http import HttpRequest, HttpResponse
    from django.middleware.csrf import get_token
    from django.urls import re_path
    from django.views.decorators.csrf import csrf_protect
except ImportError:
    raise ConfigurationError(
        "this needs Django; run: pip install 'slotwise[django]'"
    ) from None


def staff_role(request: Request) -> Visitor | None:
    """Return what Django's user may do: superusers are admins, staff are viewers, all others
    nothing.
    """
    user: Any = getattr(request.host, "user", None)
    if user is None or not user.is_active or not user.is_staff:
        return None
    role = Role.ADMIN if user.is_superuser else Role.VIEWER
    return Visitor(name=user.get_username(), role=role)


def dashboard_urls(*, role: RoleOf | Role | str | None = None) -> list[object]:
    """Return the addresses of the dashboard of this project's registry, for ``include``.

    ``role`` is that of Dashboard; ``request.host`` is Django's HttpRequest. Forms carry Django's
    own token, and are checked whether or not its middleware is installed.
    """
    made: list[Dashboard] = []

    @csrf_protect
    def view(request: HttpRequest, path: str) -> HttpResponse:
        if not made:  # at the first request: settings and jobs are complete then
            made.append(Dashboard(registry(), role=role))
        body = request.body
        if len(body) > LONGEST_BODY:
            return _answer(text(413, f"a form has at most {LONGEST_BODY} bytes"))
        return _answer(made[0].respond(_request(request, path, body)))

    return [re_path(r"^(?P<path>.*)$", view, name="slotwise-dashboard")]


def _request(request: HttpRequest, path: str, body: bytes) -> Request:
    root = request.path[: len(request.path) - len(path)].rstrip("/")
    return Request(
        method=request.method,
        path=f"/{path}",
        query=request.META.get("QUERY_STRING", ""),
        headers={name.lower(): value for name, value in request.headers.items()},
        body=body,
        root=root,
        host=request,
        token=Token(field="csrfmiddlewaretoken", value=get_token(request)),
    )


def _answer(response: Response) -> HttpResponse:
    answer = HttpResponse(response.body, status=response.status)
    for name, value in response.all_headers():
        answer[name] = value
    return answer
