"""Alarms: rounds that read the tables, keep incidents, and send messages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self, TypeAlias

from slotwise import Client, InvalidSetting, JobRegistry, Settings, SlotwiseError
from slotwise.contrib.alarms.bookkeeping import changes
from slotwise.contrib.alarms.delivery import Courier, copied
from slotwise.contrib.alarms.findings import findings
from slotwise.contrib.alarms.incidents import (
    OPENED,
    Incident,
    Incidents,
    Silence,
    covering,
)
from slotwise.contrib.alarms.observation import Observation, observe
from slotwise.contrib.alarms.rules import DECLARED, RuleBook, Rules
from slotwise.contrib.alarms.targets import Target
from slotwise.spi import Database, Definition, Event, growing_pauses, parse_duration

logger = logging.getLogger("slotwise.alarms")

#: Where the tables are: a registry, settings, an address, or what environment and file say.
Where: TypeAlias = JobRegistry | Settings | str | None

#: How far the first round looks back for failures.
LOOK_BACK: Final = timedelta(days=1)
#: How much of the time before the last round is read again: a settlement may commit late.
OVERLAP: Final = timedelta(minutes=5)
#: How often a message that is silenced is looked at again.
SILENCED: Final = timedelta(minutes=1)
#: How often old incidents are deleted.
TIDY: Final = timedelta(hours=1)
_FIRST_PAUSE: Final = timedelta(seconds=1)
_LONGEST_PAUSE: Final = timedelta(seconds=30)
#: How long ``close`` waits for a round, in seconds.
_LAST_ROUND: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round has done: incidents that began and ended, and messages."""

    began: int = 0
    ended: int = 0
    sent: int = 0
    failed: int = 0


