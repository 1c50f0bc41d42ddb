"""``slotwise worker``: run due slots and tasks, in one process or several."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slotwise import InvalidSetting, JobRegistry
from slotwise.cli.crontabs import CrontabChoice, crontab_options
from slotwise.cli.shared import exits
from slotwise.cli.shared.application import lifespan_errors
from slotwise.cli.shared.error_report import report_error
from slotwise.cli.shared.exits import end_now, end_soon
from slotwise.cli.shared.options import (
    Command,
    Given,
    common,
    kept,
    pass_given,
)
from slotwise.contrib.logging import (
    JsonFormatter,
    LogListener,
    configure,
    keep_one_console,
)
from slotwise.contrib.processes.foreground import Foreground
from slotwise.contrib.processes.process_one import reap_as_process_one
from slotwise.contrib.processes.supervisor import Lifeline, Supervisor
from slotwise.contrib.shards import ShardedRegistry
from slotwise.contrib.shards.fleet import Fleet
from slotwise.spi import Worker, parse_duration

if TYPE_CHECKING:
    from slotwise.contrib.metrics.port import Source

logger = logging.getLogger("slotwise.worker")

#: The most names with separate labels in the figures; all others share "other".
MOST_NAMES = 1_000
LARGEST_MAX_NAMES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """Where a worker, or the supervisor of several, shows its health and its figures."""

    http: str | None
    #: Set in a child: the folder in which its supervisor looks for it.
    report: str | None
    #: The rest comes from the environment, which children inherit.
    alive_file: str | None
    stuck_after: timedelta | None
    max_names: int
    #: Where systemd listens.
    notify: str | None

    @property
    def is_shown(self) -> bool:
        """Whether anything outside asks how this process is."""
        return bool(self.http or self.alive_file or self.notify)

    @classmethod
    def chosen(cls, http: str | None, report: str | None) -> Monitoring:
        """Read the rest from the environment. Raises InvalidSetting."""
        return cls(
            http=http,
            report=report,
            alive_file=os.environ.get("SLOTWISE_ALIVE_FILE") or None,
            stuck_after=_stuck_after(os.environ.get("SLOTWISE_STUCK_AFTER")),
            max_names=_max_names(os.environ.get("SLOTWISE_METRICS_MAX_NAMES")),
            notify=os.environ.get("NOTIFY_SOCKET") or None,
        )

    def of_worker(
        self, registry: JobRegistry
    ) -> Callable[[Worker], AbstractContextManager[None]]:
        """Count what the registry's next worker does; return what shows it while that worker
        runs.
        """
        if not (self.is_shown or self.report):
            return lambda made: nullcontext()
        if (self.http or self.report) and find_spec("prometheus_client") is None:
            logger.warning(
                "/metrics is off: run pip install 'slotwise[metrics]'; /livez and "
                "/readyz are served"
            )
        from slotwise.contrib.metrics.children import place_of_child
        from slotwise.contrib.metrics.meter import Metrics

        running: list[Worker] = []
        metrics = Metrics(
            registry,
            max_names=self.max_names,
            stuck_after=self.stuck_after,
            worker=lambda: next(iter(running), None),
        )

        @contextmanager
        def show(made: Worker) -> Iterator[None]:
            running.append(made)
            with self._shown(
                metrics,
                None if self.report is None else place_of_child(Path(self.report)),
            ):
                yield

        return show

    @contextmanager
    def of_fleet(self, fleet: Fleet) -> Iterator[None]:
        """Count what the workers of several shards do, and show it while the block lasts."""
        if not (self.is_shown or self.report):
            yield
            return
        from slotwise.contrib.metrics.children import place_of_child
        from slotwise.contrib.shards.monitoring import FleetMetrics

        source = FleetMetrics(
            fleet, max_names=self.max_names, stuck_after=self.stuck_after
        )
        child = None if self.report is None else place_of_child(Path(self.report))
        with self._shown(source, child):
            yield

    @contextmanager
    def of_children(self, processes: int) -> Iterator[list[str]]:
        """Show the children of a supervisor as one; yield the options for each child."""
        if not self.is_shown:
            yield []
            return
        from slotwise.contrib.metrics.children import Children

        children = Children(processes)
        try:
            with self._shown(children):
                yield [f"--report={children.directory}"]
        finally:
            children.close()

    @contextmanager
    def _shown(self, source: Source, child: Path | None = None) -> Iterator[None]:
        from slotwise.contrib.metrics.alive_file import AliveFile
        from slotwise.contrib.metrics.port import Port
        from slotwise.contrib.metrics.service_manager import ServiceManager

        with ExitStack() as stack:
            for address in (
                [child]
                if child is not None
                else [self.http]
                if self.http is not None
                else []
            ):
                port = Port(address, source)
                stack.callback(port.close)
                if child is None:
                    logger.info(
                        "health and metrics: port %d, /livez /readyz /metrics",
                        port.number,
                    )
            if self.alive_file is not None and child is None:
                stack.callback(AliveFile(Path(self.alive_file), source.check).close)
            if self.notify is not None and child is None:
                stack.callback(ServiceManager(self.notify, source.check).close)
            yield


def _stuck_after(text: str | None) -> timedelta | None:
    """After which time a loop is stuck; None: two leases, at least a minute."""
    if not text:
        return None
    try:
        return parse_duration(text)
    except InvalidSetting as error:
        raise InvalidSetting(f"SLOTWISE_STUCK_AFTER: {error}") from None


def _max_names(text: str | None) -> int:
    """Return how many names get separate labels."""
    if not text:
        return MOST_NAMES
    if not text.strip().isdecimal() or not 1 <= int(text) <= LARGEST_MAX_NAMES:
        raise InvalidSetting(
            f"SLOTWISE_METRICS_MAX_NAMES: {text!r:.60} is not a whole number of 1 to "
            f"{LARGEST_MAX_NAMES:,}"
        )
    return int(text)


@click.command(
    cls=Command,
    notes="\n".join(f"{status:<4}{meaning}" for status, meaning in exits.MEANINGS),
    examples="""
    slotwise worker --app jobs                         one process, its registry found by itself
    slotwise worker --app shop.jobs:registry --processes 4 --threads 8
    slotwise worker --app jobs --only nightly-report --log-format json
    slotwise worker --app jobs --http '*:8081'               for probes and Prometheus
    slotwise worker --crontab shop.crontab --crontab-tz Europe/Vienna      without an application
    slotwise worker --app jobs --revision "$(git log -1 --format=%cI)"     an older deploy waits
    """,
)
@kept(
    "--processes",
    metavar="N",
    help="Processes, each a fresh interpreter under a supervisor; default: 1.",
)
@kept(
    "--threads",
    metavar="N",
    help="Handlers at a time, per process; default: 10, or one for each job.",
)
@kept(
    "--only",
    metavar="NAME",
    multiple=True,
    help="Run only this job or task; may be given more than once.",
)
@kept(
    "--tags",
    metavar="TAG",
    multiple=True,
    help="Tags of this worker, for jobs that need one.",
)
@kept(
    "--revision",
    metavar="TEXT",
    help="Orders deploys: a number, version or time that grows; default: when this "
    "command started.",
)
@crontab_options
@click.option(
    "--http",
    metavar="[HOST]:PORT",
    envvar="SLOTWISE_HTTP",
    help="Serve /livez, /readyz and /metrics here; without HOST on the loopback.",
)
@click.option("--report", hidden=True)
@click.option("--lifeline", type=int, hidden=True)
@click.option("--born", type=float, hidden=True)
@common
@pass_given
def worker(
    given: Given,
    lifeline: int | None,
    born: float | None,
    http: str | None,
    report: str | None,
    crontabs: CrontabChoice,
) -> int:
    """Run due slots and tasks, until a signal stops the worker.

    SIGTERM, Ctrl-C or a closed terminal drains: nothing new starts, claims that have not started
    are handed back at once, and running handlers may finish. The second signal cancels running
    handlers. The third one ends the process at once; its claims are taken over when their leases
    expire. Signals within a second count as one.

    Settings without an option, such as shutdown_grace, poll_interval or worker_name, come from the
    settings file or from SLOTWISE_… in the environment; the page "Commands, settings and events"
    has all.
    """
    reap_as_process_one()
    line = None if lifeline is None else Lifeline(lifeline)
    monitoring = Monitoring.chosen(http, report)
    settings = given.settings()
    handler = configure(
        "json" if given.json else settings.log_format, settings.log_level
    )
    if lifeline is None and settings.processes > 1:
        return supervise(given, settings.processes, crontabs, monitoring)
    registry = given.whole_registry(crontabs.jobs())
    keep_one_console(handler, settings.log_level)
    if lifeline is None and registry.settings.processes > 1:
        return supervise(given, registry.settings.processes, crontabs, monitoring)
    if isinstance(registry, ShardedRegistry):
        return serve_shards(registry.choose(given.shards), monitoring, line)
    given.refuse_shards()
    shown = monitoring.of_worker(registry.listen(LogListener()))
    made = registry.make_worker(born=born)
    if isinstance(handler.formatter, JsonFormatter):
        handler.formatter.worker = made.name
    with shown(made):
        return serve(made, line)


def serve_shards(
    registry: ShardedRegistry, monitoring: Monitoring, line: Lifeline | None
) -> int:
    """Run the workers of the chosen shards in the foreground; return the exit status."""
    registry.listen(LogListener())
    fleet = registry.make_fleet()
    with monitoring.of_fleet(fleet):
        return serve(fleet, line)


def supervise(
    given: Given, processes: int, crontabs: CrontabChoice, monitoring: Monitoring
) -> int:
    """Run this command line in child processes, one worker each."""
    options = {**given.values, "app_dir": str(given.app_dir)}
    flags = [_flag(name, value) for name, value in options.items()]
    command = [
        sys.executable,
        "-P",
        "-m",
        "slotwise",
        "worker",
        *flags,
        *crontabs.flags(),
        "--processes=1",
    ]
    with monitoring.of_children(processes) as reports:
        return Supervisor(
            [*command, *reports],
            processes,
            fatal=(exits.FAILED, exits.USAGE, exits.DATABASE),
        ).run()


def _flag(name: str, value: str | bool) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value is True else f"{option}={value}"


def serve(worker: Worker | Fleet, lifeline: Lifeline | None = None) -> int:
    """Run one worker in this process, in the foreground; return the exit status."""
    foreground = Foreground(
        worker, lifeline=lifeline, end_now=lambda: end_now(exits.UNFINISHED)
    )
    try:
        with lifespan_errors(worker):
            unfinished = foreground.run()
    except BaseException as error:
        if worker.unfinished:
            end_now(report_error(error))
        raise
    if unfinished:
        end_now(exits.UNFINISHED)
    return end_soon(exits.OK)
