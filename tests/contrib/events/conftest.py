"""Both databases."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    name = "pg_url" if request.param == "postgresql" else "sqlite_url"
    found: str = request.getfixturevalue(name)
    return found
