"""The dashboard inside FastAPI, Starlette, Flask and Django: it mounts, and refuses."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from tests.contrib.dashboard import world

from slotwise.contrib.dashboard import Dashboard, Request
from slotwise.inspect import Inspection


def by_header(request: Request) -> str | None:
    return request.headers.get("x-role")


def checked(get: Callable[[str, dict[str, str]], tuple[int, str]]) -> None:
    """Refused without a role; with one, links lead below the mount."""
    status, text = get("/slotwise/jobs", {})
    assert status == 403
    assert "poll-orders" not in text
    status, text = get("/slotwise/jobs", {"x-role": "viewer"})
    assert status == 200
    assert 'href="/slotwise/job?name=poll-orders"' in text
    assert 'href="/slotwise/static/page.css"' in text
    assert get("/slotwise/static/page.js", {"x-role": "viewer"})[0] == 200


@pytest.mark.parametrize("framework", ["fastapi", "starlette"])
def test_asgi(cluster: str, framework: str) -> None:
    from fastapi import FastAPI
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    app = FastAPI() if framework == "fastapi" else Starlette()
    dashboard = Dashboard(cluster, role=by_header, secret="s")
    app.mount("/slotwise", dashboard.asgi)
    client = TestClient(app)

    def get(path: str, headers: dict[str, str]) -> tuple[int, str]:
        answer = client.get(path, headers=headers)
        return answer.status_code, answer.text

    checked(get)
    dashboard.close()


def test_flask(cluster: str) -> None:
    from flask import Flask
    from werkzeug.middleware.dispatcher import DispatcherMiddleware

    app = Flask("shop")
    dashboard = Dashboard(cluster, role=by_header, secret="s")
    app.wsgi_app = DispatcherMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, {"/slotwise": dashboard.wsgi}
    )

    def get(path: str, headers: dict[str, str]) -> tuple[int, str]:
        answer = app.test_client().get(path, headers=headers)
        return answer.status_code, answer.text

    checked(get)
    dashboard.close()


@pytest.fixture
def in_django(shop: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client that keeps cookies and checks Django's token, of a project with the dashboard."""
    from django.test import Client
    from django.test.utils import override_settings
    from django.urls import include, path

    from slotwise.contrib.django import dashboard
    from slotwise.contrib.django.dashboard import dashboard_urls

    made = list[Dashboard]()

    def make(*given: Any, **named: Any) -> Dashboard:
        made.append(Dashboard(*given, **named))
        return made[-1]

    monkeypatch.setattr(dashboard, "Dashboard", make)
    world.fill(shop)
    urls = ModuleType("urls_of_dashboard")
    urls.urlpatterns = [  # type: ignore[attr-defined]
        path("slotwise/", include(dashboard_urls(role=by_header)))
    ]
    monkeypatch.setitem(__import__("sys").modules, "urls_of_dashboard", urls)
    with override_settings(ROOT_URLCONF="urls_of_dashboard"):
        yield Client(enforce_csrf_checks=True)
    for one in made:
        one.close()


def test_django(in_django: Any, shop: str) -> None:
    """With Django's own token in its forms."""

    def get(path: str, headers: dict[str, str]) -> tuple[int, str]:
        answer = in_django.get(path, headers=headers)
        return answer.status_code, answer.content.decode()

    checked(get)
    form = {"operation": "pause", "name": "poll-orders", "sure": "yes"}
    given = {"x-role": "operator", "sec-fetch-site": "same-origin"}
    refused = in_django.post("/slotwise/operate", form, headers=given)
    assert refused.status_code == 403
    address = "/slotwise/job?name=poll-orders"
    assert 'method="post"' not in get(address, {"x-role": "viewer"})[1]
    _, page = get(address, {"x-role": "operator"})
    token = page.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    form["csrfmiddlewaretoken"] = token
    content = "&".join(f"{name}={value}" for name, value in form.items())
    kind = "application/x-www-form-urlencoded"
    cross = {**given, "sec-fetch-site": "cross-site"}
    for headers, status in ((cross, 403), (given, 303)):
        answer = in_django.post(
            "/slotwise/operate", content, content_type=kind, headers=headers
        )
        assert answer.status_code == status
    with Inspection.open(shop) as inspect:
        found = inspect.job("poll-orders")
    assert found is not None
    assert found.state == "paused"
