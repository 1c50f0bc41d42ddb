"""The items of ``sync_schedules``: validated, all of them, before a row is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Generic

from slotwise.client.arguments import ID_LIMIT, data_for, instance_of
from slotwise.client.bulk import naming_item, taken_one_by_one
from slotwise.errors import ConfigurationError
from slotwise.jobs.context import T
from slotwise.jobs.definition import Definition
from slotwise.jobs.functions import Call
from slotwise.schedules import Schedule, parse_schedule
from slotwise.store.planning.instances import Instance

#: Tags of one instance.
MOST_TAGS = 20


@dataclass(slots=True)
class RecurringItem(Generic[T]):
    """One instance for ``sync_schedules``: its id, its schedule (a Schedule or its text form), and
    the data that its handler receives, or a call of the task.

    ``tags``: what operations and lists filter by, such as ``["gold", "eu"]``.
    """

    id: str
    schedule: Schedule | str
    data: T | Call | None = None
    _: KW_ONLY
    tags: Iterable[str] = ()
    priority: int | None = None


def scoped_instances(
    definitions: Mapping[str, Definition], task: object, items: object, name: str
) -> dict[str, Instance]:
    """Return the instances that these items describe, by id. Raise what ``schedule_recurring``
    raises, with the place of the item; also for an id that comes twice.
    """
    found = dict[str, Instance]()
    where = f"sync_schedules({name!r}"
    checked = dict[str, Schedule]()
    for place, item in enumerate(taken_one_by_one(items, where)):
        with naming_item(place, item):
            if not isinstance(item, RecurringItem):
                raise ConfigurationError(
                    f"{item!r:.60} is no RecurringItem; write RecurringItem(id, schedule, data)"
                )
            if item.id in found:
                raise ConfigurationError("this id comes twice; leave one of them out")
            found[item.id] = _instance(definitions, task, name, item, checked)
    return found


def _instance(
    definitions: Mapping[str, Definition],
    task: object,
    name: str,
    item: RecurringItem[object],
    checked: dict[str, Schedule],
) -> Instance:
    """``checked``: schedules by their text, which have passed."""
    text = item.schedule if isinstance(item.schedule, str) else None
    schedule = item.schedule if text is None else parse_schedule(text)
    wanted = instance_of(
        definitions,
        task,
        item.id,
        schedule,
        data_for(name, item.data),
        item.priority,
        is_checked=text in checked,
    )
    if text is not None:
        checked[text] = wanted.schedule
    return replace(wanted, tags=_tags(item.tags)) if item.tags else wanted


def _tags(given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(
            f"tags={given!r:.60}: expected a list of strings; write tags=[{given!r:.60}]"
        )
    tags = tuple(checked_label("tag", one) for one in given)
    if len(tags) > MOST_TAGS:
        raise ConfigurationError(
            f"tags={tags!r:.60}: {len(tags)} tags, at most {MOST_TAGS} are kept"
        )
    return tuple(sorted(set(tags)))


def checked_label(what: str, given: object) -> str:
    """Return a scope, a tag or the beginning of an id. Raise ConfigurationError."""
    if not isinstance(given, str):
        problem = f"expected a string; write {str(given)!r:.60}"
    elif not given.strip():
        problem = "it cannot be blank"
    elif len(given) > ID_LIMIT:
        problem = f"it has {len(given)} characters, at most {ID_LIMIT} are kept"
    elif not given.isprintable():
        problem = "control characters are not allowed"
    else:
        return given
    raise ConfigurationError(f"{what}={given!r:.60}: {problem}")
