"""Where rows are: how a statement of PostgreSQL names those that it has found and locked."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def locked_places(found: sa.Select[Any]) -> sa.ColumnElement[bool]:
    """Rows by the places of those that ``found`` locks: it is run once, and no join is there to choose.

    After ``IN`` it stands on the inner side of a loop, and is run for each row, where the planner takes the table for
    a small one. What it asks is asked again within a CASE, which no index fits.
    """
    place: sa.ColumnElement[Any] = sa.literal_column("ctid")
    places = found.with_only_columns(place).with_for_update(skip_locked=True)
    asked = sa.true() if found.whereclause is None else found.whereclause
    still = sa.case((asked, sa.true()), else_=sa.false())
    return sa.and_(place == sa.any_(sa.func.array(places.scalar_subquery())), still)