class Alarms:
    """Raises alarms from the tables: one message for each incident, and one when it is over.

    Several processes may do so at once, with the same targets: the table of incidents lets
    one of them write each incident and send each message. Given a registry, it is also one of its
    listeners; with ``in_worker`` its rounds run on a thread of the worker's process while the
    worker does. ``run`` runs them in the foreground.
    """

    def __init__(
        self,
        where: Where = None,
        *,
        targets: Sequence[Target] = (),
        rules: Rules | None = None,
        by_name: Mapping[str, Rules] | None = None,
        every: timedelta | str = "15s",
        in_worker: bool = False,
    ) -> None:
        """``rules`` hold for all names but those in ``by_name``, and but those that declare their
        own (``alarm_rules``). ``every``: the pause between two rounds.

        Raises InvalidSetting or ConfigurationError.
        """
        self._where = where
        self._courier = Courier(targets)
        self._every = parse_duration(every)
        self._in_worker = in_worker
        book = RuleBook(usual=rules or Rules(), by_name=dict(by_name or {}))
        self.rules = book.with_names(declared_rules(where))
        self._opened = ExitStack()
        self._client: Client | None = None
        self._incidents: Incidents | None = None
        self._since: datetime | None = None
        self._tidied: datetime | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if isinstance(where, JobRegistry):
            where.listen(self)

    @classmethod
    def of(cls, registry: JobRegistry) -> Alarms | None:
        """Return the alarms that an application has made for its registry; None without any."""
        found = (one for one in registry.hooks.listeners if isinstance(one, cls))
        return next(found, None)

    @property
    def every(self) -> timedelta:
        """The pause between two rounds."""
        return self._every

    @property
    def targets(self) -> list[Target]:
        return list(self._courier.targets.values())

    # -- rounds -----------------------------------------------------------------------------------

    def run_once(self) -> Round:
        """Read the tables once, write which incidents begin and end, and send what is due.

        Raises DatabaseProblem, SchemaMissing or SchemaMismatch.
        """
        client, incidents = self._open()
        since = self._since or client.inspect.health().now - LOOK_BACK
        # Race: another watcher may see more recent tables, and write what it finds meanwhile. Of
        # incidents that were read first, what is stale changes none of them.
        latest = incidents.latest()
        seen = observe(client.inspect, since)
        began, ended = self._keep(incidents, latest, seen)
        sent = failed = 0
        if self.targets:  # messages are left to a watcher that can send them
            sent, failed = self._deliver(incidents, seen.now)
        self._tidy(incidents, seen.now)
        self._since = seen.now - OVERLAP
        return Round(began=began, ended=ended, sent=sent, failed=failed)

    def _keep(
        self,
        incidents: Incidents,
        latest: Mapping[tuple[str, str], Incident],
        seen: Observation,
    ) -> tuple[int, int]:
        """Write which incidents begin and end; return how many this process has written."""
        found = findings(seen, self.rules)
        wanted = changes(found, latest, seen.failing)
        began = [
            incidents.open(finding, last, seen.now) for finding, last in wanted.begin
        ]
        for finding, incident in wanted.renew:
            incidents.renew(incident, finding)
        ended = [incidents.close(incident, seen.now) for incident in wanted.end]
        return sum(began), sum(ended)

    def _deliver(self, incidents: Incidents, now: datetime) -> tuple[int, int]:
        """Send what is due and not silenced; return how many messages were sent, and how many
        incidents have one that failed.

        Nothing of the database is held while targets are asked.
        """
        silences = incidents.silences(now)
        claimed = []
        for incident in incidents.due(now):
            silence = covering(silences, incident)
            if silence is not None:
                self._hold_back(incidents, incident, now)
            elif (mine := incidents.claim(incident, now)) is not None:
                claimed.append(mine)
        sent = failed = 0
        for report in self._courier.deliver(claimed, now) if claimed else ():
            delivered = copied(report.delivered)
            incidents.mark(report.incident, delivered, report.error, now)
            sent += sum(map(len, delivered.values()))
            failed += report.error is not None
        return sent, failed

    def _hold_back(
        self, incidents: Incidents, incident: Incident, now: datetime
    ) -> None:
        """Send nothing while an incident is silenced; of one that is over and that no target knows
        of, never.
        """
        is_known = any(OPENED in events for events in incident.delivered.values())
        is_past = not incident.is_open and not is_known
        incidents.put_off(incident, None if is_past else now + SILENCED)

    def _tidy(self, incidents: Incidents, now: datetime) -> None:
        if self._tidied is None or now - self._tidied > TIDY:
            incidents.forget(now)
            self._tidied = now

    # -- incidents and silences, for people -------------------------------------------------------

    def incidents(self, limit: int = 100) -> list[Incident]:
        """Return the newest incidents, those that are open first. Raises as ``run_once``."""
        return self._open()[1].listed(limit)

    def silences(self) -> list[Silence]:
        """Return the silences that last. Raises as ``run_once``."""
        client, incidents = self._open()
        return incidents.silences(client.inspect.health().now)

    def silence(
        self,
        name: str = "",
        kind: str = "",
        *,
        until: datetime | timedelta,
        author: str,
        note: str | None = None,
    ) -> Silence:
        """Send no messages of these alarms until then, or for so long; an empty ``name`` or
        ``kind`` means all. A silence of the same alarms is replaced.

        An incident that is still open then is reported then. Raises InvalidSetting for an
        ``until`` that has passed, and as ``run_once``.
        """
        client, incidents = self._open()
        now = client.inspect.health().now
        end = now + until if isinstance(until, timedelta) else until
        if end <= now:
            raise InvalidSetting(
                f"until={end.isoformat()} has passed: choose a later time; "
                "to end a silence: --until 0s, or end_silence"
            )
        made = Silence(
            kind=kind, name=name, created=now, until=end, author=author, note=note
        )
        incidents.silence(made)
        return made

    def end_silence(self, name: str = "", kind: str = "") -> bool:
        """End the silence of these alarms; False if there is none. Raises as ``run_once``."""
        return self._open()[1].end_silence(kind, name)

    # -- life -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run rounds until ``stop``. An error is logged once until a round succeeds again; the
        pauses grow meanwhile, and the connections are made again.
        """
        pauses = growing_pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        is_failing = False
        pause = timedelta(0)
        while not self._stop.wait(pause.total_seconds()):
            try:
                self.run_once()
            except Exception as error:
                if not is_failing:
                    _log_trouble(error)
                is_failing = True
                pause = next(pauses)
                self._close_connections()
                continue
            if is_failing:
                logger.info("alarms work again")
                is_failing = False
                pauses = growing_pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
            pause = self._every
        self._close_connections()

    def stop(self) -> None:
        """End ``run`` after its current round."""
        self._stop.set()

    def start(self) -> Self:
        """Run rounds on a thread, until ``close``."""
        self._stop.clear()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self.run, name="slotwise-alarms", daemon=True
            )
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop, and wait for the current round; then close the connections."""
        self.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_LAST_ROUND)
        else:
            self._close_connections()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wants(self, kind: type[Event]) -> bool:
        """Whether this listener wants events of this kind."""
        return self._in_worker and kind.name in ("worker_start", "drain_end")

    def __call__(self, event: Event) -> None:
        if event.name == "worker_start":
            self.start()
        elif event.name == "drain_end":
            self.stop()

    def _open(self) -> tuple[Client, Incidents]:
        """Return both; of a registry, on its own connections."""
        where = self._where
        if isinstance(where, JobRegistry):
            return where.client, Incidents(where.database)
        if self._client is None or self._incidents is None:
            settings = _settings(where)
            with ExitStack() as opening:
                client = opening.enter_context(Client.open(settings))
                database = Database(settings)
                opening.callback(database.close)
                self._opened = opening.pop_all()
            self._client = client
            self._incidents = Incidents(database)
        return self._client, self._incidents

    def _close_connections(self) -> None:
        self._client = self._incidents = None
        self._opened.close()


def _settings(where: Settings | str | None) -> Settings:
    if isinstance(where, str):
        return Settings.load(database_url=where)
    return where or Settings.load()


def declared_rules(where: Where) -> dict[str, Rules]:
    """Return the rules that jobs and tasks of a registry declare."""
    if not isinstance(where, JobRegistry):
        return {}
    found = {name: _declared(one) for name, one in where.definitions.items()}
    return {name: rules for name, rules in found.items() if rules is not None}


def _declared(definition: Definition) -> Rules | None:
    """Return the rules of a class, or of a function; None without any."""
    owner = getattr(definition.handler, "__self__", definition.handler)
    rules = getattr(owner, DECLARED, None)
    return rules if isinstance(rules, Rules) else None


def _log_trouble(error: Exception) -> None:
    if isinstance(error, SlotwiseError):
        logger.error("alarms do not work: %s", error)
    else:
        logger.error("alarms do not work", exc_info=error)
