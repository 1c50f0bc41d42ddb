"""A cluster in the tables, behind both faces of a dashboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contrib.dashboard import world
from tests.contrib.dashboard.site import FACES, Site, served
from tests.databases import Databases

from slotwise.contrib.dashboard import Dashboard


@pytest.fixture
def cluster(databases: Databases) -> Iterator[str]:
    """The address of a database with a cluster in it."""
    with databases.provisioned("dashboard", world.fill) as url:
        yield url


@pytest.fixture(params=FACES)
def site(cluster: str, request: pytest.FixtureRequest) -> Iterator[Site]:
    """The dashboard of an admin who may operate."""
    dashboard = Dashboard(cluster, role="admin", secret="for tests")
    with served(dashboard, request.param) as found:
        yield found
