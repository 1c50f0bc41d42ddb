"""The statements that were reviewed: one file for each, and the list of those that a verb sends."""

from __future__ import annotations

import re
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
#: The list of a dialect: a verb in each line, and the names of its statements in their order.
VERBS_FILE = "verbs.txt"


_CHANGE = re.compile(
    r"\b(INSERT INTO|UPDATE|DELETE FROM) \W*(?:\w+\W+)?scheduled_(\w+)"
)
_READ = re.compile(r"\bFROM \W*(?:\w+\W+)?scheduled_(\w+)")


def action_of(statement: str) -> str:
    """Return what a statement does, for its file's name: ``update-tasks``, ``lock-slots``."""
    if found := _CHANGE.search(statement):
        return f"{found[1].split()[0].lower()}-{found[2]}"
    if found := _READ.search(statement):
        return f"{'lock' if ' FOR ' in statement else 'read'}-{found[1]}"
    return "read"


class GoldenStatements:
    """The reviewed statements of one dialect."""

    def __init__(self, dialect: str, place: Path = GOLDEN) -> None:
        self._place = place / dialect
        self._place.mkdir(exist_ok=True)
        self.texts = {
            file.stem: file.read_text() for file in self._place.glob("*.sql")
        }
        self.verbs: dict[str, list[str]] = {}
        if (self._place / VERBS_FILE).exists():
            for line in (self._place / VERBS_FILE).read_text().splitlines():
                verb, _, names = line.partition(": ")
                self.verbs[verb] = names.split(", ") if names else []

    def sent_by(self, verb: str) -> list[str]:
        return [self.texts.get(name, name) for name in self.verbs.get(verb, ())]

    def write(self, verb: str, statements: list[str]) -> None:
        """Keep what a verb sends now. A statement that is known keeps its name, so a better name
        is given by renaming its file and its entries in the list.
        """
        names_of = {text: name for name, text in self.texts.items()}
        names = []
        for statement in statements:
            name = names_of.get(statement) or self._new_name(verb, statement)
            names_of[statement] = name
            self.texts[name] = statement
            (self._place / f"{name}.sql").write_text(statement)
            names.append(name)
        self.verbs[verb] = names
        listed = [
            f"{one}: {', '.join(self.verbs[one])}".rstrip()
            for one in sorted(self.verbs)
        ]
        (self._place / VERBS_FILE).write_text("\n".join(listed) + "\n")

    def _new_name(self, verb: str, statement: str) -> str:
        name = f"{verb}-{action_of(statement)}"
        names = [name, *(f"{name}-{number}" for number in range(2, 100))]
        return next(one for one in names if one not in self.texts)

    def remove_unused(self) -> None:
        for name in self.texts.keys() - {
            name for names in self.verbs.values() for name in names
        }:
            (self._place / f"{name}.sql").unlink()
