"""The dashboard in a real Chromium: every page and button, both themes, a phone, keys alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from tests.contrib.dashboard import world
from tests.contrib.dashboard.site import Site, served
from tests.contrib.dashboard.test_pages import SHOWN
from tests.databases import Databases
from tests.kit.programs import missing, program

from slotwise.contrib.dashboard import Dashboard
from slotwise.operations import Operations

sync_api = pytest.importorskip("playwright.sync_api")

#: Written where this is set: TESTS_WRITE_PICTURES=1 python3 dev.py test …/test_browser.py
PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
IN_DOCS = {
    ("/", "light"): "today",
    ("/timeline", "light"): "timeline",
    ("/timeline", "dark"): "timeline-dark",
    ("/job", "light"): "job",
}
LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
#: What axe checks: of the other looks only what differs, since each page takes it seconds.
AXE: dict[str, dict[str, object] | None] = {
    "light": {"resultTypes": ["violations"]},
    "dark": {"runOnly": ["color-contrast"], "resultTypes": ["violations"]},
    "phone": None,
}
#: 10,000 jobs and as many tasks, beside those of the small cluster.
MANY = """
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, slot, schedule, kind, picked,
    version, created_version)
SELECT 'many-' || to_char(n, 'FM00000'), 'recurring', now() + n * interval '1 second',
    now() + n * interval '1 second', 'EVERY|1h|1970-01-01T00:00:00Z', 'plan', false, 9, 9
FROM generate_series(1, 10000) AS n;
INSERT INTO scheduled_tasks (task_name, task_instance, execution_time, kind, picked, version,
    created_version)
