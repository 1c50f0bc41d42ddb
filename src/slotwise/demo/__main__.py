"""`python -m slotwise.demo`: set up, play, judge. Exit status 1 if any law was broken."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click
import sqlalchemy as sa
from rich.console import Console

from slotwise import SlotwiseError
from slotwise.demo.play import LENGTH, Play, pronounce
from slotwise.demo.stage import Stage
from slotwise.demo.view import LiveView, PlainView
from slotwise.spi import database_url


def perform(*, keep: bool = False, seconds: float | None = None) -> int:
    """Run the demo and return its exit status. Raises SlotwiseError, such as PostgresMissing."""
    console = Console(soft_wrap=not sys.stdout.isatty())
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    home = _home()
    try:
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, {signal.SIGINT}
        )  # dev.py blocks Ctrl-C until here
        clean = _play(
            console,
            home,
            seconds or LENGTH,
            keep=keep,
            plain=not console.is_terminal,
        )
    except KeyboardInterrupt:
        console.print("\nstopped; everything the demo started has ended")
        return 130
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0 if clean else 1


@click.group(invoke_without_command=True)
@click.option(
    "--keep",
    is_flag=True,
    help="Leave everything running after the verdict, until Ctrl-C.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(5, 3600),
    default=LENGTH,
    show_default=True,
    help="Length of the demo, in seconds.",
)
@click.pass_context
def main(context: click.Context, keep: bool, seconds: float) -> None:
    """Three workers and six jobs on a real PostgreSQL; one worker is killed, one frozen, the
    database restarted.

    At the end the ledger and a log that the handlers wrote themselves are compared with the slots
    that were due.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        sys.exit(perform(keep=keep, seconds=seconds))
    except SlotwiseError as error:
        raise click.ClickException(str(error)) from None


@main.command()
@click.argument("home", type=click.Path(exists=True, file_okay=False, path_type=Path))
def verdict(home: Path) -> None:
    """Print the verdict on a demo that still runs with --keep; HOME is the folder that it
    printed.
    """
    note = json.loads((home / "demo.json").read_text())
    engine = sa.create_engine(
        database_url(note["database_url"]), poolclass=sa.NullPool
    )
    sys.exit(0 if pronounce(Console(), engine, Path(note["log"]), running=True) else 1)


def _home() -> Path:
    """Make a folder that PostgreSQL's account may enter, too."""
    home = Path(tempfile.mkdtemp(prefix="slotwise-demo-"))
    home.chmod(0o755)
    return home


def _play(
    console: Console, home: Path, seconds: float, *, keep: bool, plain: bool
) -> bool:
    console.print("starting a PostgreSQL of its own …", highlight=False)
    with Stage.open(home) as stage:
        with PlainView(console) if plain else LiveView(console) as view:
            Play(stage, view, seconds).run()
        if keep:
            clean = pronounce(
                console, stage.engine(), home / "handlers.log", running=True
            )
            _look_around(console, stage)
            signal.pause()
            return clean
        console.print("draining the workers …", highlight=False)
        for worker in stage.drain_all():
            console.print(f"{worker.label} did not end in time", style="red")
        return pronounce(console, stage.engine(), home / "handlers.log", running=False)


def _look_around(console: Console, stage: Stage) -> None:
    command = f"{sys.executable} -m slotwise"
    lines = [
        "everything keeps running until Ctrl-C. To look around, in another terminal:",
        f"  export DATABASE_URL={stage.url}",
        f"  {command} jobs",
        f"  {command} slots report",
        f"  {command} workers",
        f"  {sys.executable} -m slotwise.demo verdict {stage.home}",
        f"  tail -f {stage.home}{os.sep}worker-2.log",
    ]
    console.print("\n".join(lines), highlight=False, markup=False)


if __name__ == "__main__":
    main(prog_name="slotwise demo")
