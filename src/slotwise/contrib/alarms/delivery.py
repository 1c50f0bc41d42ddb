"""Delivers messages: each target on its own thread, so that one that hangs delays no other."""

from __future__ import annotations

import logging
import smtplib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from slotwise import ConfigurationError
from slotwise.contrib.alarms.incidents import Incident
from slotwise.contrib.alarms.messages import message_of
from slotwise.contrib.alarms.targets import Rejected, Target
from slotwise.spi import elapsed, error_summary

logger = logging.getLogger("slotwise.alarms")

#: How long one round may wait for its targets, in seconds. It is shorter than a claim on messages.
ROUND: Final = 45.0


@dataclass(slots=True)
class Report:
    """What became of the messages of one incident."""

    incident: Incident
    #: By target and event: when it was delivered.
    delivered: dict[str, dict[str, str]] = field(default_factory=dict)
    #: By target.
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def error(self) -> str | None:
        """All errors, as one text; None if there is none."""
        found = [f"{target}: {why}" for target, why in sorted(self.errors.items())]
        return "; ".join(found) or None


class Courier:
    """Sends what targets have not received."""

    def __init__(self, targets: Sequence[Target]) -> None:
        """Raise ConfigurationError if two targets have one name."""
        self.targets = {target.name: target for target in targets}
        if len(self.targets) < len(targets):
            raise ConfigurationError(
                "two targets of the alarms have one name; give each its own name="
            )
        self._hanging: dict[str, threading.Thread] = {}

    def deliver(self, incidents: Sequence[Incident], now: datetime) -> list[Report]:
        """Send all messages that are due; return what became of each incident's.

        A target that cannot be reached is asked no more in this round. One that hangs is asked
        again when its thread has returned.
        """
        reports = [Report(incident) for incident in incidents]
        end = elapsed() + ROUND
        threads = {
            name: self._start(target, reports, now, end)
            for name, target in self.targets.items()
            if not self._is_hanging(name)
        }
        for name, thread in threads.items():
            thread.join(max(end - elapsed(), 0.0))
            if thread.is_alive():
                self._hanging[name] = thread
        for report in reports:
            self._complete(report)
        return reports

    def _start(
        self,
        target: Target,
        reports: Sequence[Report],
        now: datetime,
        end: float,
    ) -> threading.Thread:
        thread = threading.Thread(
            target=_send_all,
            args=(target, reports, now, end),
            name=f"slotwise-alarms-{target.name}",
            daemon=True,
        )
        thread.start()
        return thread

    def _is_hanging(self, name: str) -> bool:
        thread = self._hanging.get(name)
        if thread is not None and not thread.is_alive():
            del self._hanging[name]
        return name in self._hanging

    def _complete(self, report: Report) -> None:
        """Say why a target has not received a message that its thread did not come to."""
        for name in self._hanging:
            missing = set(report.incident.due_events(name))
            if missing - set(report.delivered.get(name, {})):
                report.errors.setdefault(name, f"no answer within {ROUND:.0f} s")


def _send_all(
    target: Target, reports: Sequence[Report], now: datetime, end: float
) -> None:
    """Send to one target, until it cannot be reached, or until the ``end`` of the round: what it
    would send then, another watcher may send as well. After a message that it rejects, the next
    incident's is sent.
    """
    unreachable: str | None = None
    for report in reports:
        for event in report.incident.due_events(target.name):
            if elapsed() >= end:
                return
            failure = unreachable
            if failure is None and (error := _failure(target, report, event)):
                failure = _described(error)
                unreachable = failure if _is_unreachable(error) else None
            if failure is not None:
                report.errors[target.name] = failure
                break
            delivered = report.delivered.setdefault(target.name, {})
            delivered[event] = now.isoformat()


def _failure(target: Target, report: Report, event: str) -> Exception | None:
    """Send one message; return why that failed."""
    try:
        target.send(message_of(report.incident, event))
    except Exception as error:  # whatever a target of the application raises
        text = _described(error)
        logger.warning("target %s: %s; it is tried again", target.name, text)
        return error
    return None


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error_summary(str(error)) or ''}"


def _is_unreachable(error: Exception) -> bool:
    """Whether the next message would fail as well: not of a rejection, nor of a message that
    could not be written.
    """
    is_answer = isinstance(error, smtplib.SMTPResponseException) and (
        not isinstance(
            error, (smtplib.SMTPAuthenticationError, smtplib.SMTPConnectError)
        )
    )
    is_rejected = is_answer or isinstance(error, smtplib.SMTPRecipientsRefused)
    return isinstance(error, OSError) and not (
        is_rejected or isinstance(error, Rejected)
    )


def copied(delivered: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Race: a thread that hangs may still write into a report; read a copy."""
    return {target: {**events} for target, events in list(delivered.items())}
