"""A database whose statements are heard and explained."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from tests.kit.store import Store
from tests.store.hearing import Sent, hearing, listening

from slotwise import Settings
from slotwise.spi import Database, Definition


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
        return [
            (statement, dict(given or {}))
            for statement, given in heard
            if not given or isinstance(given, Mapping)
        ]

    def plan(self, sent: Sent, mode: str) -> dict[str, Any]:
        statement, parameters = sent
        if mode == "custom":
            found = self.driver.execute(
                f"EXPLAIN (FORMAT JSON) {statement}", parameters, prepare=False
            ).fetchone()
        else:
            found = self._generic_plan(statement)
        assert found is not None
        plan = found[0]
        return (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]  # type: ignore[no-any-return]

    def _generic_plan(self, statement: str) -> Any:
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
        numbered = re.sub(
            r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement
        )
        self.driver.execute("SET plan_cache_mode = force_generic_plan")
        self.driver.execute(f"PREPARE looked_at AS {numbered}")
        try:
            values = f"({', '.join(['NULL'] * len(names))})" if names else ""
            return self.driver.execute(
                f"EXPLAIN (FORMAT JSON) EXECUTE looked_at{values}"
            ).fetchone()
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
        if node["Node Type"] == "Seq Scan"
        and node.get("Relation Name") in ("scheduled_tasks", "scheduled_slots")
    }


class Analysed(NamedTuple):
    """A statement, the plan by which it ran, and what it read."""

    statement: str
    mode: str
    plan: dict[str, Any]

    @property
    def rows(self) -> int:
        """Rows of tables: those that were found, and those that were thrown away."""
        kinds = (
            "Actual Rows",
            "Rows Removed by Filter",
            "Rows Removed by Index Recheck",
        )
        scans = [
            node
            for node in nodes(self.plan)
            if "Relation Name" in node and "Scan" in node["Node Type"]
        ]
        return sum(
            sum(int(node.get(kind, 0)) for kind in kinds) * int(node["Actual Loops"])
            for node in scans
        )

    @property
    def pages(self) -> int:
        return int(self.plan["Shared Hit Blocks"] + self.plan["Shared Read Blocks"])


@contextmanager
def analysing(database: Database) -> Iterator[list[Analysed]]:
    """What the statements that are sent meanwhile read, each run before it is really sent, and
    rolled back.

    On its own connection, with the plan that its settings choose and with a generic one.
    """
    found: list[Analysed] = []

    def listen(
        connection: Any, _cursor: Any, statement: str, given: Any, *_rest: Any
    ) -> None:
        driver = connection.connection.driver_connection
        if isinstance(given, list):
            given = given[0]  # one of many that are sent by one call
        if (
            statement.lstrip("( \n")
            .upper()
            .startswith(("SELECT", "WITH", "UPDATE", "DELETE", "INSERT"))
        ):
            for mode in ("auto", "force_generic_plan"):
                found.append(
                    Analysed(
                        statement,
                        mode,
                        _analysed(driver, statement, dict(given or {}), mode),
                    )
                )

    with listening(database, listen):
        yield found


def _analysed(
    driver: Any, statement: str, given: Mapping[str, Any], mode: str
) -> dict[str, Any]:
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    numbered = re.sub(
        r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement
    )
    values = sql.SQL(", ").join(sql.Literal(given[name]) for name in names)
    with driver.transaction(force_rollback=True), driver.cursor() as cursor:
        if mode != "auto":
            cursor.execute(f"SET LOCAL plan_cache_mode = {mode}")
        cursor.execute(f"PREPARE looked_at AS {numbered}", prepare=False)
        try:
            explain = sql.SQL(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE looked_at"
            )
            (found,) = cursor.execute(
                explain + sql.SQL("({})").format(values) if names else explain
            ).fetchone()
        finally:
            cursor.execute("DEALLOCATE looked_at")
    return found[0]["Plan"]  # type: ignore[no-any-return]
