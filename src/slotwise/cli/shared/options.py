"""Options that every command has, before or after its name, and the settings that they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from slotwise.errors import ConfigurationError, InvalidSetting
from slotwise.model.durations import LONGEST, parse_duration
from slotwise.settings.settings import Settings
from slotwise.settings.validators import READERS

# What reaches the tables or the application is imported when a command does: the help and the version need neither.
if TYPE_CHECKING:
    from slotwise.contrib.command import CommandJob
    from slotwise.registry.registry import JobRegistry
    from slotwise.store.reading.reader import Reader
    from slotwise.store.slots.store import Store

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

NO_APP = "no application was named; give --app package.module:registry, or set SLOTWISE_APP"


class Given:
    """What the command line says; what it does not say comes from the application, the environment or a file."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    @property
    def json(self) -> bool:
        return bool(self.values.get("json"))

    @property
    def app_dir(self) -> Path:
        return Path(self.values.get("app_dir") or os.environ.get("SLOTWISE_APP_DIR") or ".").resolve()

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings among the options, spelled as the user did, so that a complaint names the option."""
        others = {"json", "app_dir", "config"}
        return {f"--{_kebab(name)}": value for name, value in self.values.items() if name not in others}

    def settings(self) -> Settings:
        """The settings without the application's: the command line over the environment over the file."""
        config = self.values.get("config")
        return Settings.load(config=Path(config) if config else None, **self.overrides)

    def registry(self, jobs: Sequence[CommandJob] = ()) -> JobRegistry:
        """The application's registry, with the command line's settings over its own; its ``customize`` runs last.

        ``jobs`` are added to it; with them, no application need be named.
        """
        from slotwise.cli.shared.application import add_jobs, load_registry
        from slotwise.registry.registry import JobRegistry

        app = self.settings().app
        if app is None and not jobs:
            raise ConfigurationError(NO_APP)
        if config := self.values.get("config"):
            os.environ["SLOTWISE_CONFIG"] = str(Path(config).resolve())  # the registry reads its file when it is made
        if app is None:
            return JobRegistry(jobs=jobs, **self.overrides)
        return add_jobs(load_registry(app, self.app_dir).configured(**self.overrides), jobs)

    def table_settings(self) -> Settings:
        """Where the tables are. The application is imported only if it was named, or if nothing else knows."""
        settings = self.settings()
        if "app" in self.values or (settings.database_url is None and settings.app):
            return self.registry().settings
        return settings

    @contextmanager
    def store(self, *, import_app: bool = True) -> Iterator[Store]:
        """The tables. Raises DatabaseUnreachable, SchemaMissing or SchemaMismatch."""
        from slotwise import migrate
        from slotwise.store.connect.database import Database
        from slotwise.store.slots.store import Store

        settings = self.table_settings() if import_app else self.settings()
        database = Database(settings)
        try:
            database.verify()
            with database.main.connect() as connection:
                migrate.check(connection, prefix=settings.table_prefix, schema=settings.schema)
            yield Store(database, {})
        finally:
            database.close()

    @contextmanager
    def reader(self, *, import_app: bool = True) -> Iterator[Reader]:
        """The tables, for reading; raises what ``store`` does."""
        from slotwise.store.reading.reader import Reader

        with self.store(import_app=import_app) as store:
            yield Reader(store)


pass_given = click.make_pass_decorator(Given, ensure=True)


def kept(*declaration: str, **attributes: Any) -> Callable[[AnyFunction], AnyFunction]:
    """An option whose value goes into ``Given``; where it stands twice, the one after the command wins."""
    return click.option(*declaration, expose_value=False, callback=_keep, **attributes)


def _keep(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    given = ctx.find_root().ensure_object(Given)
    if option.name and ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
        said = ",".join(value) if isinstance(value, tuple) else value
        if (read := READERS.get(option.name)) is not None:
            _understood(ctx, lambda: read(f"--{_kebab(option.name or '')}", said))
        given.values[option.name] = said


def _understood(ctx: click.Context, read: Callable[[], object]) -> None:
    """What cannot be read on the command line cannot be understood: the status says so."""
    try:
        read()
    except InvalidSetting as error:
        raise click.UsageError(str(error), ctx) from None


def duration(ctx: click.Context, option: click.Parameter, text: str | None) -> timedelta | None:
    """For options that say how long."""
    try:
        return None if text is None else parse_duration(text)
    except InvalidSetting:
        cure = f"; write {text.strip()}s" if text and text.strip().isdecimal() else ""
        forms = f"such as 10s, 5m or 1h30m, at most {LONGEST.days}d"
        raise click.BadParameter(f"{text!r:.60} is no duration, {forms}{cure}", ctx, option) from None


COMMON: tuple[Callable[[Any], Any], ...] = (
    kept("--app", metavar="MODULE[:NAME]", help="The registry of your application; or SLOTWISE_APP."),
    kept("--app-dir", metavar="DIR", help="Where MODULE is looked for last; default: the current directory."),
    kept("--database-url", metavar="URL", help="Where the tables are; or SLOTWISE_DATABASE_URL, or DATABASE_URL."),
    kept("--schema", metavar="NAME", help="PostgreSQL schema of the tables."),
    kept("--table-prefix", metavar="PREFIX", help="What the tables' names start with; default: scheduled_"),
    kept(
        "--config",
        metavar="FILE",
        help="Settings file; or SLOTWISE_CONFIG; else ./slotwise.toml or .yaml, if there is one.",
    ),
    kept("--json", is_flag=True, help="Write JSON: instants in UTC, durations in seconds."),
    kept("--log-format", metavar="human|json", help="How log lines are written to stderr."),
    kept("--log-level", metavar="LEVEL", help="The least severe log record that is written; default: INFO."),
)
COMMON_NAMES = frozenset(
    {"app", "app_dir", "database_url", "schema", "table_prefix", "config", "json", "log_format", "log_level"}
)


def common(function: AnyFunction) -> AnyFunction:
    """The options of every command."""
    for option in reversed(COMMON):
        function = option(function)
    return function


def _kebab(name: str) -> str:
    return name.replace("_", "-")
