from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.contrib.batches.shop import Shop


@pytest.fixture
def shop(pg_url: str) -> Iterator[Shop]:
    shop = Shop(pg_url)
    yield shop
    shop.engine.dispose()
