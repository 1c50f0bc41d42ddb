"""Which incidents begin and end, from findings and the last incidents: pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from slotwise.contrib.alarms.findings import Finding
from slotwise.contrib.alarms.incidents import Incident
from slotwise.contrib.alarms.rules import BY_EVIDENCE


@dataclass(frozen=True, slots=True)
class Changes:
    """What to write: incidents that begin, each with the last one of its kind and name, open ones
    with newer evidence, and those that are over.
    """

    begin: list[tuple[Finding, Incident | None]] = field(default_factory=list)
    renew: list[tuple[Finding, Incident]] = field(default_factory=list)
    end: list[Incident] = field(default_factory=list)


def changes(
    found: Iterable[Finding],
    latest: Mapping[tuple[str, str], Incident],
    failing: Collection[str],
) -> Changes:
    """Compare the findings of a round with the newest incident of each kind and name.

    What is measured is over when it is no longer found. A failed or lost slot is over when its job
    is not among the ``failing`` ones; if that is so at once, the next round ends its incident.
    """
    result = Changes()
    keys = set()
    for finding in found:
        keys.add(finding.key)
        last = latest.get(finding.key)
        if last is not None and finding.at <= last.seen:
            continue
        if last is None or not last.is_open:
            result.begin.append((finding, last))
        elif finding.kind in BY_EVIDENCE:
            result.renew.append((finding, last))
    for key, incident in latest.items():
        lasts = key in keys
        if incident.kind in BY_EVIDENCE:
            lasts = incident.name in failing
        if incident.is_open and not lasts:
            result.end.append(incident)
    return result
