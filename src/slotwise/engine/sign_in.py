"""Sign a worker in: wait for the database, check the tables, plan the jobs, and join the live
workers.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from slotwise import migrate
from slotwise.engine.loops.poller import Peers
from slotwise.engine.loops.service import Common, WorkerCommon
from slotwise.engine.run.active_claims import ActiveClaims
from slotwise.engine.tuning import BUSY_PAUSES, FORGET_AFTER, PAUSES, SKEW_WARNING
from slotwise.errors import DatabaseRefused
from slotwise.jobs.definition import Definition
from slotwise.jobs.policies import growing_pauses
from slotwise.model import events
from slotwise.model.clock import elapsed
from slotwise.model.events import Planned, PlanRefused
from slotwise.model.identity import Identity
from slotwise.model.records import RECURRING, Key
from slotwise.model.vocabulary import WorkerState
from slotwise.schedules import Disabled
from slotwise.store.connect.database_errors import (
    describe_error,
    is_busy,
    is_transient,
)
from slotwise.store.connect.notifications import LOOK
from slotwise.store.operations.transaction import AUTHOR_LIMIT, Author
from slotwise.store.planning.deploy_preview import compare, moved
from slotwise.store.planning.planner import BATCH, Plan, Planner
from slotwise.store.planning.revision import Revision
from slotwise.store.reading.foreign import foreign_rows, told_foreign
from slotwise.store.reading.worker_registry import Badge, WorkerRegistry
from slotwise.store.slots.history import History

logger = logging.getLogger(__name__)


class Membership:
    """Register a worker as alive, with its attributes and whether it drains. Safe between
    threads.
    """

    def __init__(
        self,
        workers: WorkerRegistry,
        history: History,
        make_badge: Callable[[], Badge],
        plight: Callable[[], WorkerState] = lambda: WorkerState.RUNNING,
    ) -> None:
        """``plight``: the state of a worker that does not drain."""
        self._worker_registry = workers
        self._make_badge = make_badge
        self._plight = plight
        self._lock = threading.Lock()
        self._badge: Badge | None = None
        self._skew: float | None = None
        self._is_skew_told = self.is_draining = False
        #: What has asked this worker to stop, as a signal.
        self.stop_reason: str | None = None
        self._history = history
        self._draining_since: float | None = None
        self.peers = Peers()

    def join(self) -> None:
        """Sign in for the first time, and delete workers that vanished long ago."""
        self._badge = self._make_badge()
        self._worker_registry.sweep(FORGET_AFTER)
        self.renew()
        life = ("worker", "host", "version", "revision", "capacity", "started")
        told = {name: getattr(self._badge, name) for name in life}
        told["tags"] = json.dumps(sorted(self._badge.tags))
        self._history.signed_in(told, self._badge.tasks)

    def drain(self) -> None:
        """Say that the worker drains, with the next heartbeat."""
        self._draining_since = elapsed()
        self.is_draining = True

    def renew(self) -> float | None:
        """Renew the registration and return the clock drift against the database, in seconds; None
        when not joined.
        """
        with self._lock:
            if (
                self._badge is None
            ):  # race: a heartbeat on its way must not bring the row of a leaving worker back
                return None
            skew, peers = self._worker_registry.sign_in(
                self._badge, self._state(), self._skew
            )
            self._skew = skew
            self._tell_drain(self._badge.worker)
        self.peers.count = peers
        if abs(skew) > SKEW_WARNING and not self._is_skew_told:
            self._is_skew_told = True
            line = (
                "this host's clock is %.1f s off the database's; jobs follow the "
                "database's clock, this log does not"
            )
            logger.warning(line, skew)
        return skew

    def _tell_drain(self, worker: str) -> None:
        """Write the drain into the history, once."""
        if (since := self._draining_since) is not None:
            self._draining_since = None
            ago = timedelta(seconds=elapsed() - since)
            self._history.draining(worker, self.stop_reason or "stop", ago)

    def _state(self) -> WorkerState:
        if self.is_draining:
            return WorkerState.DRAINING
        return self._plight()

    def leave(self) -> None:
        """Sign out; if that fails, other workers delete the row later."""
        with self._lock:
            badge = self._badge
            self._badge = None
            if badge is None:
                return
            self._tell_drain(badge.worker)
            self._history.left(badge.worker)
            try:
                self._worker_registry.sign_out(badge.worker)
            except Exception as error:
                logger.warning(
                    "cannot sign out: %s; other workers delete the row later",
                    describe_error(error),
                )


def _plight_of(claims: ActiveClaims) -> WorkerState:
    """Return the state of a worker by what its handlers do."""
    if claims.hanging():
        return WorkerState.HANGING
    return WorkerState.SLOW if claims.is_slow() else WorkerState.RUNNING


def keep_trying(
    enter: Callable[[], None], common: Common, stopping: threading.Event
) -> bool:
    """Enter the cluster; return False if a stop was requested first.

    A busy database is no outage and is retried soon. Raise DatabaseRefused, so that a deploy with
    a wrong password fails; only at the start, because a server that is being replaced may return
    the same error later.
    """
    away = growing_pauses(*PAUSES)
    busy = growing_pauses(*BUSY_PAUSES)
    while not stopping.is_set():
        try:
            enter()
        except Exception as error:
            if isinstance(error, DatabaseRefused) or not is_transient(error):
                raise
            if is_busy(error):
                logger.info(
                    "the start continues after a pause, the database is busy: %s",
                    describe_error(error),
                )
            else:
                common.outage_begins("start", error)
            stopping.wait(next(busy if is_busy(error) else away).total_seconds())
        else:
            common.outage_ends("start")
            return True
    return False


class SignIn:
    """The steps of a worker into the cluster: verify the tables, plan the jobs, register."""

    def __init__(
        self,
        common: WorkerCommon,
        identity: Identity,
        *,
        capacity: int,
        version: str,
        born: float | None,
    ) -> None:
        """``born``: see ``Worker``."""
        self._common = common
        self._identity = identity
        self._settings = common.settings
        self._store = common.store
        self.membership = Membership(
            WorkerRegistry(common.store),
            common.store.history,
            self._make_badge,
            partial(_plight_of, common.active_claims),
        )
        self._capacity = capacity
        self._version = version
        self._born = born
        self._refused: set[str] = set()
        #: The new jobs that are to be planned after the worker has joined, and its deploy.
        self._left: list[Definition] = []
        self._deploy = Revision()

    def check(self) -> None:
        """Raise what ``Planner.check`` raises if a job cannot be planned; nothing is changed."""
        Planner(self._store).check(self._jobs())

    def enter(self) -> None:
        """Plan and join; raise what ``plan`` raises. Of new jobs, plan one batch."""
        jobs = self._jobs()
        self._deploy = self.revision()
        Planner(self._store).check(jobs)  # also those that are planned later
        self._left = (
            Planner(self._store).missing(jobs)[BATCH:] if len(jobs) > BATCH else []
        )
        later = {job.name for job in self._left}
        self._plan([job for job in jobs if job.name not in later], self._deploy)
        self._report_moved(sorted(self._store.definitions.keys() - later))
        self.membership.join()
        self._warn_of_foreign_rows()

    def _warn_of_foreign_rows(self) -> None:
        with self._store.database.main.connect() as connection:
            known = self._store.definitions
            found = foreign_rows(connection, self._store.tables, known)
        for name, count in found.items():
            logger.warning("%s", told_foreign(name, count))

    def plan_rest(self, stopping: threading.Event, wake: Callable[[], None]) -> None:
        """Plan the new jobs that ``enter`` has left, until a stop is requested; ``wake``: some of
        them may be due soon.

        The worker claims meanwhile. Race: until its row is inserted, nothing can claim a new job.
        Another worker may insert it first; then it is planned under the row's lock, which claims
        skip. A claim that was first keeps its slot, as during any deploy. The deploy is as old as
        when it entered, so a newer one is not overruled.
        """
        while self._left and not stopping.is_set():
            if any(
                plan.refused is not None
                for plan in self._plan(self._left[:BATCH], self._deploy)
            ):
                self.membership.join()  # with the names of these jobs
            del self._left[:BATCH]
            wake()

    def verify(self) -> None:
        """Raise DatabaseUnreachable, SchemaMissing or SchemaMismatch unless the tables are
        correct.
        """
        database = self._store.database
        database.verify()
        if warning := database.pooler_warning:
            logger.warning(warning)
        with database.main.connect() as connection:
            migrate.check(
                connection,
                prefix=self._settings.table_prefix,
                schema=self._settings.schema,
            )

    def revision(self, text: str | None = None) -> Revision:
        """Return this deploy's revision: its id (``text``, else the settings') and its start by
        the database's clock.

        Race: a supervisor restarts a child after a newer deploy has planned. By the child's own
        start time it would be the newest of all and restore the old schedule.
        """
        age = timedelta(
            seconds=0.0 if self._born is None else self._common.elapsed() - self._born
        )
        return Revision(
            text=text or self._settings.revision, started=self._store.now() - age
        )

    def plan(
        self,
        text: str | None = None,
        *,
        only: str | None = None,
        from_due: timedelta | None = None,
    ) -> list[Plan]:
        """Create or update the rows of the jobs to match the code. Raise PlanMissing if one is
        missing.

        ``text``: the deploy's id, instead of that of the settings. ``only``: this job alone.
        ``from_due``: see ``Planner.plan``.
        """
        plans = self._plan(
            [job for job in self._jobs() if only in (None, job.name)],
            self.revision(text),
            from_due,
        )
        self._report_moved(sorted(self._store.definitions) if only is None else [only])
        return plans

    def would_change(self, job: Definition) -> bool:
        """Return whether ``plan`` would change anything of the job. Raise what it raises."""
        found = compare(self._store.database, {job.name: job}, self.revision())
        return any(one.is_change for one in found if one.job == job.name)

    def _jobs(self) -> list[Definition]:
        return [
            found for found in self._store.definitions.values() if found.is_planned
        ]

    def _plan(
        self,
        jobs: list[Definition],
        revision: Revision,
        from_due: timedelta | None = None,
    ) -> list[Plan]:
        worker = self._common.worker
        planner = Planner(self._store, Author(worker[:AUTHOR_LIMIT]))

        def tell(plan: Plan) -> None:
            self._common.listeners.publish(planned(worker, plan, revision))
            for gap in plan.superseded:
                skipped = events.skipped(worker, Key(plan.job, RECURRING), gap)
                self._common.listeners.publish(skipped)

        plans = planner.plan(jobs, revision, from_due=from_due, tell=tell)
        if any(plan.change in ("added", "changed") for plan in plans):
            self._store.database.wake_ups.tell(
                LOOK
            )  # others sleep until the row that was due next before
        self._refused.difference_update(plan.job for plan in plans)
        self._refused.update(plan.job for plan in plans if plan.refused is not None)
        planner.verify(
            [found for found in jobs if not isinstance(found.schedule, Disabled)]
        )
        return plans

    def _report_moved(self, names: list[str]) -> None:
        for one in moved(self._store, names):
            self._common.listeners.publish(
                events.SlotsMoved(
                    worker=self._common.worker, **dataclasses.asdict(one)
                )
            )

    def _make_badge(self) -> Badge:
        identity = self._identity
        settings = self._settings
        known = self._store.definitions
        passed_over = {
            name: sorted(one.runs_on)
            for name, one in known.items()
            if not one.may_run_on(settings.tags)
        }
        return Badge(
            worker=str(identity),
            host=identity.host,
            pid=identity.pid,
            boot_id=identity.boot_id,
            version=self._version,
            capacity=self._capacity,
            tags=sorted(settings.tags),
            tasks=sorted(known),
            lease=settings.lease,
            started=self._store.now(),
            revision=settings.revision,
            refused=sorted(self._refused),
            passed_over=passed_over,
        )


def planned(worker: str, plan: Plan, ours: Revision) -> Planned:
    def event(kind: Callable[..., Planned], **more: object) -> Planned:
        return kind(
            worker=worker,
            job=plan.job,
            change=plan.change,
            schedule=plan.schedule,
            next_slot=plan.next_slot,
            **more,
        )

    theirs = plan.planned_by
    if plan.refused is None or theirs is None:
        return event(events.PlanKept if plan.change == "kept" else Planned)
    return event(
        PlanRefused,
        refused=plan.refused,
        revision=str(ours),
        planned_by=str(theirs),
        cure=ours.cure(theirs),
    )
