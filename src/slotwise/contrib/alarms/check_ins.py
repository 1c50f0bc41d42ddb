"""Check-ins outward: a service hears of the start and the end of each run, and raises an alarm of
its own when it hears nothing.

A listener puts them into a queue for each service; a thread sends them. So no handler, claim or
settlement waits for the service, and none fails with it.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

from slotwise import ConfigurationError, InvalidSetting, JobRegistry
from slotwise.contrib.alarms.targets import checked_url, post
from slotwise.spi import (
    Event,
    HandlerStarted,
    Outcome,
    Reaped,
    Reason,
    Settled,
    elapsed,
    error_summary,
)

logger = logging.getLogger("slotwise.alarms")

#: Check-ins that wait to be sent. With more, the oldest are dropped.
MOST_WAITING: Final = 1_000
#: How often a check-in is sent that is not accepted, and the pause between, in seconds.
TRIES: Final = 3
PAUSE: Final = 2.0
#: How long the end of a worker waits for what is left, in seconds.
LAST: Final = 10.0


class Phase(StrEnum):
    """Where a run is."""

    START = "start"
    SUCCESS = "success"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckIn:
    """The phase of one run. ``run`` is the same for the starts of all its attempts and its end."""

    job: str
    run: uuid.UUID
    phase: Phase
    text: str = ""


class Service(Protocol):
    """A service that receives check-ins."""

    def send(self, check_in: CheckIn) -> None:
        """Report one check-in. Raises OSError if it was not accepted."""


class Healthchecks:
    """Pings an address in the manner of healthchecks.io: ``/start``, itself, and ``/fail``, with
    ``rid`` as the id of the run and the error as the body.
    """

    def __init__(self, url: str) -> None:
        """Raise InvalidSetting."""
        self._url = checked_url("check-ins", url).rstrip("/")

    def __repr__(self) -> str:
        return "Healthchecks(…)"

    def send(self, check_in: CheckIn) -> None:
        path = "" if check_in.phase is Phase.SUCCESS else f"/{check_in.phase}"
        post(f"{self._url}{path}?rid={check_in.run}", check_in.text.encode(), {})


_STATUS: Final = {
    Phase.START: "in_progress",
    Phase.SUCCESS: "ok",
    Phase.FAIL: "error",
}


class SentryCrons:
    """Reports to Sentry Crons, by its HTTP interface; Sentry's SDK is not needed.

    ``slug`` is the monitor's, by default made of the job's name. With a ``crontab`` expression
    Sentry makes or updates the monitor: ``tz`` is its zone, ``margin`` how late a start may be,
    and ``max_runtime`` how long a run may take.
    """

    def __init__(
        self,
        dsn: str,
        *,
        slug: str | None = None,
        crontab: str | None = None,
        tz: str = "UTC",
        margin: timedelta = timedelta(minutes=5),
        max_runtime: timedelta = timedelta(minutes=30),
        environment: str = "production",
    ) -> None:
        """Raise InvalidSetting."""
        parts = urlsplit(checked_url("check-ins", dsn, has_key=True))
        project = parts.path.strip("/")
        if not parts.username or not project:
            raise InvalidSetting(
                "check-ins: the DSN of Sentry has the form https://KEY@HOST/PROJECT"
            )
        place = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{place}/api/{project}/cron"
        self._key = parts.username
        self._slug = slug
        self._environment = environment
        self._config = _config(crontab, tz, margin, max_runtime) if crontab else None

    def __repr__(self) -> str:
        return "SentryCrons(…)"

    def send(self, check_in: CheckIn) -> None:
        slug = self._slug or slug_of(check_in.job)
        body: dict[str, object] = {
            "check_in_id": str(check_in.run),
            "monitor_slug": slug,
            "status": _STATUS[check_in.phase],
            "environment": self._environment,
        }
        if self._config is not None:
            body["monitor_config"] = self._config
        headers = {"Content-Type": "application/json"}
        url = f"{self._base}/{quote(slug)}/{self._key}/"
        post(url, json.dumps(body).encode(), headers)


def _config(
    crontab: str, tz: str, margin: timedelta, max_runtime: timedelta
) -> dict[str, object]:
    minute = timedelta(minutes=1)
    return {
        "schedule": {"type": "crontab", "value": crontab},
        "timezone": tz,
        "checkin_margin": max(margin // minute, 1),
        "max_runtime": max(max_runtime // minute, 1),
    }


def slug_of(name: str) -> str:
    """Return a name as Sentry has it in addresses: lower-case letters, digits, ``-`` and ``_``."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")[:50] or "job"


