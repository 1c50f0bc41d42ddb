"""Ten planted causes are found from the pages alone: each by links that begin on Today."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from tests.contrib.dashboard import world
from tests.contrib.dashboard.site import Site, served

from slotwise.contrib.dashboard import Dashboard

#: A cause, the links to follow from Today, by a part of each address, and what the last page says.
CAUSES = {
    "a job that fails each third run": (
        ["/job?name=nightly-report"],
        "failures in a row",
    ),
    "a paused job": ([], "paused by ada@example: until the audit is through"),
    "a snapshot that starves vacuum": (["/database"], "nightly-dump"),
    "a deploy that changed a schedule": (
        ["/timeline"],
        "planned by the deploy release-41: poll-orders from */10",
    ),
    "a calendar without next year": (["/calendar?name=old"], "2020-12-25"),
    "a dead worker": ([], "worker-2 is lost"),
    "a task that no worker knows": ([], "no live worker knows it"),
    "a queue without room": (
        ["/tasks?name=resize"],
        "28 tasks are due, the oldest since",
    ),
    "a poison task": (
        ["/tasks", "/tasks?name=send-mail&state=dead", "/task?"],
        "It is dead after 10 attempts",
    ),
    "a full pool": (["/workers"], "2, full"),
    "a handler that hangs": ([], "slotwise workers stack poll-orders"),
    "an outage": (["/timeline"], "no worker was alive"),
    "a DST night": (["/timeline", "days=365"], "the clocks change to"),
}


@pytest.fixture
def site(cluster: str) -> Iterator[Site]:
    with psycopg.connect(cluster, autocommit=True) as connection:
        connection.execute(world.PLANTED)
    with (
        psycopg.connect(cluster, application_name="nightly-dump") as dump,
        served(Dashboard(cluster, role="viewer")) as found,
    ):
        dump.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        dump.execute("SELECT 1")
        yield found


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_found(site: Site, cause: str) -> None:
    path, (links, told) = "/", CAUSES[cause]
    page = site.get(path)
    for link in links:
        path = followed(page.text, link)
        page = site.get(path)
        assert page.status == 200
    assert told in re.sub(r"<[^>]+>", "", html.unescape(page.text)), path


def followed(page: str, link: str) -> str:
    """Return the address of the first link of a page that has a part; ``days=``: that shows so
    many.
    """
    addresses = [html.unescape(one) for one in re.findall(r'href="([^"]+)"', page)]
    if link.startswith("days="):
        length = timedelta(days=int(link.removeprefix("days=")))
        (found,) = [one for one in addresses if shown_length(one) == length]
        return found
    found = next((one for one in addresses if one.startswith(link)), None)
    assert found is not None, f"no link to {link}"
    return found


def shown_length(address: str) -> timedelta | None:
    given = parse_qs(urlsplit(address).query)
    if "from" not in given or "to" not in given:
        return None
    start, end = (
        datetime.fromisoformat(given[name][0]).astimezone(UTC)
        for name in ("from", "to")
    )
    return end - start
