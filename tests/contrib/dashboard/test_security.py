"""Who may see and operate: each attack is a test, over HTTP, by both faces."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser

import psycopg
import pytest
from tests.contrib.dashboard import world
from tests.contrib.dashboard.site import FACES, Site, served
from tests.contrib.servers import environment, program
from tests.kit.patience import PATIENCE

from slotwise import ConfigurationError
from slotwise.contrib.dashboard import Dashboard, Request, Role, Visitor
from slotwise.contrib.dashboard.access import Access, Refused
from slotwise.contrib.dashboard.pages import PAGES
from slotwise.inspect import Inspection

PAUSE = {"operation": "pause", "name": "poll-orders", "sure": "yes"}


def state(url: str, name: str = "poll-orders") -> str:
    with Inspection.open(url) as inspect:
        found = inspect.job(name)
    assert found is not None
    return found.state


# -- who may see ----------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
def test_without_a_role_every_address_is_refused(cluster: str, face: str) -> None:
    """A dashboard that somebody forgot to protect shows nothing, and says what to set."""
    with served(Dashboard(cluster, secret="s"), face) as site:
        for path in (*PAGES, "/jobs.json", "/static/page.css", "/operate", "/none"):
            answer = site.get(path)
            assert answer.status == 403, path
            assert "pass role= to Dashboard" in answer.text
        assert site.post({**PAUSE, "token": "x"}).status == 403
    assert state(cluster) == "waiting"


@pytest.mark.parametrize("face", FACES)
def test_the_host_decides_about_each_request(cluster: str, face: str) -> None:
    """Its function sees the host's own request; None is nobody."""

    def role(request: Request) -> Visitor | None:
        name = request.headers.get("x-user")
        assert request.host is not None
        return None if name is None else Visitor(name=name, role=Role.VIEWER)

    with served(Dashboard(cluster, role=role), face) as site:
        assert site.get("/jobs").status == 403
        assert "ada" in site.get("/jobs", {"x-user": "ada"}).text


def test_a_function_that_fails_opens_nothing(cluster: str) -> None:
    """An error in the host's function is no role."""

    def role(request: Request) -> str:
        raise KeyError("session")

    answer = Dashboard(cluster, role=role).respond(Request(method="GET", path="/jobs"))
    assert answer.status == 500
    assert b"session" not in answer.body


@pytest.mark.parametrize("role", ["root", 7, ""])
def test_an_unknown_role_is_a_mistake(role: object) -> None:
    with pytest.raises(ConfigurationError, match="viewer, operator or admin"):
        Dashboard("postgresql://localhost/x", role=role)  # type: ignore[arg-type]


def test_an_async_function_is_a_mistake() -> None:
    """Its coroutine would count as nobody, or as everybody."""

    async def role(request: Request) -> str:
        return "viewer"

    with pytest.raises(ConfigurationError, match="async"):
        Dashboard("postgresql://localhost/x", role=role)  # type: ignore[arg-type]


# -- without a login ------------------------------------------------------------------------------


@pytest.fixture(params=FACES)
def local(cluster: str, request: pytest.FixtureRequest) -> Iterator[Site]:
    """As ``slotwise dashboard`` serves it."""
    dashboard = Dashboard(cluster, role="viewer", secret="s", is_local=True)
    with served(dashboard, request.param) as site:
        yield site


def test_another_name_of_this_host_is_refused(local: Site) -> None:
    """A page of another site whose name resolves to the loopback reads nothing."""
    for host in (
        "evil.example",
        "evil.example:8228",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example#127.0.0.1",
        "ada@127.0.0.1",
        "127.0.0.1@evil.example",
        "127.0.0.2",
        "0.0.0.0",
        "",
    ):
        answer = local.get("/jobs", {"host": host})
        assert answer.status == 403, host
        assert "poll-orders" not in answer.text


def test_a_name_of_the_loopback_is_served(local: Site) -> None:
    for host in ("127.0.0.1", "127.0.0.1:8228", "localhost:8228", "[::1]:1"):
        assert local.get("/jobs", {"host": host}).status == 200, host


def test_a_request_behind_a_proxy_is_refused(local: Site) -> None:
    """What has no login is not to be published by a proxy that sends Host: localhost."""
    for header in (
        "Forwarded",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "x-forwarded-proto",
        "Via",
        "X-Real-IP",
    ):
        assert local.get("/jobs", {header: "192.0.2.7"}).status == 403, header


def test_a_viewer_has_no_form(local: Site) -> None:
    assert 'method="post"' not in local.get("/job", name="poll-orders").text


# -- operations -----------------------------------------------------------------------------------


