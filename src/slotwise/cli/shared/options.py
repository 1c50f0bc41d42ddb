"""What commands are declared with: their help pages, the options that several of them share, and
the given values.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

import click
from click.core import ParameterSource

from slotwise import InvalidSetting, Settings
from slotwise.cli.shared.given import DONE as DONE
from slotwise.cli.shared.given import Given as Given
from slotwise.cli.shared.given import confirm as confirm
from slotwise.cli.shared.given import pass_given as pass_given
from slotwise.inspect import RECURRING

Decorator: TypeAlias = Callable[[Callable[..., object]], Callable[..., object]]
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])


# -- common options -------------------------------------------------------------------------------


def kept(*declaration: str, **attributes: Any) -> Callable[[AnyFunction], AnyFunction]:
    """An option whose value goes into ``Given``; if it is given twice, the one after the command
    wins.
    """
    return click.option(*declaration, expose_value=False, callback=_keep, **attributes)


def _keep(
    ctx: click.Context, option: click.Parameter, value: str | bool | tuple[str, ...]
) -> None:
    given = ctx.find_root().ensure_object(Given)
    if (
        option.name
        and ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ):
        written = ",".join(value) if isinstance(value, tuple) else value
        try:
            Settings.check(option.name, written, f"--{_kebab(option.name)}")
        except InvalidSetting as error:
            raise click.UsageError(str(error), ctx) from None
        given.values[option.name] = written


COMMON: tuple[Callable[[Callable[..., object]], Callable[..., object]], ...] = (
    kept(
        "--app",
        metavar="MODULE[:NAME]",
        help="The registry of your application; or SLOTWISE_APP.",
    ),
    kept(
        "--app-dir",
        metavar="DIR",
        help="The directory that is appended to sys.path; default: the current one.",
    ),
    kept(
        "--database-url",
        metavar="URL",
        help="Where the tables are; or SLOTWISE_DATABASE_URL, or DATABASE_URL.",
    ),
    kept(
        "--shard",
        metavar="NAME",
        multiple=True,
        help="This shard, of an application with several; or SLOTWISE_SHARD.",
    ),
    kept("--schema", metavar="NAME", help="PostgreSQL schema of the tables."),
    kept(
        "--table-prefix",
        metavar="PREFIX",
        help="Prefix of the tables' names; default: scheduled_",
    ),
    kept(
        "--config",
        metavar="FILE",
        help="Settings file; or SLOTWISE_CONFIG; else ./slotwise.toml or .yaml, if there is one.",
    ),
    kept(
        "--json",
        is_flag=True,
        help="Write JSON: instants in UTC, durations in seconds.",
    ),
    kept(
        "--tz",
        metavar="ZONE",
        help="Zone in which times are shown; default: that of each job.",
    ),
    kept(
        "--log-format", metavar="human|json", help="Format of the log lines on stderr."
    ),
    kept(
        "--log-level",
        metavar="LEVEL",
        help="Lowest level that is logged; default: INFO.",
    ),
)
COMMON_NAMES = frozenset(
    {
        "app",
        "app_dir",
        "database_url",
        "shard",
        "schema",
        "table_prefix",
        "config",
        "json",
        "tz",
        "log_format",
        "log_level",
    }
)


def common(function: AnyFunction) -> AnyFunction:
    """Add the options that every command has."""
    return with_options(*COMMON)(function)


def with_options(*options: Decorator) -> Callable[[AnyFunction], AnyFunction]:
    """One decorator for several options; help pages list them in this order."""

    def decorate(function: AnyFunction) -> AnyFunction:
        decorated: Callable[..., object] = function
        for option in reversed(options):
            decorated = option(decorated)
        return cast("AnyFunction", decorated)

    return decorate


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def lines_option(
    default: int | None, help: str = "At most this many lines."
) -> Callable[[AnyFunction], AnyFunction]:
    """The option ``-n`` of a listing; its value is ``count``."""
    kind = click.IntRange(1, 100_000)
    return click.option(
        "-n",
        "--limit",
        "count",
        type=kind,
        default=default,
        show_default=default is not None,
        help=help,
    )


# -- options of operations ------------------------------------------------------------------------

dry_run = click.option(
    "--dry-run", is_flag=True, help="Print what would change, and change nothing."
)
#: For commands that change many rows.
yes = click.option("--yes", is_flag=True, help="Do not ask.")
#: For operations that may apply to one of a task's recurring instances.
id_option = click.option(
    "--id",
    default=RECURRING,
    metavar="ID",
    help="This recurring instance, not the job.",
)


def _note(
    ctx: click.Context, option: click.Parameter, value: str | bool | None
) -> None:
    given = ctx.find_root().ensure_object(Given)
    match option.name, value:
        case "dry_run", bool():
            given.how["dry_run"] = value
        case "yes", bool():
            given.is_sure = value
        case "note", str():
            given.how["note"] = value
        case "author", str():
            given.author = value
        case "scope" | "tag" | "prefix" as name, str():
            given.chosen[name] = value


_noted = partial(click.option, expose_value=False, callback=_note)
#: The options of every operation on jobs, and of those that change many rows. Their values go into
#: ``Given``.
operation = with_options(
    _noted(
        "--author",
        metavar="NAME",
        envvar="SLOTWISE_AUTHOR",
        help="Author in the audit; default: user@host.",
    ),
    _noted("--note", metavar="TEXT", help="The reason; for the audit."),
    _noted(
        "--dry-run", is_flag=True, help="Print what would change, and change nothing."
    ),
)
sure = _noted("--yes", is_flag=True, help="Do not ask.")
#: The options that choose many recurring instances of a job. Their values go into ``Given``.
of_instances = with_options(
    _noted("--scope", metavar="NAME", help="All recurring instances of this scope."),
    _noted("--tag", metavar="TAG", help="All recurring instances with this tag."),
    _noted("--prefix", metavar="TEXT", help="All whose ids begin so."),
)


def named(
    kind: str, listing: str
) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Callback of arguments that name a job or a task: a blank name is a mistake, as of an unset
    variable.
    """

    def checked(
        ctx: click.Context, argument: click.Parameter, text: str | None
    ) -> str | None:
        if text is not None and not text.strip():
            raise click.BadParameter(
                f"{text!r} is blank; write the name of a {kind}, as {listing} shows it",
                ctx,
                argument,
            )
        return text

    return checked


