"""Galera: which node of a cluster a connection leads to, and locks that hold on all nodes.

A lock of a row is known to its node only. When a transaction commits, the cluster compares the rows
that it has changed with those that others have changed meanwhile, and refuses the later one (1213).
A row that was only locked is not compared. So a lock that a law rests on changes its row, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from slotwise.spi import Joinable, Tables

#: Under this name a connection has noted its node.
NODE = "slotwise_galera_node"
#: Reads wait until the node has what the cluster has committed before: once in each transaction.
SYNC_WAIT = "SET SESSION wsrep_sync_wait = 7"
#: A node without a quorum rejects each statement, also COMMIT and ROLLBACK.
NOT_READY = 1047

_ASKED = "SHOW VARIABLES WHERE Variable_name IN ('wsrep_on', 'wsrep_node_name')"


def node_in(variables: Mapping[str, str]) -> str | None:
    """Return the name of the node that has these variables; None for a server by itself."""
    if variables.get("wsrep_on") != "ON":
        return None
    return variables["wsrep_node_name"]


def node_of(connection: Joinable) -> str | None:
    """Return the node that a connection leads to; None for a server by itself. A caller's
    connection is asked once.
    """
    if not isinstance(connection, sa.Connection):
        return None
    if connection.dialect.name not in ("mysql", "mariadb"):
        return None
    if NODE not in connection.info:
        rows = connection.exec_driver_sql(_ASKED).all()
        found = {str(name): str(value) for name, value in rows}
        connection.info[NODE] = node_in(found)
    node: str | None = connection.info[NODE]
    return node


def change_keys(
    connection: Joinable,
    tables: Tables,
    task: str,
    kind: str,
    keys: Collection[str] = ("",),
) -> None:
    """Change these rows of ``keys``, which the transaction has locked, if the server is a node of
    a cluster. An UPDATE that changes no value would not be compared.
    """
    if not keys or node_of(connection) is None:
        return
    rows = tables.keys
    mine = rows.c.task_name == task, rows.c.kind == kind, rows.c.key.in_(sorted(keys))
    connection.execute(rows.update().where(*mine).values(head=sa.func.uuid()))