def test_an_operation_is_previewed_then_carried_out(site: Site, cluster: str) -> None:
    """The preview changes nothing; the audit names the visitor."""
    form = {**PAUSE, "token": site.token(), "note": "because"}
    preview = site.post({**PAUSE, "token": form["token"], "sure": ""})
    assert preview.status == 200
    assert "This has not happened yet" in preview.text
    assert state(cluster) == "waiting"
    done = site.post(form)
    assert done.status == 303
    assert done.headers["location"] == "/job?name=poll-orders"
    assert state(cluster) == "paused"
    with Inspection.open(cluster) as inspect:
        entry = inspect.audit("poll-orders")[0]
    assert (entry.author, entry.operation, entry.note) == (
        "dashboard",
        "pause",
        "because",
    )


def test_a_form_of_another_site_is_refused(site: Site, cluster: str) -> None:
    """Even with a valid token."""
    form = {**PAUSE, "token": site.token()}
    for headers in (
        {},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site", "origin": site.url},
        {"sec-fetch-site": "same-origin, cross-site"},
    ):
        assert site.post(form, headers).status == 403, headers
    assert state(cluster) == "waiting"


def test_an_origin_of_this_site_is_enough(site: Site, cluster: str) -> None:
    """For browsers without Sec-Fetch-Site."""
    answer = site.post({**PAUSE, "token": site.token()}, {"origin": site.url})
    assert answer.status == 303


def test_a_form_without_our_token_is_refused(site: Site, cluster: str) -> None:
    for token in ("", "0" * 64, "\u0660" * 64):
        assert site.post({**PAUSE, "token": token}).status == 403
    assert state(cluster) == "waiting"


def test_a_token_is_of_one_visitor_and_two_hours() -> None:
    """Another user's token, another role's, an old one, and one of another secret are not valid."""
    ours = Access("operator", "s")
    ada = Visitor(name="ada", role=Role.OPERATOR)
    request = Request(method="GET", path="/")
    other = Access("operator", "t")
    tokens = {
        "good": ours.token(request, ada, 100),
        "last hour": ours.token(request, ada, 99),
        "old": ours.token(request, ada, 98),
        "of another user": ours.token(
            request, Visitor(name="eve", role=ada.role), 100
        ),
        "of another role": ours.token(
            request, Visitor(name="ada", role=Role.ADMIN), 100
        ),
        "of another secret": other.token(request, ada, 100),
    }
    valid = []
    for name, token in tokens.items():
        assert token is not None
        form = Request(
            method="POST",
            path="/operate",
            headers={"sec-fetch-site": "same-origin"},
            body=f"token={token.value}".encode(),
        )
        try:
            ours.check_form(form, ada, 100)
        except Refused:
            continue
        valid.append(name)
    assert valid == ["good", "last hour"]


@pytest.mark.parametrize("face", FACES)
def test_without_a_secret_there_are_no_operations(cluster: str, face: str) -> None:
    """A token that each process signs for itself would fail at random."""
    with served(Dashboard(cluster, role="admin"), face) as site:
        assert 'method="post"' not in site.get("/job", name="poll-orders").text
        answer = site.post({**PAUSE, "token": ""})
    assert answer.status == 403
    assert "SLOTWISE_DASHBOARD_SECRET" in answer.text


@pytest.mark.parametrize("face", FACES)
def test_a_role_bounds_what_is_requested(cluster: str, face: str) -> None:
    """A viewer operates nothing; an operator deletes nothing and pauses not everything."""
    with served(Dashboard(cluster, role="viewer", secret="s"), face) as site:
        assert site.post({**PAUSE, "token": ""}).status == 403
    with served(Dashboard(cluster, role="operator", secret="s"), face) as site:
        token = site.token()
        for operation in ("delete", "pause_all", "resume_all"):
            form = {**PAUSE, "operation": operation, "token": token}
            assert site.post(form).status == 403, operation
        assert site.post({**PAUSE, "token": token}).status == 303
    assert state(cluster) == "paused"


def test_a_link_changes_nothing(site: Site, cluster: str) -> None:
    """Operations are posted; neither a GET nor an image carries one out."""
    assert site.get("/operate", **PAUSE, token=site.token()).status == 405
    assert (
        site.ask("POST", "/jobs", {"sec-fetch-site": "same-origin"}, b"").status == 405
    )
    assert state(cluster) == "waiting"


def test_a_malformed_form_is_refused(site: Site) -> None:
    """What slotwise itself rejects is told in one line."""
    token = site.token()
    for form, status in (
        ({"operation": "drop"}, 400),
        ({"operation": "pause"}, 400),
        ({"operation": "skip_next", "name": "poll-orders", "slot": "soon"}, 400),
        ({"operation": "cancel", "name": "poll-orders", "slot": "2026-01-01"}, 400),
        ({"operation": "trigger", "name": "unknown"}, 409),
    ):
        answer = site.post({**form, "token": token})
        assert answer.status == status, form
        assert "Traceback" not in answer.text


