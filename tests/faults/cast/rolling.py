"""Tasks and a job of two releases: CAST_RELEASE=1 knows neither the second version of a payload
nor the codec.
"""

from __future__ import annotations

import os
from typing import Any

from tests.faults.cast.witness import LOG
from tests.kit.payloads import JSON

from slotwise import DistributedJob, Every, JobContext, OneTimeTask, TaskContext
from slotwise.spi import register_codec

IS_NEW = os.environ.get("CAST_RELEASE", "2") == "2"


class Reversed:
    """JSON from back to front."""

    name = "reversed"

    def encode(self, value: object, /) -> bytes:
        return JSON.encode(value)[::-1]

    def decode(self, data: bytes, /) -> object:
        return JSON.decode(data[::-1])


if IS_NEW:
    register_codec(Reversed())


class Parcel(OneTimeTask[dict[str, Any]]):
    """Its weight was in kilos."""

    name = "parcel"
    payload_version = 2 if IS_NEW else 1
    upgrades = {1: lambda old: {"grams": 1000 * old["kilos"]}} if IS_NEW else {}

    def execute(self, ctx: TaskContext[dict[str, Any]]) -> None:
        LOG.write(ctx, "start", "new" if IS_NEW else "old")


class Sealed(OneTimeTask[dict[str, Any]]):
    """In a codec that only the new release has; starts once."""

    name = "sealed"
    on_lost = "give_up"
    codec = "reversed" if IS_NEW else "json"

    def execute(self, ctx: TaskContext[dict[str, Any]]) -> None:
        LOG.write(ctx, "start", "new" if IS_NEW else "old")


class Renewed(DistributedJob):
    """Whose slots only the new release may run, once it is there."""

    name = "renewed"
    schedule = Every("1s")
    payload_version = 2 if IS_NEW else 1

    def execute(self, ctx: JobContext) -> None:
        with LOG.attempt(ctx):
            pass
