"""How many worlds: --seeds 500, or --seeds 17-17 for one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from slotwise import Settings
from slotwise.operations import Schema
from slotwise.spi import Database
from slotwise.testing.manual_worker import IN_MEMORY

SEEDS = "8"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds",
        help=f"simulated worlds: how many, or FIRST-LAST; {SEEDS} if not given",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``seed``: every world; ``rare_seed``: one in four, for what takes longer or says less.

    Of the usual seeds, the first few are enough for a first look. Worlds that are asked for take
    as long as they take.
    """
    wanted = metafunc.config.getoption("--seeds", None)
    seeds = _seeds(wanted or SEEDS)
    for name, some, few in (("seed", seeds, 2), ("rare_seed", seeds[::4], 1)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(
                name,
                [
                    pytest.param(
                        seed, id=f"seed-{seed}", marks=_marks(wanted, at < few)
                    )
                    for at, seed in enumerate(some)
                ],
            )


def _marks(wanted: str | None, is_first: bool) -> list[pytest.MarkDecorator]:
    if wanted:
        return [pytest.mark.timeout(0)]
    return [] if is_first else [pytest.mark.extended]


def _seeds(wanted: str) -> Sequence[int]:
    first, _, last = wanted.partition("-")
    return range(int(first), int(last) + 1) if last else range(int(first))


@pytest.fixture
def memory() -> Iterator[Database]:
    """A database that is gone with the test."""
    database = Database(Settings(database_url=IN_MEMORY))
    Schema.create_in(database)
    yield database
    database.close()