def test_a_comparison_finds_what_nothing_explains(site: Site, cluster: str) -> None:
    """It is requested by a form of this site; Today shows it with its age."""
    path, kind = "/reconcile", {"content-type": "application/x-www-form-urlencoded"}
    body = f"token={site.token()}".encode()
    assert (
        site.ask("POST", path, {**kind, "sec-fetch-site": "cross-site"}, body).status
        == 403
    )
    assert (
        site.ask("POST", path, {**kind, "sec-fetch-site": "same-origin"}, b"").status
        == 403
    )
    assert site.get(path).status == 405
    assert "Not compared with the schedules yet" in site.get("/").text
    done = site.ask("POST", path, {**kind, "sec-fetch-site": "same-origin"}, body)
    assert (done.status, done.headers["location"]) == (303, "/")
    found = site.get("/today.json").json["reconciled"]
    assert (found["jobs"], found["count"] > 0) == (7, True)
    assert len(found["unexplained"]) == min(found["count"], 20)
    with psycopg.connect(cluster) as connection:  # which other processes show
        kept = "SELECT value FROM scheduled_meta WHERE key = 'reconciled'"
        row = connection.execute(kept).fetchone()
    assert row is not None
    assert json.loads(row[0])["jobs"] == 7
    page = site.get("/").text
    assert "unexplained" in page
    assert "Compared with the schedules of 7 jobs at" in page


def test_a_long_form_is_refused(site: Site) -> None:
    """Before it is read into memory."""
    headers = {"sec-fetch-site": "same-origin"}
    answer = site.ask("POST", "/operate", headers, b"x" * 70_000)
    assert answer.status == 413


# -- what rows contain ----------------------------------------------------------------------------


def test_nothing_that_a_row_contains_is_html(site: Site) -> None:
    """Names, errors, notes and ids are text."""
    addresses = [("/", {}), ("/jobs", {}), ("/job", {"name": world.HOSTILE_NAME})]
    for path, given in addresses:
        text = site.get(path, **given).text
        assert "<script>alert" not in text, path
        assert "<img" not in text, path
        assert "&lt;script&gt;" in text or "&lt;img" in text


class Inline(HTMLParser):
    """Collects what the policy forbids: scripts, styles and handlers in the page, and addresses of
    other hosts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "style" or (tag == "script" and "src" not in given):
            self.found.append(tag)
        self.found += [
            name for name in given if name == "style" or name.startswith("on")
        ]
        for name in ("src", "href", "action"):
            if not (given.get(name) or "/").startswith(("/", "#")):
                self.found.append(f"{name}={given[name]}")


def test_a_page_has_no_inline_script_or_style(site: Site) -> None:
    """The policy forbids them; a page that needed one would be broken."""
    for path, given in (
        ("/", {}),
        ("/job", {"name": "nightly-report"}),
        ("/jobs", {}),
    ):
        parser = Inline()
        parser.feed(site.get(path, **given).text)
        assert parser.found == [], path


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_payloads_are_for_admins(cluster: str, role: str) -> None:
    """As HTML and as JSON."""
    with served(Dashboard(cluster, role=role)) as site:
        for path in ("/task", "/task.json"):
            text = site.get(path, name="send-mail", id="order-1").text
            assert "ada@example.com" not in text
            assert "needs the role admin" in text


def test_the_dashboard_needs_no_server_of_its_own() -> None:
    """Mounted, it imports neither Starlette nor uvicorn nor click."""
    code = (
        "import sys, slotwise.contrib.dashboard; "
        "print([name for name in ('starlette', 'uvicorn') if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_the_command_serves_this_machine_alone(cluster: str) -> None:
    """It prints its address, and shows no form without --operate."""
    command = [
        program("slotwise"),
        "dashboard",
        "--port",
        "0",
        "--database-url",
        cluster,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(cluster)
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
            assert found is not None
            site = Site(int(found[1]))
            page = site.get("/job", name="poll-orders")
            assert page.status == 200
            assert 'method="post"' not in page.text
            assert site.get("/jobs", {"host": "evil.example"}).status == 403
        finally:
            process.terminate()
            process.wait(PATIENCE)


@pytest.mark.parametrize("role", ["viewer", "operator", Role.ADMIN])
def test_a_visitor_may_have_a_role_by_its_name(cluster: str, role: Role | str) -> None:
    """As the function may return it alone; pages and JSON are shown."""
    dashboard = Dashboard(cluster, role=lambda _: Visitor(name="ada", role=role))
    for path in ("/jobs", "/tasks.json", "/task"):
        query = "name=send-mail&id=order-1"
        answer = dashboard.respond(Request(method="GET", path=path, query=query))
        assert answer.status == 200, path
    dashboard.close()


def test_a_role_that_does_not_exist_is_a_mistake_of_the_host(
    cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The visitor does not see it; the log does."""
    dashboard = Dashboard(cluster, role=lambda _: "superadmin")
    answer = dashboard.respond(Request(method="GET", path="/jobs"))
    dashboard.close()
    assert answer.status == 500
    assert b"superadmin" not in answer.body
    assert "superadmin" in caplog.text
