"""The registry of an application with shards: one declaration of jobs, a worker for each shard."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Self, TypeAlias

from slotwise import ConfigurationError, JobRegistry, Settings
from slotwise.contrib.shards.client import ShardedClient
from slotwise.contrib.shards.fleet import Fleet
from slotwise.contrib.shards.lifespan import Lifespan, SharedLifespan
from slotwise.contrib.shards.listening import SharedPlace
from slotwise.contrib.shards.one_shard import ShardRegistry
from slotwise.contrib.shards.shards import Shards
from slotwise.spi import Database, Definition, Event, check_lifespan, define

Listener: TypeAlias = Callable[[Event], None]

#: Settings that each shard has for itself.
_OWN = ("database_url", "schema", "wake_up_url")


class ShardedRegistry(JobRegistry):
    """Jobs and tasks of an application with several databases, or schemas.

    ``shards`` are Shards; without it they are those of the settings file. Jobs run on the default
    shard; a job with ``each_shard=True`` has a row in each, and tasks run on all. Other arguments
    are those of JobRegistry. ``start`` and ``stop`` run the workers of all shards, or of those
    that ``choose`` named; a shard that is down stops only itself. ``sharded`` schedules by shard,
    connection or key, and ``on`` has the registry of one shard. As a JobRegistry it is that of
    the default shard: ``client``, ``inspect`` and ``operations`` lead there.

    Raises what JobRegistry raises, and ConfigurationError without shards.
    """

    def __init__(
        self,
        *,
        shards: Shards | None = None,
        jobs: Iterable[object] = (),
        tasks: Iterable[object] = (),
        lifespan: Lifespan | None = None,
        config: Path | None = None,
        **arguments: object,
    ) -> None:
        _refuse_own(arguments)
        found = Shards.load(config) if shards is None else shards
        if found is None:
            raise ConfigurationError(
                "there are no shards; write [shards.members] in slotwise.toml, or pass "
                "shards=Shards({…}, default=…)"
            )
        self.shards = found
        self._chosen = list(found)
        self._jobs = _instances(jobs)
        self._tasks = _instances(tasks)
        self._lifespan = None
        if lifespan is not None:
            self._lifespan = SharedLifespan(check_lifespan(lifespan))
        self._arguments = {**arguments, "config": config}
        self._registries: dict[str, ShardRegistry] = {}
        self._places: dict[str, SharedPlace] = {}
        self._changes: dict[str, object] = {}
        self._making = threading.RLock()
        self._fleet: Fleet | None = None
        self._fleet_error: BaseException | None = None
        default = found[found.default].settings
        super().__init__(
            jobs=self._jobs,  # type: ignore[arg-type]
            tasks=self._tasks,  # type: ignore[arg-type]
            **self._arguments,  # type: ignore[arg-type]
            **default,  # type: ignore[arg-type]
        )
        _refuse_isolated(self.definitions.values())
        self.client.shard = found[found.default]
        #: Schedules by shard, connection or key.
        self.sharded = ShardedClient(found, self.on)

    def on(self, shard: str) -> ShardRegistry:
        """Return the registry of one shard. Raises ConfigurationError for an unknown name."""
        found = self.shards[shard]
        with self._making:
            if shard not in self._registries:
                made = ShardRegistry(
                    found,
                    self.shards,
                    self._open,
                    jobs=self._jobs_of(shard, self._jobs),
                    tasks=self._tasks,
                    lifespan=self._lifespan,
                    **self._arguments,
                )
                for listener in self.hooks.listeners[len(made.hooks.listeners) :]:
                    made.listen(_of_shard(listener, shard))
                made.configure(**self._changes)
                self._registries[shard] = made
            return self._registries[shard]

    def choose(self, names: Iterable[str]) -> Self:
        """Run the workers of these shards only; without names, of all.

        Raises ConfigurationError for an unknown one.
        """
        self._chosen = self.shards.chosen(names)
        return self

    def configure(self, **settings: object) -> Self:
        """Apply further settings to all shards; raises what JobRegistry raises."""
        changes = {key.removeprefix("--").replace("-", "_"): key for key in settings}
        for name in _OWN:
            if name in changes:
                raise ConfigurationError(
                    f"{changes[name]}: this application has shards; choose one with --shard"
                )
        super().configure(**settings)
        self._changes |= settings
        for made in self._registries.values():
            made.configure(**settings)
        return self

    def add(
        self, jobs: Iterable[object] = (), *, tasks: Iterable[object] = ()
    ) -> Self:
        """Add jobs and tasks to the shards where they live, before a start.

        Raises ConfigurationError if a name is taken.
        """
        more_jobs, more_tasks = _instances(jobs), _instances(tasks)
        super().add(more_jobs, tasks=more_tasks)
        self._jobs += more_jobs
        self._tasks += more_tasks
        for name, made in self._registries.items():
            made.add(self._jobs_of(name, more_jobs), tasks=more_tasks)
        return self

    def _jobs_of(self, shard: str, jobs: Iterable[object]) -> list[object]:
        """Return those of these jobs that live on a shard."""
        is_default = shard == self.shards.default
        return [one for one in jobs if is_default or define(one).each_shard]

    def listen(self, listener: Listener) -> Self:
        """Add a listener, for the workers of all shards that are created from now on."""
        super().listen(listener)
        for name, made in self._registries.items():
            made.listen(_of_shard(listener, name))
        return self

    def open_database(self) -> Database:
        """Return the pool of the default shard."""
        return self.on(self.shards.default).database

    def _open(self, settings: Settings) -> Database:
        """Return the pool of a shard; schemas of one address share its connections."""
        url = str(settings.database_url)
        others = [one for one in self.shards if one.database_url == url]
        if len(others) == 1:
            return Database(settings)
        with self._making:
            place = self._places.get(url)
            if place is None:
                place = self._places[url] = SharedPlace(settings)
            return place.open(settings)

    # -- life -------------------------------------------------------------------------------------

    def make_fleet(self, loop: asyncio.AbstractEventLoop | None = None) -> Fleet:
        """Return the workers of the chosen shards, not started, for a host that runs them."""
        registries = [
            self.on(shard.name)
            for shard in self._chosen
            if self._tasks or self._has_jobs(shard.name)
        ]
        if not registries:
            raise ConfigurationError(
                "the chosen shards have neither tasks nor jobs with each_shard=True; "
                f"choose the default shard, {self.shards.default}"
            )
        needs_loop = any(found.is_async for found in self.definitions.values())
        return Fleet(
            registries,
            lifespan=self._lifespan,
            needs_loop=needs_loop or self._lifespan is not None,
            loop=loop,
            on_end=self._close_places,
        )

    def _has_jobs(self, shard: str) -> bool:
        jobs = (found for found in self.definitions.values() if found.is_job)
        is_default = shard == self.shards.default
        return any(is_default or found.each_shard for found in jobs)

    def _close_places(self) -> None:
        for shard in self.shards:
            shard.close()
        for made in list(self._registries.values()):
            made.database.close()
        for place in list(self._places.values()):
            place.lender.close()

    @property
    def fleet(self) -> Fleet | None:
        """The running workers, if any."""
        return self._fleet

    def start(
        self,
        *,
        host_loop: asyncio.AbstractEventLoop | None = None,
        timeout: timedelta | str | None = None,
        wait: bool = True,
    ) -> None:
        """Start the workers; return when each runs, waits for its database, or has failed.

        Raises ConfigurationError if they run, and the first error if all shards fail. Signals are
        the application's affair. ``timeout`` and ``wait`` are accepted for hosts: this never waits
        for a database.
        """
        with self._making:
            if self._fleet is not None:
                raise ConfigurationError("the registry is running; stop it first")
            self._fleet = self.make_fleet(host_loop)
            self._fleet_error = None
        try:
            self._fleet.start()
        except BaseException as error:
            self._fleet = None
            self._fleet_error = error
            raise

    def start_aside(
        self, host_loop: asyncio.AbstractEventLoop | None = None
    ) -> threading.Thread:
        """Start the workers on a thread, for a host, and return that thread."""

        def start() -> None:
            try:
                self.start(host_loop=host_loop)
            except BaseException as error:
                self._fleet_error = error

        thread = threading.Thread(target=start, name="slotwise-start", daemon=True)
        thread.start()
        return thread

    @property
    def start_error(self) -> BaseException | None:
        """Why the last start failed; None while the workers run."""
        return self._fleet_error

    def stop(self, grace: timedelta | None = None) -> int:
        """Drain the workers of all shards at a time; return how much they left behind."""
        fleet = self._fleet
        if fleet is None:
            self._close_places()
            return 0
        try:
            return fleet.stop(grace)
        finally:
            self._fleet = None

    @property
    def is_running(self) -> bool:
        """Whether workers run in this process."""
        return self._fleet is not None

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong with the shards whose worker does not run here, by name."""
        if self._fleet is None:
            return {}
        return {
            member.name: problem
            for member in self._fleet.members
            if (problem := member.problem) is not None
        }


def _of_shard(listener: Listener, name: str) -> Listener:
    """Return the listener for one shard, where it has a form for that."""
    of_shard = getattr(listener, "of_shard", None)
    found: Listener = listener if of_shard is None else of_shard(name)
    return found


def _instances(given: Iterable[object]) -> list[object]:
    """Return these jobs or tasks, the same objects for all shards."""
    return [one() if isinstance(one, type) else one for one in given]


def _refuse_own(arguments: Mapping[str, object]) -> None:
    for name in _OWN:
        if arguments.get(name) is not None:
            raise ConfigurationError(
                f"{name} is that of each shard; write it in the shards, and leave it out here"
            )


def _refuse_isolated(definitions: Iterable[Definition]) -> None:
    isolated = sorted(one.name for one in definitions if one.isolation)
    if isolated:
        raise ConfigurationError(
            f'{", ".join(isolated)}: isolation="process" does not work with shards: the '
            "child process would not know its shard; leave it out"
        )
