"""The page on monitoring lists every figure, option and alarm, and its queries run."""

from __future__ import annotations

import inspect
import re
import sys

import sqlalchemy as sa
from tests.contrib.metrics.test_prometheus import RULES
from tests.docs.markdown import ROOT, blocks

from slotwise import Settings
from slotwise.cli.worker import worker
from slotwise.contrib.metrics.figures import FIGURES
from slotwise.contrib.metrics.meter import MAX_NAMES
from slotwise.spi import Database

PAGE = ROOT / "docs" / "monitoring.md"
TEXT = PAGE.read_text()
worker_module = sys.modules["slotwise.cli.worker"]


def test_the_tables_of_figures() -> None:
    """Names, kinds, labels, combination and meaning, in the order of the code."""
    rows = re.findall(
        r"^\| `(slotwise_\w+)` \| (\w+) \| ([^|]*) ?\| (\w+) \| ([^|]+) \|$",
        TEXT,
        re.MULTILINE,
    )
    found = [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)), how, told)
        for name, kind, labels, how, told in rows
    ]
    assert found == [
        (one.name, one.kind.value, one.labels, one.combine.value, one.help)
        for one in FIGURES.values()
    ]
    of_cluster = TEXT[TEXT.index("describe the cluster") :]
    assert {one.name for one in FIGURES.values() if one.is_of_cluster} == {
        name for name in FIGURES if f"| `{name}` |" in of_cluster
    }


def test_the_alarms() -> None:
    listed = re.findall(r"`(Slotwise\w+)`", TEXT)
    assert set(listed) == set(re.findall(r"alert: (\w+)", RULES.read_text()))


def test_the_variables() -> None:
    """Each variable that the command reads, and no other."""
    of_options = {one.envvar for one in worker.params if getattr(one, "envvar", None)}
    source = inspect.getsource(worker_module)
    read = set(re.findall(r'environ\.get\("(SLOTWISE_\w+)"\)', source))
    assert len(read) == 3
    assert of_options | read == set(re.findall(r"`(SLOTWISE_\w+)`", TEXT))
    assert f"{MAX_NAMES:,}" in TEXT


def test_the_queries_run(pg_url: str) -> None:
    database = Database(Settings(database_url=pg_url))
    queries = [block.code for block in blocks(PAGE, "sql")]
    assert len(queries) >= 5
    try:
        with database.main.connect() as connection:
            for query in queries:
                connection.execute(sa.text(query)).all()
    finally:
        database.close()