job_name = named("job", "slotwise jobs")


def job_command(
    short_help: str,
    examples: str,
    *options: Decorator,
    optional: bool = False,
    notes: str = "",
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Declare an operation on the job NAME (``optional``: it may be left out)."""

    def decorate(function: Callable[..., int | None]) -> click.Command:
        every = with_options(
            click.argument("name", required=not optional, callback=job_name),
            *options,
            operation,
            common,
        )
        command = click.command(
            cls=Command, short_help=short_help, examples=examples, notes=notes
        )
        return command(every(pass_given(function)))

    return decorate


#: Options that people try, and what to write instead.
_OPTION_GUESSES: Final = {
    "--data": "a job takes no data; a one-time task does: slotwise tasks schedule NAME --data JSON",
    "--instance": "a recurring instance is named with --id",
    "--url": "the database is named with --database-url",
    "--db": "the database is named with --database-url",
    "--queue": "tasks have no queues; workers are chosen with --tags, tasks with --only",
    "--concurrency": "write --threads N for handlers at a time, --processes N for processes",
    "--format": "write --crontab-format for crontabs, --log-format for log lines, --json for "
    "listings",
    "--watch": "repeat the command: watch slotwise …",
    "--follow": "repeat the command: watch slotwise …",
    "--since-last": "write --since DURATION",
    "--delay": "for a delay: --at 1h",
    "--worker-name": "the name is a setting: SLOTWISE_WORKER_NAME",
    "--alive-file": "it is named in the environment: SLOTWISE_ALIVE_FILE",
}

# -- help pages -----------------------------------------------------------------------------------


class _Sections(click.Command):
    """A help page with the common options in a section of their own, and with exit statuses and
    examples at its end.
    """

    def __init__(
        self, *arguments: Any, examples: str = "", notes: str = "", **attributes: Any
    ) -> None:
        super().__init__(*arguments, **attributes)
        own = {one.name for one in self.params if one.expose_value}
        # an option of the command replaces the common one of its name
        self.params = [
            one for one in self.params if one.expose_value or one.name not in own
        ]
        self.examples = textwrap.dedent(examples).strip()
        self.notes = textwrap.dedent(notes).strip()

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for option in self.get_params(ctx):
            if record := option.get_help_record(ctx):
                is_common = option.name in COMMON_NAMES and not option.expose_value
                (common if is_common else own).append(record)
        if own:
            with formatter.section("Options"):
                formatter.write_dl(own)
        if not common:
            return
        with formatter.section("Before or after the command"):
            if ctx.parent is None:
                formatter.write_dl(common)
            else:
                names = ", ".join(record[0].partition(" ")[0] for record in common)
                formatter.write_text(f"{names}; see slotwise --help")

    def format_epilog(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        for title, text in (("Exit status", self.notes), ("Examples", self.examples)):
            if text:
                with formatter.section(title):
                    formatter.write(textwrap.indent(text, "  ") + "\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (hint := _OPTION_GUESSES.get(error.option_name)) is not None:
                raise click.UsageError(
                    f"No such option {error.option_name!r}; {hint}", ctx
                ) from None
            raise
        except click.UsageError as error:
            error.ctx = (
                error.ctx or ctx
            )  # click forgets it for an option without its value
            raise


class Command(_Sections):
    """A command whose help page has exit statuses (``notes``) and examples."""


class Group(_Sections, click.Group):
    """A group of such commands. ``guesses``: what to write instead of a command that others would
    expect here. ``default``: the words of the command that runs where none is named.
    """

    command_class = Command

    def __init__(
        self,
        *arguments: object,
        guesses: Mapping[str, str] | None = None,
        default: tuple[str, ...] = (),
        **attributes: Any,
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.guesses = guesses or {}
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_help = not {"-h", "--help"}.isdisjoint(args)
        if (
            self.default and not is_help and not ctx.resilient_parsing
        ):  # else it completes
            args = self._with_default(ctx, args)
        return super().parse_args(ctx, args)

    def _with_default(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments with the default command, unless they name one. An option that the
        group lacks is the default command's.
        """
        try:
            _, rest, _ = self.make_parser(ctx).parse_args(list(args))
        except click.NoSuchOption:
            return [*self.default, *args]
        except click.UsageError:  # told with the arguments as they are
            return args
        return args if rest else [*args, *self.default]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if (hint := self.guesses.get(args[0])) is not None:
                raise click.UsageError(
                    f"No such command {args[0]!r}; {hint}", ctx
                ) from None
            raise

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


Group.group_class = Group