class CheckIns:
    """Reports the runs of these jobs and tasks to services, from the worker that runs them.

    A retry that follows is no failure: its service hears of a start again, and of a failure when
    no attempt is left. A run whose worker died is reported as failed by the worker that takes it
    over, unless it runs again.
    """

    def __init__(
        self, registry: JobRegistry, services: Mapping[str, Service | list[Service]]
    ) -> None:
        """``services``: by the names of jobs or tasks. Raise ConfigurationError for other names."""
        unknown = sorted(set(services) - set(registry.definitions))
        if unknown:
            raise ConfigurationError(
                f"check-ins: {unknown[0]!r:.80} is not registered; "
                f"known are {', '.join(sorted(registry.definitions))[:200]}"
            )
        #: By the service itself: one that several jobs have keeps the order of their check-ins.
        outboxes = dict[int, _Outbox]()
        self._outboxes = dict[str, list[_Outbox]]()
        for name, given in services.items():
            listed = given if isinstance(given, list) else [given]
            self._outboxes[name] = [
                outboxes.setdefault(id(one), _Outbox(one)) for one in listed
            ]
        self._all = list(outboxes.values())
        registry.listen(self)

    @property
    def lost(self) -> int:
        """How many check-ins a service has never accepted."""
        return sum(one.lost for one in self._all)

    def wants(self, kind: type[Event]) -> bool:
        """Whether this listener wants events of this kind."""
        return issubclass(kind, (HandlerStarted, Settled, Reaped)) or (
            kind.name == "drain_end"
        )

    def __call__(self, event: Event) -> None:
        if event.name == "drain_end":
            self.flush(LAST)
        elif isinstance(event, (HandlerStarted, Settled, Reaped)):
            phase = phase_of(event)
            if event.job in self._outboxes and phase is not None:
                check_in = _check_in(event, phase)
                for outbox in self._outboxes[event.job]:
                    outbox.put(check_in)

    def flush(self, within: float) -> bool:
        """Wait until all is sent, for at most this many seconds; return whether all is."""
        end = elapsed() + within
        pause = threading.Event()
        while self._is_sending() and elapsed() < end:
            pause.wait(0.05)
        return not self._is_sending()

    def _is_sending(self) -> bool:
        return any(one.is_sending for one in self._all)


class _Outbox:
    """What one service has not received yet, and the thread that sends it: a service that is slow
    delays no other.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: queue.Queue[CheckIn] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.lost = 0

    @property
    def is_sending(self) -> bool:
        return bool(self._waiting.unfinished_tasks)

    def put(self, check_in: CheckIn) -> None:
        """Send it later; if too many wait, without the oldest."""
        while True:
            try:
                self._waiting.put_nowait(check_in)
                break
            except queue.Full:
                self._drop_oldest()
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="slotwise-check-ins", daemon=True
                )
                self._thread.start()

    def _drop_oldest(self) -> None:
        try:
            dropped = self._waiting.get_nowait()
        except queue.Empty:
            return
        self._waiting.task_done()
        self._lose(dropped, "too many wait")

    def _run(self) -> None:
        while True:
            check_in = self._waiting.get()
            try:
                self._send(check_in)
            finally:
                self._waiting.task_done()

    def _send(self, check_in: CheckIn) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                self._service.send(check_in)
                return
            except Exception as error:  # whatever a service of the application raises
                if attempt == TRIES:
                    self._lose(check_in, error_summary(str(error)) or "")
            threading.Event().wait(PAUSE)

    def _lose(self, check_in: CheckIn, why: str) -> None:
        self.lost += 1
        logger.warning(
            "the check-in %s of %s was not delivered: %s",
            check_in.phase,
            check_in.job,
            why,
        )


def run_of(event: HandlerStarted | Settled | Reaped) -> uuid.UUID:
    """Return the id of a run, the same in every worker: of a slot by its time, of a one-time task
    by when its row was made, since another one may follow with its id.
    """
    if event.slot is not None:
        return _made_of(event.job, event.id, event.slot.isoformat())
    made = event.token if event.created_version is None else event.created_version
    return _made_of(event.job, event.id, str(made))


def _made_of(*parts: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, "slotwise:" + "/".join(parts))


def phase_of(event: HandlerStarted | Settled | Reaped) -> Phase | None:
    """Return what an event says about a run; None if the run continues."""
    if isinstance(event, HandlerStarted):
        return Phase.START
    if event.outcome == Outcome.SUCCEEDED:
        return Phase.SUCCESS
    if event.outcome not in (Outcome.FAILED, Outcome.DEAD, Outcome.LOST):
        return None
    return None if event.reason in (Reason.RETRY, Reason.RERUN) else Phase.FAIL


def _check_in(event: HandlerStarted | Settled | Reaped, phase: Phase) -> CheckIn:
    text = ""
    if phase is Phase.FAIL and isinstance(event, Settled):
        text = event.error or event.reason or ""
    return CheckIn(job=event.job, run=run_of(event), phase=phase, text=text)
