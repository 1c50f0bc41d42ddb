"""The pages by address. A page is a function from what a request reads to what is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from slotwise.contrib.dashboard.pages import (
    cluster,
    jobs,
    slots,
    tasks,
    timeline,
    today,
    what_if,
)
from slotwise.contrib.dashboard.reading import Page, Reading

MakePage: TypeAlias = Callable[[Reading], Page]

PAGES: Final[Mapping[str, MakePage]] = {
    "/": today.today,
    "/timeline": timeline.timeline,
    "/jobs": jobs.listing,
    "/job": jobs.one,
    "/instant": slots.instant,
    "/what-if": what_if.what_if,
    "/tasks": tasks.listing,
    "/task": tasks.one,
    "/load": timeline.load,
    "/workers": cluster.workers,
    "/calendars": cluster.calendars,
    "/calendar": cluster.calendar,
    "/audit": cluster.audit,
    "/database": cluster.database,
}