SELECT 'bulk', 'id-' || n, now(), 'task', false, 9, 9 FROM generate_series(1, 10000) AS n;
ANALYZE"""


@pytest.fixture(scope="module")
def url(databases: Databases) -> Iterator[str]:
    with databases.provisioned("dashboard", world.fill) as found:
        yield found


@pytest.fixture(scope="module")
def site(url: str) -> Iterator[Site]:
    with served(Dashboard(url, role="admin", secret="for tests")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = program("chromium", "chromium")
    # Its sandbox needs an account that is not root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield found
        found.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, which finds what people with a disability stumble over."""
    folder = tmp_path_factory.mktemp("axe")
    command = [
        program("npm", "npm"),
        "install",
        "--no-audit",
        "--no-fund",
        "axe-core@4",
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        missing(f"npm install axe-core failed: {done.stderr[-500:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


class Tab:
    """A tab of the browser, which collects what the console reports."""

    def __init__(self, browser: Any, site: Site, **look: Any) -> None:
        self.context = browser.new_context(**look)
        self.context.set_default_timeout(15_000)
        self.page = self.context.new_page()
        self.site = site
        self.errors = list[str]()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note)

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def open(self, path: str, **given: str) -> int:
        query = f"?{urlencode(given)}" if given else ""
        answer = self.page.goto(f"{self.site.url}{path}{query}")
        return int(answer.status)


@contextmanager
def tab_of(browser: Any, site: Site, **look: Any) -> Iterator[Tab]:
    """A tab whose console is clean at its end."""
    found = Tab(browser, site, **look)
    try:
        yield found
        assert found.errors == []
    finally:
        found.context.close()


@pytest.fixture
def tab(browser: Any, site: Site) -> Iterator[Tab]:
    with tab_of(browser, site, **LOOKS["light"]) as found:
        yield found


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_looks_as_it_should(
    browser: Any, site: Site, axe: str, look: str, tmp_path: Path
) -> None:
    """No error on the console, nothing wider than the screen, no serious violation of axe."""
    with tab_of(browser, site, **LOOKS[look]) as tab:
        for path, given, _ in SHOWN:
            assert tab.open(path, **given) == 200
            page = tab.page
            assert (
                page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            ), path
            assert serious(page, axe, AXE[look]) == [], path
            picture(page, path, look, tmp_path)


def serious(page: Any, axe: str, options: dict[str, object] | None) -> list[object]:
    """Return what axe finds: its name, and some of the elements."""
    if options is None:
        return []
    page.evaluate(axe)
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        (one["id"], [node["html"][:200] for node in one["nodes"][:3]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def picture(page: Any, path: str, look: str, otherwise: Path) -> None:
    """Take a picture, for the documentation if it is one of these and asked for."""
    name = IN_DOCS.get((path, look))
    wanted = name is not None and "TESTS_WRITE_PICTURES" in os.environ
    folder = PICTURES if wanted else otherwise
    folder.mkdir(exist_ok=True)
    page.screenshot(
        path=folder / f"dashboard-{name}.png", clip=None if look == "phone" else CLIP
    )


CLIP = {"x": 0, "y": 0, "width": 1280, "height": 800}


def test_every_page_answers_without_javascript(browser: Any, site: Site) -> None:
    """Filters and links included."""
    with tab_of(browser, site, java_script_enabled=False) as tab:
        for path, given, text in SHOWN:
            assert tab.open(path, **given) == 200
            assert text in tab.page.content().replace("&amp;", "&"), path
        tab.open("/jobs")
        tab.page.fill("input[name=q]", "night")
        tab.page.press("input[name=q]", "Enter")
        assert tab.page.locator("tbody tr").count() == 1
        tab.page.click("text=nightly-report")
        assert tab.page.locator("h1").inner_text() == "nightly-report"


def test_an_operation_by_keyboard_alone(tab: Tab) -> None:
    """From the list to the pause, with a reason for the audit."""
    tab.open("/")
    tab.page.keyboard.press("j")
    tab.page.wait_for_url("**/jobs")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("poll")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**q=poll*")
    tab.page.locator("a.name").focus()
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/job?name=poll-orders")
    tab.page.locator("button", has_text="Pause…").focus()
    tab.page.keyboard.press("Enter")
    tab.page.locator("text=This has not happened yet").wait_for()
    tab.page.locator("input[name=note]").focus()
    tab.page.keyboard.type("a holiday")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/job?name=poll-orders")
    assert "paused by dashboard" in tab.page.inner_text("main")
    assert "a holiday" in tab.page.inner_text("main")


def press(tab: Tab, title: str) -> None:
    """Press a button, and confirm its preview."""
    with tab.page.expect_navigation():
        tab.page.click(f"button:has-text('{title}')")
    assert "This has not happened yet" in tab.page.inner_text("main")
    with tab.page.expect_navigation():
        tab.page.click("main form button")
    assert "This was not done" not in tab.page.inner_text("main")


def test_every_button(tab: Tab, url: str) -> None:
    """Each is rehearsed, confirmed and in the audit."""
    name = world.CJK_NAME
    tab.open("/job", name=name)
    for title in ("Run now…", "Pause…", "Resume…", "Skip the next slot…"):
        tab.open("/job", name=name)
        press(tab, title)
    tab.open("/job", name=name)
    tab.page.click(".strip .failed a >> nth=0")
    press(tab, "Retry…")
    tab.open("/job", name="poll-orders")
    tab.page.locator("input[name=first]").fill(SHOWN_AT)
    tab.page.locator("input[name=last]").fill(SHOWN_AT)
    press(tab, "Preview…")
    for title in ("Retry the dead of these…", "Cancel these…"):
        tab.open("/tasks", name="send-mail", begins="order-1")
        press(tab, title)
    tab.open("/tasks", name="send-mail")
    press(tab, "Delete these…")
    tab.open("/jobs", q="month")
    assert tab.page.locator("button", has_text="Pause all of these…").count() == 1
    tab.open("/")
    press(tab, "Pause everything…")
    assert "All jobs and tasks are paused by dashboard" in tab.page.inner_text("main")
    press(tab, "Resume everything…")
    tab.open("/job", name=world.RTL_NAME)
    press(tab, "Delete…")
    tab.open("/audit")
    audit = tab.page.inner_text("main")
    operations = ["trigger", "pause", "resume", "skip_next", "retry", "backfill"]
    operations += ["retry_tasks", "cancel_tasks", "delete_tasks"]
    for operation in operations:
        assert operation in audit
    assert "delete" in audit
    assert audit.count("\tall\t") == 2
    tab.open("/timeline")
    assert "everything was paused by dashboard" in tab.page.inner_text("main")


SHOWN_AT = dict(SHOWN[[path for path, _, _ in SHOWN].index("/instant")][1])["at"]


def test_the_timeline_zooms(tab: Tab) -> None:
    """By links, keys, and a drag; the address keeps what is seen."""
    page = tab.page
    tab.open("/timeline")
    for key in ("+", "ArrowLeft"):
        with page.expect_navigation():
            page.keyboard.press(key)
        assert "from=" in page.url
    lane = "document.querySelector('.timeline .axis .lane')"
    box = page.evaluate(f"{lane}.getBoundingClientRect().toJSON()")
    with page.expect_navigation():
        page.mouse.move(box["x"] + 100, box["y"] + 10)
        page.mouse.down()
        page.mouse.move(box["x"] + 300, box["y"] + 10)
        page.mouse.up()
    tab.page.keyboard.press("?")
    assert "zoom and move" in tab.page.inner_text(".keys")
    tab.page.keyboard.press("Escape")
    assert tab.page.locator(".keys").count() == 0


def test_an_open_page_follows_the_database(tab: Tab, url: str) -> None:
    """What another operator does appears without a reload, and what was opened stays open."""
    tab.open("/job", name="nightly-report")
    tab.page.evaluate("window.same = true")
    with Operations.open(url) as operations:
        operations.by("eve").pause("nightly-report", note="seen from afar")
    tab.page.locator("text=seen from afar >> nth=0").wait_for()
    assert tab.page.evaluate("window.same") is True
    assert tab.page.locator("#stale").is_hidden()


def test_ten_thousand_rows(tab: Tab, url: str) -> None:
    """Lists are pages; each stays quick and as wide as the screen."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(MANY)
    for path, given in (
        ("/jobs", {"q": "many"}),
        ("/timeline", {"q": "many"}),
        ("/tasks", {"name": "bulk"}),
    ):
        assert tab.open(path, **given) == 200
        assert (
            tab.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        )
        tab.page.click("a[rel=next]")
        tab.page.wait_for_url("**after=*")
        assert tab.page.locator("main a").count() > 40


#: Where pictures of all pages are written, to be looked at: TESTS_PICTURES=folder.
LOOKED_AT = os.environ.get("TESTS_PICTURES")


@pytest.mark.slow
@pytest.mark.parametrize("state", ["empty", "small", "many"])
@pytest.mark.parametrize("look", LOOKS)
def test_pictures_of_every_page(
    browser: Any, databases: Databases, state: str, look: str, tmp_path: Path
) -> None:
    """Without a row, with a few that have long names, in letters of Chinese and Arabic, and with
    10,000 rows: nothing is wider than the screen, and the console is clean.
    """
    folder = Path(LOOKED_AT or tmp_path)
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        empty = state == "empty"
        made = (
            databases.provisioned()
            if empty
            else databases.provisioned("dashboard", world.fill)
        )
        url = stack.enter_context(made)
        if state == "many":
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(MANY)
        site = stack.enter_context(
            served(Dashboard(url, role="admin", secret="for tests"))
        )
        tab = stack.enter_context(tab_of(browser, site, **LOOKS[look]))
        for path, given, _ in [*SHOWN, ("/job", {"name": world.LONG_NAME}, "")]:
            if empty and given:
                continue
            shown = given
            if state == "many" and path == "/tasks":
                shown = {"name": "bulk"}
            if state == "many" and path in ("/jobs", "/timeline"):
                shown = {"q": "many"}
            assert tab.open(path, **shown) == 200
            wide = "document.documentElement.scrollWidth - innerWidth"
            assert tab.page.evaluate(wide) <= 0, path
            name = path.strip("/") or "today"
            if given.get("name") == world.LONG_NAME:
                name += "-long"
            tab.page.screenshot(
                path=folder / f"{state}-{look}-{name}.png", full_page=True
            )
