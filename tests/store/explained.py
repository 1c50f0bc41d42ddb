"""A database whose statements are heard and explained."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
from tests.store.hearing import Sent, hearing

from slotwise.jobs.definition import Definition
from slotwise.settings.settings import Settings
from slotwise.store.connect.database import Database
from slotwise.store.slots.store import Store


class Explained:
    """A store, and a connection beside it on which its statements are explained."""

    def __init__(self, url: str, definitions: Sequence[Definition]) -> None:
        self.database = Database(Settings(database_url=url))
        self.store = Store(self.database, {found.name: found for found in definitions})
        self.driver = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        self.driver.close()
        self.database.close()

    def sent(self, play: Callable[[], Any]) -> list[Sent]:
        with hearing(self.database) as heard:
            play()
        # Without the word that another thread may send meanwhile: its values have no names.
        return [(statement, dict(given or {})) for statement, given in heard if not given or isinstance(given, Mapping)]

    def plan(self, sent: Sent, mode: str) -> dict[str, Any]:
        statement, parameters = sent
        if mode == "custom":
            found = self.driver.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters, prepare=False).fetchone()
        else:
            found = self._generic_plan(statement)
        assert found is not None
        plan = found[0]
        return (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]  # type: ignore[no-any-return]

    def _generic_plan(self, statement: str) -> Any:
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
        numbered = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement)
        self.driver.execute("SET plan_cache_mode = force_generic_plan")
        self.driver.execute(f"PREPARE looked_at AS {numbered}")
        try:
            values = f"({', '.join(['NULL'] * len(names))})" if names else ""
            return self.driver.execute(f"EXPLAIN (FORMAT JSON) EXECUTE looked_at{values}").fetchone()
        finally:
            self.driver.execute("DEALLOCATE looked_at")
            self.driver.execute("RESET plan_cache_mode")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


def scanned(plan: dict[str, Any]) -> set[str]:
    """The large tables that are read from one end to the other."""
    return {
        node["Relation Name"]
        for node in nodes(plan)
        if node["Node Type"] == "Seq Scan" and node.get("Relation Name") in ("scheduled_tasks", "scheduled_slots")
    }
