#!/usr/bin/env python3
"""Figures of the source: how much there is, how dense it is, who reaches into whom.

``tools/house.py`` prints each figure beside the value reached before (``tools/house.txt``) and
the value to reach, and fails if one got worse. ``--write`` stores what got better; ``-v`` names
what is behind the figures. A change that must raise a figure raises it in ``tools/house.txt``,
and its commit says why.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
REACHED = CHECKOUT / "tools" / "house.txt"

#: What stands around the core, and is to import public modules only.
LODGERS = ("cli", "contrib", "testing", "simulate", "demo")
OUTSIDE_THE_CORE = (*LODGERS, "embedded")
PUBLIC = (
    "slotwise",
    "slotwise.inspect",
    "slotwise.operations",
    "slotwise.spi",
    "slotwise.locks",
)
#: Published by other libraries in spite of the underscore.
PUBLISHED = ("_meta", "_exit", "_mapping", "_asdict", "_replace", "_fields")

NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.Try,
    ast.IfExp,
    ast.comprehension,
    ast.With,
    ast.match_case,
)
ASKS_FOR_A_KIND = re.compile(
    r"(schedule|plan_instance)(\.is_\(None\)|\.is_not\(None\)| IS (NOT )?NULL)"
)
WRITES_THE_LEDGER = re.compile(
    r"(?:insert|update|delete)\(\s*[\w.]*?_?(?:slots|gaps|attempts)\b"
    r"|\b_?(?:slots|gaps|attempts)\.(?:insert|update|delete)\("
    r"|(?:INTO|UPDATE|DELETE FROM) \{(?:slots|gaps|attempts)\}"
)


@dataclass(frozen=True)
class Function:
    place: str
    room: str
    tokens: int
    branches: int


@dataclass(frozen=True)
class Source:
    """One file of the package."""

    root: Path
    path: Path
    text: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(self.root))

    @property
    def room(self) -> str:
        """The directory or module directly below the package."""
        return self.path.relative_to(self.root).parts[0].removesuffix(".py")

    @property
    def module(self) -> str:
        parts = self.path.relative_to(self.root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_core(self) -> bool:
        return self.room not in OUTSIDE_THE_CORE

    @property
    def is_dialect(self) -> bool:
        return "dialect" in self.name

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def tokens_by_line(self) -> Counter[int]:
        """Comments, docstrings and blank lines have none."""
        docstrings = set(self._docstring_lines())
        found: Counter[int] = Counter()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            is_docstring = (
                token.type == tokenize.STRING and token.start[0] in docstrings
            )
            if token.type not in NO_CODE and not is_docstring:
                found[token.start[0]] += 1
        return found

    def _docstring_lines(self) -> Iterator[int]:
        documented = (ast.Module, ast.ClassDef, *FUNCTIONS)
        for node in ast.walk(self.tree):
            if (
                isinstance(node, documented)
                and ast.get_docstring(node, clean=False) is not None
            ):
                yield node.body[0].lineno

    @cached_property
    def tokens(self) -> int:
        return self.tokens_by_line.total()

    @cached_property
    def functions(self) -> list[Function]:
        return [
            Function(
                f"{self.name}:{node.lineno} {node.name}",
                self.room,
                sum(
                    self.tokens_by_line[line]
                    for line in range(
                        node.lineno, (node.end_lineno or node.lineno) + 1
                    )
                ),
                sum(map(branches_of, ast.walk(node))),
            )
            for node in ast.walk(self.tree)
            if isinstance(node, FUNCTIONS)
        ]

    def imports(self, modules: set[str]) -> Iterator[tuple[str, str | None]]:
        """Each imported module of the package, with the imported name unless it is a module."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                source = node.module or ""
                for alias in node.names if is_ours(source) else ():
                    below = f"{source}.{alias.name}"
                    yield (below, None) if below in modules else (source, alias.name)
            elif isinstance(node, ast.Import):
                yield from (
                    (each.name, None) for each in node.names if is_ours(each.name)
                )

    def private_reaches(self) -> Iterator[str]:
        """Uses of ``_private`` attributes that this file does not define."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and self._is_reach(node):
                yield f"{self.name}:{node.lineno} {node.attr}"

    def _is_reach(self, node: ast.Attribute) -> bool:
        name = node.attr
        if not name.startswith("_") or name.startswith("__") or name in PUBLISHED:
            return False
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            return False
        defined = rf"(def|class) {name}\b|self\.{name}\b|^\s*{name}\b"
        return not re.search(defined, self.text, re.MULTILINE)


def is_ours(module: str) -> bool:
    return module.split(".")[0] == "slotwise"


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def branches_of(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    return isinstance(node, BRANCHES)


class House:
    """All files of a package, measured."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = [
            Source(root, path, path.read_text()) for path in root.rglob("*.py")
        ]
        self.core = [file for file in self.files if file.is_core]
        self.functions = [each for file in self.files for each in file.functions]
        self._read_imports()

    def _read_imports(self) -> None:
        modules = {file.module for file in self.files}
        self.arrows: defaultdict[str, set[str]] = defaultdict(set)
        self.taken: set[tuple[str, str, str | None]] = set()
        for file in self.files:
            here = room_of(file.module)
            for module, name in file.imports(modules):
                room = room_of(module)
                if room != here:
                    self.arrows[here].add(room)
                is_inner = module not in PUBLIC and room not in OUTSIDE_THE_CORE
                if file.room in LODGERS and is_inner:
                    self.taken.add((file.room, module, name))

    @property
    def circles(self) -> list[tuple[str, str]]:
        pairs = [
            (one, other) for one, others in self.arrows.items() for other in others
        ]
        return [(a, b) for a, b in sorted(pairs) if a < b and (b, a) in pairs]

    @property
    def reaches(self) -> list[str]:
        lodgers = [file for file in self.files if file.room in LODGERS]
        return [reach for file in lodgers for reach in file.private_reaches()]

    @property
    def lines_of_code(self) -> int:
        return sum(len(file.tokens_by_line) for file in self.files)

    def core_files(self, pattern: re.Pattern[str]) -> list[str]:
        """Files of the core, without the dialects, in which the pattern is found."""
        files = (file for file in self.core if not file.is_dialect)
        return [file.name for file in files if pattern.search(file.text)]

    def count(self, text: str) -> int:
        return sum(file.text.count(text) for file in self.files)

    def lines(self) -> Iterator[str]:
        for file in self.files:
            yield from file.text.splitlines()

    def details(self) -> dict[str, Iterable[str]]:
        """What is behind some of the figures."""
        largest = sorted(self.functions, key=lambda each: -each.branches)[:40]
        return {
            "two-way pairs of rooms": [
                f"{one} {other}" for one, other in self.circles
            ],
            "names that lodgers take from inside the core": sorted(
                f"{lodger}: {module} {name or ''}".rstrip()
                for lodger, module, name in self.taken
            ),
            "reaches of lodgers into private names": self.reaches,
            "functions with more than ten branches": [
                f"{each.branches} {each.place}" for each in largest
            ],
        }


