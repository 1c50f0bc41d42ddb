"""Compare two installed versions of slotwise: rounds in pairs on one server, and ratios within
each pair.

Each round is a process, ``PYTHON -m tools.bench --cells CELL --rounds 1 … --json``, so that each
version brings its own schema, statements and workers, in databases of its own. A version that runs
from a checkout is measured by the benchmark of that checkout, or by the command ``slotwise bench``
that it had before; one that was installed from a wheel by this one. Two benchmarks share only
this: the options ``--cells``, ``--rounds``, ``--scale``, ``--database-url``, ``--json`` and
``--list``, the first column of ``--list``, and ``cell``, ``contender``, ``figures`` and ``note`` of
the JSON's ``readings``. Versions may add to that; a change to it ends all comparisons with earlier
versions.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import ClassVar

from slotwise import ConfigurationError
from tools.bench import machine
from tools.bench.crew import ROOT, clean_environment, python_path
from tools.bench.journal import RanWrong
from tools.bench.report import aligned, markdown_table, number
from tools.bench.server import Server
from tools.bench.session import ends_cleanly, split

#: Measured where the caller names no cells.
CELLS = "backlog,slots"

#: How long, in seconds, another interpreter may take to describe itself, and a round to clean up
#: after SIGTERM.
_PATIENCE = 60.0
_PROBE = """
import json, platform, slotwise
from importlib.metadata import version
from importlib.util import find_spec
has_command = find_spec("slotwise.bench") is not None
location = slotwise.__path__[0]
print(json.dumps([version("slotwise"), platform.python_version(), location, has_command]))"""

#: The figures of one round, by contender.
Round = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """What the user asked for. ``against`` is the interpreter that has the other version; no cells
    means ``CELLS``.
    """

    against: str
    cells: str = ""
    pairs: int = 15
    scale: float = 1.0
    database_url: str | None = None

    @property
    def command(self) -> str:
        """How to run the same again."""
        cells = self.cells or CELLS
        options = (
            f"--against {self.against} --pairs {self.pairs} --scale {self.scale:g}"
        )
        return f"python3 dev.py bench --cells {cells} {options}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An interpreter and the slotwise that it imports."""

    python: str
    version: str
    runtime: str
    location: str
    #: The arguments that start its benchmark, and the checkout that has it.
    program: tuple[str, ...]
    root: Path
    #: Started without our PYTHONPATH, which might make the other interpreter import this version,
    #: too.
    is_other: bool = False

    @classmethod
    def find(cls, name: str, *, is_other: bool = True) -> Installation:
        """Ask the interpreter. Raises ConfigurationError where it cannot be started, or has no
        slotwise.
        """
        python = shutil.which(name)
        if python is None:
            raise ConfigurationError(
                f"--against {name}: no such program; name the Python of a virtual environment"
            )
        python = str(
            Path(python).absolute()
        )  # not resolved: the link is what makes it the virtual environment's
        asked = _ask(python, ["-c", _PROBE], is_other=is_other)
        if asked.returncode and "No module named 'slotwise'" in asked.stderr:
            raise ConfigurationError(
                f"--against {name}: slotwise is not installed there; run: {python} "
                "-m pip install slotwise"
            )
        try:
            version, runtime, location, has_command = json.loads(asked.stdout)
        except ValueError:
            reason = _last_line(asked.stderr) or "it is not a Python interpreter"
            raise ConfigurationError(f"--against {name}: {reason}") from None
        checkout = Path(location).parents[1]
        has_tools = (checkout / "tools" / "bench" / "__main__.py").exists()
        is_command = has_command and not has_tools
        return cls(
            python=python,
            version=version,
            runtime=runtime,
            location=location,
            program=("slotwise", "bench") if is_command else ("tools.bench",),
            root=checkout if has_tools else ROOT,
            is_other=is_other,
        )

    def __str__(self) -> str:
        return f"slotwise {self.version}, Python {self.runtime}, {self.location}"

    def require(self, cells: Iterable[str]) -> None:
        """Raise ConfigurationError where it has no benchmark, or lacks one of these cells."""
        asked = _ask(
            self.python,
            ["-m", *self.program, "--list"],
            is_other=self.is_other,
            root=self.root,
        )
        if asked.returncode:
            reason = _last_line(asked.stderr) or f"status {asked.returncode}"
            raise ConfigurationError(
                f"--against {self.python}: its benchmark cannot list its cells: {reason}"
            )
        known = [
            line.split()[0] for line in asked.stdout.splitlines()[1:] if line.strip()
        ]
        if missing := [cell for cell in cells if cell not in known]:
            raise ConfigurationError(
                f"--cells {missing[0]}: slotwise {self.version} of {self.python} "
                "cannot measure it; "
                f"it measures {', '.join(known)}"
            )

    def measure(
        self, cell: str, scale: float, url: str
    ) -> tuple[Round, dict[str, str]]:
        """One round of a cell: figures, and the notes of contenders without figures. Raises
        RanWrong.
        """
        options = [
            "--cells",
            cell,
            "--rounds",
            "1",
            "--scale",
            f"{scale:g}",
            "--database-url",
            url,
            "--json",
        ]
        done = _run(
            [self.python, "-m", *self.program, *options],
            is_other=self.is_other,
            root=self.root,
        )
        if done.returncode:
            reason = _last_line(done.stderr) or f"status {done.returncode}"
            raise RanWrong(
                f"{cell} with {self.python} (slotwise {self.version}): {reason}"
            )
        readings = [
            one for one in json.loads(done.stdout)["readings"] if one["cell"] == cell
        ]
        figures = {
            one["contender"]: _with_total(one["figures"])
            for one in readings
            if one["figures"]
        }
        return figures, {
            one["contender"]: one.get("note", "")
            for one in readings
            if not one["figures"]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure of a contender in a cell: what this version and the other measured, pair by
    pair.
    """

    cell: str
    contender: str
    figure: str
    this: Sequence[float]
    other: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """This version's figure by the other's; a pair in which the other measured zero has
        none.
        """
        return [
            ours / theirs
            for ours, theirs in zip(self.this, self.other, strict=True)
            if theirs
        ]

    def row(self) -> list[str]:
        """Cell, contender, figure, both medians, and of the ratios the median, least, most and
        how many.
        """
        ratios = self.ratios
        shown = [
            f"{pick(ratios):.3f}" if ratios else "–"
            for pick in (statistics.median, min, max)
        ]
        medians = [
            number(statistics.median(values)) for values in (self.this, self.other)
        ]
        return [
            self.cell,
            self.contender,
            self.figure,
            *medians,
            *shown,
            str(len(ratios)),
        ]

    def json(self) -> dict[str, object]:
        ratios = self.ratios
        return {
            "cell": self.cell,
            "contender": self.contender,
            "figure": self.figure,
            "median": statistics.median(ratios) if ratios else None,
            "min": min(ratios, default=None),
            "max": max(ratios, default=None),
            "pairs": len(ratios),
            "this": list(self.this),
            "other": list(self.other),
        }


@dataclass(slots=True)
class Comparison:
    """The rounds of both versions, pair by pair."""

    #: The headings of ``Line.row``.
    columns: ClassVar = (
        "cell",
        "contender",
        "figure",
        "this",
        "other",
        "ratio",
        "min",
        "max",
        "pairs",
    )

    command: str
    machine: Mapping[str, str]
    #: (cell, contender, figure) -> (this, other) of each pair that has both.
    _pairs: dict[tuple[str, str, str], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    #: What could not be compared, and why.
    notes: dict[str, None] = field(default_factory=dict)

    def add(self, cell: str, this: Round, other: Round) -> list[Line]:
        """Add one pair of a cell, and return its lines alone."""
        added = []
        for contender, figures in this.items():
            for figure, value in figures.items():
                if (theirs := other.get(contender, {}).get(figure)) is not None:
                    self._pairs[cell, contender, figure].append((value, theirs))
                    added.append(
                        Line(
                            cell=cell,
                            contender=contender,
                            figure=figure,
                            this=(value,),
                            other=(theirs,),
                        )
                    )
        for which, names in (
            ("this", this.keys() - other.keys()),
            ("the other", other.keys() - this.keys()),
        ):
            self.note(
                *(
                    f"{cell}, {name}: figures of {which} version only"
                    for name in sorted(names)
                )
            )
        return added

    def note(self, *notes: str) -> None:
        self.notes.update(dict.fromkeys(notes))

    @property
    def lines(self) -> list[Line]:
        """All pairs, by cell, contender and figure, in the order in which they were measured."""
        return [
            Line(
                cell=cell,
                contender=contender,
                figure=figure,
                this=[one for one, _ in found],
                other=[one for _, one in found],
            )
            for (cell, contender, figure), found in self._pairs.items()
        ]

    def json(self) -> dict[str, object]:
        """For programs; the figures of every pair are in it."""
        return {
            "command": self.command,
            "machine": dict(self.machine),
            "notes": list(self.notes),
            "comparison": [line.json() for line in self.lines],
        }

    def markdown(self) -> Iterator[str]:
        """The blocks of a page: the machine and both versions, and the table."""
        yield f"```text\n{self.command}\n\n{aligned(self.machine)}\n```\n"
        yield markdown_table(self.columns, [line.row() for line in self.lines])
        yield from (f"{note}\n" for note in self.notes)


def compare(
    pairing: Pairing, tell: Callable[[str], None] = lambda _: None
) -> Comparison:
    """Measure pair after pair, the version that begins changing from pair to pair; ``tell``
    reports progress.

    Raises ConfigurationError for an interpreter or a cell that cannot be used, RanWrong for a
    round that failed.
    """
    cells = split(pairing.cells or CELLS)
    this = Installation.find(sys.executable, is_other=False)
    other = Installation.find(pairing.against)
    for side in (this, other):
        side.require(cells)
    with ends_cleanly(), Server(pairing.database_url) as server:
        facts = machine.describe(server, {"this": str(this), "other": str(other)})
        comparison = Comparison(pairing.command, facts)
        began = perf_counter()
        done = 0
        for pair in range(1, pairing.pairs + 1):
            for cell in cells:
                order = (this, other) if pair % 2 else (other, this)
                place = f"pair {pair} of {pairing.pairs}, {cell}"
                rounds = dict[Installation, Round]()
                tell(
                    f"{place}: {'the other' if order[0].is_other else 'this'} version first …"
                )
                for side in order:
                    rounds[side], notes = side.measure(cell, pairing.scale, server.dsn)
                    comparison.note(
                        *(f"{cell}, {name}: {note}" for name, note in notes.items())
                    )
                added = comparison.add(cell, rounds[this], rounds[other])
                done = done + 1
                left = (
                    (perf_counter() - began)
                    / done
                    * (pairing.pairs * len(cells) - done)
                )
                tell(
                    f"{place}: {_ratios(added)}; {_minutes(left)} left"
                    if left
                    else f"{place}: {_ratios(added)}"
                )
    if not comparison.lines:
        raise RanWrong(
            f"no figure was measured with both versions: {'; '.join(comparison.notes)}"
        )
    return comparison


def _ratios(lines: Iterable[Line]) -> str:
    """The ratios of one pair, for a line of progress: rate and CPU where there are any, else
    percentiles.
    """
    shown: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        if line.ratios and line.figure in (
            "rate",
            "cpu_us",
            "p50_ms",
            "p99_ms",
            "trip_ms",
            "peak_mib",
        ):
            shown[line.contender].append(f"{line.figure} {line.ratios[0]:.2f}")
    return (
        ", ".join(
            f"{contender} {' '.join(found)}" for contender, found in shown.items()
        )
        or "measured"
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _with_total(figures: Mapping[str, float]) -> dict[str, float]:
    """With the CPU of client and server together, where both are measured."""
    if "client_us" in figures and "server_us" in figures:
        return {**figures, "cpu_us": figures["client_us"] + figures["server_us"]}
    return dict(figures)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ").removeprefix("error: ") if lines else ""


def _ask(
    python: str, arguments: Sequence[str], *, is_other: bool, root: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """A short call. Raises ConfigurationError where it cannot be started, or does not end."""
    try:
        return _run(
            [python, *arguments], is_other=is_other, root=root, timeout=_PATIENCE
        )
    except OSError as error:
        raise ConfigurationError(
            f"--against {python}: it cannot be started: {error.strerror}"
        ) from None
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"--against {python}: no answer within {_PATIENCE:.0f} s"
        ) from None


def _run(
    command: Sequence[str], *, is_other: bool, root: Path, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it in an empty directory, where no package hides the installed one.

    When this process is stopped, the round gets one SIGTERM, and time to stop its workers and drop
    its databases. It leads a process group of its own: a second signal, the terminal's Ctrl-C,
    would interrupt that.
    """
    environment = clean_environment()
    environment["PYTHONPATH"] = str(root) if is_other else python_path(root)
    with (
        tempfile.TemporaryDirectory(prefix="slotwise-bench-") as folder,
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
    ):
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            process_group=0,
        )
        try:
            process.wait(timeout)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE if timeout is None else 1.0)
                process.kill()
                process.wait()
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess(command, process.returncode, *texts)
