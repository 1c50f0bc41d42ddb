"""The values that a command line gives: settings, the application, clients of the tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import click

from slotwise import ConfigurationError, InvalidSchedule, InvalidSetting, Settings
from slotwise.cli.shared.shards import configured_shards
from slotwise.cli.shared.terminal import ask, say, show_in
from slotwise.contrib.wording import counted

# A command imports the store and the application only when it runs: the help and the version need
# neither.
if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from slotwise import Client, JobRegistry
    from slotwise.contrib.commands import CommandJob
    from slotwise.contrib.shards import Shard, ShardedRegistry
    from slotwise.inspect import Inspection
    from slotwise.operations import Operations


class How(TypedDict):
    """The arguments that all operations take."""

    note: str | None
    dry_run: bool
    progress: Callable[[int], object] | None


NO_APP = (
    "no application was named; give --app package.module:registry, or set SLOTWISE_APP"
)


class Done:
    """How many rows a long operation has done: told on stderr now and then, and where it is
    interrupted.
    """

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, rows: int) -> None:
        self.rows = rows
        if rows and rows % 5_000 == 0:
            say(f"… {rows:,} rows", err=True)

    def tell_interrupted(self) -> None:
        if self.rows:
            say(
                f"interrupted: {counted(self.rows, 'row', 'is', 'are')} done; run the same command "
                "again for the rest",
                err=True,
            )


DONE = Done()


class Given:
    """The values of the common options; the application, the environment or a file supplies the
    missing ones.
    """

    def __init__(self) -> None:
        self.values: dict[str, str | bool] = {}
        #: The options of an operation on jobs.
        self.author: str | None = None
        self.how: How = {"note": None, "dry_run": False, "progress": DONE}
        self.is_sure = False
        #: Options that choose recurring instances of a job.
        self.chosen: dict[str, str] = {}

    def text(self, name: str) -> str | None:
        """The value of an option that takes one; None if it is missing."""
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    @property
    def json(self) -> bool:
        return bool(self.values.get("json"))

    @property
    def dry_run(self) -> bool:
        return self.how["dry_run"]

    def confirm(self, question: str) -> None:
        """Ask before an operation, unless --yes or --dry-run was given."""
        confirm(question, sure=self.is_sure or self.dry_run)

    @property
    def app_dir(self) -> Path:
        return Path(
            self.text("app_dir") or os.environ.get("SLOTWISE_APP_DIR") or "."
        ).resolve()

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings among the options, spelled as options, so that an error message names
        the option.
        """
        others = {"json", "app_dir", "config", "shard"}
        return {
            f"--{name.replace('_', '-')}": value
            for name, value in self.values.items()
            if name not in others
        }

    def settings(self) -> Settings:
        """The settings without the application's: the command line over the environment over
        the file; those of the chosen shard, or the default one, if the file has shards.
        """
        found = self.common_settings()
        shard = self.shard_of_settings()
        return found if shard is None else found.replace(**shard.settings)

    def common_settings(self) -> Settings:
        """The same without those of a shard."""
        config = self.text("config")
        found = Settings.load(
            config=Path(config) if config else None, **self.overrides
        )
        if found.tz is not None:
            show_in(_zone(found.tz))
        return found

    @property
    def shards(self) -> list[str]:
        """The names of the chosen shards; empty: none is chosen."""
        text = self.text("shard") or os.environ.get("SLOTWISE_SHARD") or ""
        return [name.strip() for name in text.split(",") if name.strip()]

    def shard_of_settings(self) -> Shard | None:
        """The chosen shard of the settings file, else the default one; None if it has none, or if
        the command line has an address.
        """
        if "database_url" in self.values:
            if "shard" in self.values:
                raise click.UsageError(
                    "--database-url and --shard both say where; leave one out"
                )
            return None
        found = configured_shards(self.text("config"))
        chosen = self.shards
        if found is None:
            if (
                chosen
                and "app" not in self.values
                and not os.environ.get("SLOTWISE_APP")
            ):
                raise ConfigurationError(
                    "--shard: the settings file has no shards; write [shards.members], or "
                    "name the application with --app"
                )
            return None
        return found[chosen[0] if chosen else found.default]

    def registry(self, jobs: Sequence[CommandJob] = ()) -> JobRegistry:
        """The application's registry, of the chosen shard if there are several; see
        ``whole_registry``.
        """
        found = self.whole_registry(jobs)
        chosen = self.shards
        if not isinstance(found, _sharded()):
            self.refuse_shards()
            return found
        if len(chosen) > 1:
            raise ConfigurationError("--shard: name one shard for this command")
        name = chosen[0] if chosen else found.shards.default
        return found.on(name)

    def refuse_shards(self) -> None:
        """Raise ConfigurationError if a shard is chosen: the application has none."""
        if self.shards:
            raise ConfigurationError(
                "--shard: the application's registry has no shards; make it a "
                "ShardedRegistry"
            )

    def whole_registry(self, jobs: Sequence[CommandJob] = ()) -> JobRegistry:
        """The application's registry, with the command line's settings over its own; its
        ``customize`` runs last.

        ``jobs`` are added to it. If there are any, the application is optional.
        """
        from slotwise import JobRegistry
        from slotwise.cli.shared.application import load_registry

        app = self.settings().app
        if app is None and not jobs:
            raise ConfigurationError(NO_APP)
        if config := self.text("config"):
            # The registry reads its file when it is created.
            os.environ["SLOTWISE_CONFIG"] = str(Path(config).resolve())
        if app is None:
            return JobRegistry(jobs=jobs).configure(**self.overrides)
        return load_registry(app, self.app_dir).configure(**self.overrides).add(jobs)

    def table_settings(self) -> Settings:
        """The settings that locate the tables.

        The application is imported only if ``--app`` names it, or if no other source has the
        database's address.
        """
        if len(self.shards) > 1:
            raise click.UsageError("--shard: name one shard for this command")
        settings = self.settings()
        if "app" in self.values or (settings.database_url is None and settings.app):
            return self.registry().settings
        return settings

    @contextmanager
    def client(self, *, import_app: bool = True) -> Iterator[Client]:
        """Open the tables; with ``--app``, the client knows the application's jobs and tasks.

        Raises DatabaseUnreachable, SchemaMissing or SchemaMismatch.
        """
        from slotwise import Client

        if import_app and "app" in self.values:
            opened = Client.open(application=self.registry())
        else:
            opened = Client.open(
                self.table_settings() if import_app else self.settings()
            )
        with opened as client:
            yield client

    @contextmanager
    def inspection(self, *, import_app: bool = True) -> Iterator[Inspection]:
        """Open the tables for reading; raises what ``client`` does."""
        with self.client(import_app=import_app) as client:
            yield client.inspect

    @contextmanager
    def operations(self) -> Iterator[tuple[Operations, Inspection]]:
        """Open the tables for operations on jobs, and for reading; raises what ``client`` does."""
        with self.client() as client:
            operations = client.operations
            yield (
                operations.by(self.author) if self.author else operations,
                client.inspect,
            )


def _sharded() -> type[ShardedRegistry]:
    from slotwise.contrib.shards import ShardedRegistry  # late: it brings the engine

    return ShardedRegistry


def _zone(name: str) -> ZoneInfo:
    from slotwise.spi import zone_named  # late: few commands have a zone

    try:
        return zone_named(name)
    except InvalidSchedule as error:
        raise InvalidSetting(f"tz: {error}") from None


pass_given = click.make_pass_decorator(Given, ensure=True)


def confirm(
    question: str, *, sure: bool, preview: str = ", or preview with --dry-run"
) -> None:
    """Ask; without a terminal, refuse. Raises Abort or UsageError."""
    if sure:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Confirm with --yes{preview}")
    ask(question)
