"""The time fields of a line, as a schedule; or why there is none."""

from __future__ import annotations

from typing import Final

from slotwise.contrib.crontab.problem import Refused
from slotwise.errors import InvalidSchedule
from slotwise.schedules import Cron
from slotwise.schedules.cron.cron import MACROS

_MINUTELY: Final = "@every_minute"


def read_schedule(time: str, tz: str) -> Cron:
    """Of five fields or a macro, with cron's own rule for the two day fields. Raises Refused."""
    if time.startswith("@"):
        _check_macro(time.lower())
    if "~" in time:
        raise Refused(
            f"{time!r} has a ~, a random time: each machine would draw another one", "write the time that you want"
        )
    try:
        return Cron(time, tz=tz, day_rule="vixie")
    except InvalidSchedule as error:
        raise Refused(str(error), "correct the field, or put a # before the line") from None


def _check_macro(time: str) -> None:
    if time == "@reboot":
        raise Refused(
            "@reboot cannot run: a cluster has no moment at which it boots, only machines have",
            "let the machine's own init start it (systemd, the container's command), and put a # before the line",
        )
    if time == _MINUTELY:
        raise Refused("@every_minute is not known", "write * * * * *")
    if time not in MACROS:
        raise Refused(
            f"{time!r:.40} is no macro of cron's", f"write five time fields, or one of {', '.join(sorted(MACROS))}"
        )