def ninth_tenth(values: Iterable[int]) -> int:
    """The value that nine of ten do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * 0.9), len(ordered) - 1)] if ordered else 0


# -- the figures, and the value that each is to reach ---------------------------------------------

FIGURES: dict[str, tuple[Callable[[House], float], float]] = {
    "root modules": (lambda house: len(list(house.root.glob("*.py"))), 8),
    "rooms": (lambda house: len({room_of(file.module) for file in house.files}), 26),
    "arrows": (lambda house: sum(map(len, house.arrows.values())), 120),
    "two-way pairs of rooms": (lambda house: len(house.circles), 0),
    "names that lodgers take from inside the core": (
        lambda house: len(house.taken),
        0,
    ),
    "pairs of a lodger and an inner module": (
        lambda house: len({(lodger, module) for lodger, module, _ in house.taken}),
        0,
    ),
    "reaches of lodgers into private names": (lambda house: len(house.reaches), 0),
    "tokens of the core": (
        lambda house: sum(file.tokens for file in house.core),
        175_000,
    ),
    "tokens per line of code, whole": (
        lambda house: round(
            sum(file.tokens for file in house.files) / house.lines_of_code, 1
        ),
        7.5,
    ),
    "tokens of a function, 90th of a hundred": (
        lambda house: ninth_tenth(
            each.tokens for each in house.functions if each.room != "store"
        ),
        140,
    ),
    "tokens of a function of the store, 90th of a hundred": (
        lambda house: ninth_tenth(
            each.tokens for each in house.functions if each.room == "store"
        ),
        160,
    ),
    "functions with more than ten branches": (
        lambda house: sum(each.branches > 10 for each in house.functions),
        40,
    ),
    "# fmt: skip": (lambda house: house.count("# fmt: skip"), 40),
    "lines over 100 characters": (
        lambda house: sum(len(line) > 100 for line in house.lines()),
        0,
    ),
    "longest file": (
        lambda house: max(len(file.text.splitlines()) for file in house.files),
        600,
    ),
    "uses of Any": (
        lambda house: sum(
            len(re.findall(r"\bAny\b", file.text)) for file in house.files
        ),
        300,
    ),
    "files that ask what kind a row is": (
        lambda house: len(house.core_files(ASKS_FOR_A_KIND)),
        0,
    ),
    "files that write the ledger": (
        lambda house: len(house.core_files(WRITES_THE_LEDGER)),
        1,
    ),
}


def measured(root: Path) -> dict[str, float]:
    """Each figure of the package in this directory, by name."""
    house = House(root)
    return {name: measure(house) for name, (measure, _) in FIGURES.items()}


def reached(path: Path) -> dict[str, float]:
    """The committed figures. Of two lines for one figure, as a merge leaves them, the lower."""
    found: dict[str, float] = {}
    for line in path.read_text().splitlines():
        name, colon, value = line.rpartition(": ")
        if colon and name in FIGURES:
            found[name] = min(float(value), found.get(name, float(value)))
    return found


def allowed(committed: dict[str, float]) -> dict[str, float]:
    """A figure below the value to reach may move up to it; another may only fall."""
    return {
        name: max(committed.get(name, goal), goal)
        for name, (_, goal) in FIGURES.items()
    }


def written(figures: dict[str, float], committed: dict[str, float]) -> str:
    """The committed list, with each figure that fell."""
    lowest = {
        name: min(value, committed.get(name, value)) for name, value in figures.items()
    }
    return "".join(f"{name}: {value:g}\n" for name, value in lowest.items())


def main(arguments: Sequence[str]) -> int:
    root = CHECKOUT / "src" / "slotwise"
    figures, committed = measured(root), reached(REACHED)
    limits = allowed(committed)
    for name, (_, goal) in FIGURES.items():
        word = "WORSE" if figures[name] > limits[name] else "ok"
        print(
            f"{word:5} {name}: {figures[name]:g} (allowed {limits[name]:g}, goal {goal:g})"
        )
    if "-v" in arguments:
        for name, details in House(root).details().items():
            print(f"{name}:", *details, sep="\n  ")
    if "--write" in arguments:
        REACHED.write_text(written(figures, committed))
    worse = [name for name in FIGURES if figures[name] > limits[name]]
    if worse:
        print(f"house: worse than {REACHED.relative_to(CHECKOUT)}: {'; '.join(worse)}")
    return bool(worse)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
