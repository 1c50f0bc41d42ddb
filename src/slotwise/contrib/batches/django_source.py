"""Rows of a queryset of Django, in transactions of its database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar, cast

from slotwise import ConfigurationError
from slotwise.contrib.batches.keys import Key
from slotwise.contrib.batches.source import Taken, skips
from slotwise.contrib.batches.walk import Places, Wanted

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class QuerySet(Protocol[R_co]):
    """What is used of Django's QuerySet."""

    @property
    def db(self) -> str: ...
    def filter(self, *conditions: object, **values: object) -> Self: ...
    def exclude(self, *conditions: object, **values: object) -> Self: ...
    def order_by(self, *names: str) -> Self: ...
    def select_for_update(self, *, skip_locked: bool, of: Sequence[str]) -> Self: ...
    def count(self) -> int: ...
    def exists(self) -> bool: ...
    def __iter__(self) -> Iterator[R_co]: ...
    def __getitem__(self, place: slice) -> Self: ...


@dataclass(frozen=True)
class DjangoSource(Generic[R]):
    """Objects of a queryset; ``key`` and ``order`` are names of its fields."""

    queryset: QuerySet[R]
    key: Sequence[str]
    order: Sequence[str]
    by_cursor: bool
    locks: bool

    @property
    def order_text(self) -> str:
        return ", ".join(self.order)

    @contextmanager
    def transaction(self) -> Iterator[object]:
        from django.db import connections, transaction

        with transaction.atomic(using=self.queryset.db):
            yield connections[self.queryset.db]

    def take(self, connection: object, wanted: Wanted) -> Taken[R]:
        found = self._wanted(wanted)
        if self.locks:
            found = found.select_for_update(
                skip_locked=skips(self, wanted), of=("self",)
            )
        rows = [*found[: wanted.limit]]
        orders = [_values(row, self.order) for row in rows]
        keys = orders
        if self.order != self.key:
            keys = [_values(row, self.key) for row in rows]
        return rows, Places(keys, orders)

    def is_left(self, connection: object, wanted: Wanted) -> bool:
        return self._wanted(wanted).exists()

    def _wanted(self, wanted: Wanted) -> QuerySet[R]:
        from django.db.models import Q

        found = self.queryset.order_by(*self.order)
        if wanted.only is not None:
            found = found.filter(**self._is(wanted.only))
        elif wanted.after is not None:
            found = found.filter(self._is_behind(wanted.after))
        if len(self.key) == 1 and wanted.without:
            several = [key[0] for key in wanted.without]
            found = found.exclude(**{f"{self.key[0]}__in": several})
        else:
            for key in wanted.without:
                found = found.exclude(Q(**self._is(key)))
        return found

    def count(self, connection: object) -> int:
        return self.queryset.order_by().count()

    def count_nulls(self, connection: object) -> int:
        from django.db.models import Q

        if not self.by_cursor:
            return 0
        is_null = Q()
        for name in self.order:
            is_null |= Q(**{f"{name.removeprefix('-')}__isnull": True})
        return int(self.queryset.order_by().filter(is_null).exists())

    def _is(self, key: Key) -> dict[str, object]:
        return dict(zip(self.key, key, strict=True))

    def _is_behind(self, after: Key) -> object:
        from django.db.models import Q

        found: object = None
        for one, value in reversed([*zip(self.order, after, strict=True)]):
            name = one.removeprefix("-")
            sign = "lt" if one.startswith("-") else "gt"
            condition = Q(**{f"{name}__{sign}": value})
            if found is not None:
                condition |= Q(**{name: value}) & found
            found = condition
        return found


def django_source(
    queryset: QuerySet[R], *, key: object, order: object, by_cursor: bool, locks: bool
) -> DjangoSource[R]:
    """Return the queryset with its key, by default the primary key, and its order, by default its
    own. Raises ConfigurationError.
    """
    query = getattr(queryset, "query", None)
    if getattr(query, "is_sliced", False):
        raise ConfigurationError(
            "the queryset has a limit already; leave the slice out, size= adds one"
        )
    keys = _names("key", key) or ["pk"]
    own = getattr(query, "order_by", ())
    ordered = _names("order", order) or _names("order", [*own])
    known = {one.removeprefix("-") for one in ordered}
    down = "-" if ordered and ordered[-1].startswith("-") else ""
    full = [*ordered, *(f"{down}{name}" for name in keys if name not in known)]
    return DjangoSource(queryset, keys, full, by_cursor, locks)


def _names(word: str, given: object) -> list[str]:
    if given is None:
        return []
    found = [*given] if isinstance(given, list | tuple) else [given]
    for one in found:
        if not isinstance(one, str) or not one or one == "?":
            raise ConfigurationError(
                f"{word}={one!r:.60}: write names of fields, such as "
                '"created_at" or "-created_at"'
            )
    return cast("list[str]", found)


def _values(row: object, names: Sequence[str]) -> Key:
    found = []
    for name in names:
        value: object = row
        for part in name.removeprefix("-").split("__"):
            value = getattr(value, part)
        found.append(value)
    return tuple(found)
