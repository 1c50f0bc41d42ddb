"""Values of options: durations, instants in the words of a person, time zones."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

import click

from slotwise import InvalidSchedule, InvalidSetting
from slotwise.cli.shared.terminal import moment, say, shown
from slotwise.spi import KNOWN_YEARS, LONGEST_DURATION, is_known, parse_duration

# A command imports the store and the application only when it runs: the help and the version need
# neither.
if TYPE_CHECKING:
    pass


DURATIONS = f"a duration of at most {LONGEST_DURATION.days}d"
FORMS = f"an instant of {KNOWN_YEARS} (2026-01-31T02:00Z)"
_WHAT_ZONE = (
    "write 2026-01-31T02:00Z, an offset (2026-01-31T02:00+01:00) or a zone "
    "(2026-01-31T02:00 Europe/Vienna)"
)


def duration(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> timedelta | None:
    """Callback of options that take a duration."""
    try:
        return None if text is None else parse_duration(text)
    except InvalidSetting:
        cure = f"; write {text.strip()}s" if text and text.strip().isdecimal() else ""
        forms = f"such as 10s, 5m or 1h30m, at most {LONGEST_DURATION.days}d"
        raise click.BadParameter(
            f"{text!r:.60} is not a duration, {forms}{cure}", ctx, option
        ) from None


@dataclass(frozen=True, slots=True)
class Written:
    """An instant as it was written; ``value`` is naive if the text has neither offset nor zone."""

    text: str
    value: datetime

    def within(self, zone: ZoneInfo | None, option: str) -> datetime:
        """Return the instant in UTC.

        An instant without a zone gets this zone, and a note on stderr says so. Raises
        UsageError if there is no zone to read it in, or if the instant is in years that no
        schedule knows.
        """
        zone = None if zone is None else shown(zone)
        if self.value.tzinfo is None and zone is None:
            raise click.UsageError(
                f"{option}: {self.text!r:.60} has no zone; {_WHAT_ZONE}"
            )
        with suppress(ValueError, OverflowError, OSError):
            found = (
                self.value if self.value.tzinfo else self.value.replace(tzinfo=zone)
            ).astimezone(UTC)
            if is_known(found):
                if zone is not None and self.value.tzinfo is None:
                    is_skipped = found.astimezone(zone).replace(
                        tzinfo=None, fold=0
                    ) != self.value.replace(fold=0)
                    why = ", where clocks skip it" if is_skipped else ""
                    say(
                        f"note: {self.text} is read as {moment(found, zone)}, in {zone.key}{why}",
                        err=True,
                    )
                return found
        raise click.UsageError(f"{option}: {self.text!r:.60} is not {FORMS}")


def within(
    written: Written | None, zone: ZoneInfo | None, option: str
) -> datetime | None:
    """As ``Written.within``; None stays None."""
    return None if written is None else written.within(zone, option)


def instant(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> Written | None:
    """Callback of options that take an instant.

    It is written in ISO 8601 with an offset or a zone's name; without them the command reads it in
    the job's zone. Or as ``now``, or as a duration before now.
    """
    if text is None:
        return None
    with suppress(InvalidSetting):
        return Written(
            text,
            datetime.now(UTC)
            - (timedelta(0) if text.strip() == "now" else _before_now(text)),
        )
    try:
        return read_written(text)
    except ValueError:
        forms = f"neither {FORMS} nor {DURATIONS} (2h ago: 2h)"
        raise click.BadParameter(f"{text!r:.60} is {forms}", ctx, option) from None


def ahead(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> Written | timedelta | None:
    """Callback of options that take an instant, or a duration from now on."""
    if text is None:
        return None
    with suppress(InvalidSetting):
        return parse_duration(text)
    try:
        return read_written(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r:.60} is neither {FORMS} nor {DURATIONS} (in two hours: 2h)",
            ctx,
            option,
        ) from None


def _before_now(text: str) -> timedelta:
    """Parse a duration, also as listings print it: ``3.4s ago``. Raises InvalidSetting."""
    said = text.strip().removesuffix(" ago")
    if said == text.strip():
        return parse_duration(text)
    return parse_duration(re.sub(r"\.\d+(?=s$)", "", said))


def read_written(text: str, option: str | None = None) -> Written:
    """Parse ISO 8601, with an offset, with a zone's name after a space, or with neither.

    Raises ValueError, and BadParameter for an unknown zone. A callback of click needs to name no
    ``option``.
    """
    plain, _, key = text.strip().rpartition(" ")
    if plain and not key[0].isdigit():
        found = datetime.fromisoformat(plain)
        from slotwise.spi import zone_named  # late: few instants have a zone

        try:
            zone = zone_named(key)
        except InvalidSchedule as error:
            raise click.BadParameter(
                f"{text!r:.60}: {error}", param_hint=option
            ) from None
        return Written(text, found if found.tzinfo else found.replace(tzinfo=zone))
    found = datetime.fromisoformat(text.strip())
    with suppress(OverflowError):
        if is_known(
            found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        ):
            return Written(text, found)
    raise ValueError(f"it does not lie in {KNOWN_YEARS}")


def zone_name(
    ctx: click.Context, option: click.Parameter, text: str | None
) -> str | None:
    """Callback of options that take a zone's name."""
    from slotwise.spi import zone_named  # late: few commands have a zone

    try:
        return text if text is None else zone_named(text).key
    except InvalidSchedule as error:
        raise click.BadParameter(str(error), ctx, option) from None


#: The largest value of an option that counts: islice, and the arithmetic of times, fail above some
#: limit.
LARGEST_COUNT: Final = 2**31 - 1
