"""One module prints: what it does with hostile characters, and that nothing goes around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import slotwise.cli
from slotwise.cli.shared.output import outcome, print_fields, print_table
from slotwise.cli.shared.terminal import say, say_document, say_error, say_lines

CLI = Path(slotwise.cli.__file__).parent
#: The only module that may write; and tables, whose text is rendered there and printed here.
PRINTERS = {"shared/terminal.py"}
HOSTILE = "a\x1b[2J\nerror: forged\r\u202egnp.exe\x07\u2028b\x9b31m"


def ways_to_print(tree: ast.AST) -> Iterator[str]:
    """Calls and attributes that write to a stream."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("print", "input")
        ):
            yield node.func.id
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            if text in (
                "click.echo",
                "click.secho",
                "click.confirm",
                "click.prompt",
                "click.style",
                "rich.print",
            ):
                yield text
            if text.endswith(
                (
                    "stdout.write",
                    "stderr.write",
                    "stdout.writelines",
                    "stderr.writelines",
                )
            ):
                yield text


@pytest.mark.parametrize(
    "file", sorted(CLI.rglob("*.py")), ids=lambda file: str(file.relative_to(CLI))
)
def test_one_module_prints(file: Path) -> None:
    """A command that printed by itself would print a stored name as it is."""
    found = set(ways_to_print(ast.parse(file.read_text(encoding="utf-8"))))
    assert not found or str(file.relative_to(CLI)) in PRINTERS, (
        f"use slotwise.cli.shared.terminal, not {found}"
    )


def test_the_lint_finds_what_it_looks_for() -> None:
    """Each way is found."""
    text = "print(1)\nclick.echo('')\nsys.stderr.write('')\nclick.confirm('')\nimport sys\n"
    assert len(list(ways_to_print(ast.parse(text)))) == 4


def harmless(text: str, lines: int) -> None:
    """So many lines, and no character that a terminal obeys."""
    assert len(text.split("\n")) == lines + 1, text
    assert all(char.isprintable() or char == "\n" for char in text), text


def test_hostile_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escapes, newlines and bidirectional marks are printed as text: one argument is one line."""
    say(HOSTILE, HOSTILE)
    harmless(capsys.readouterr().out, 2)
    say_error(HOSTILE)
    harmless(capsys.readouterr().err, 1)
    print_table(("A", "B"), [[HOSTILE, outcome(HOSTILE)]])
    harmless(capsys.readouterr().out, 2)
    print_fields([(HOSTILE.splitlines()[0].replace("\x1b", ""), HOSTILE)])
    harmless(capsys.readouterr().out, 1)
    say_lines("a\x1b[2J\nb\tc")
    harmless(capsys.readouterr().out, 2)
    say_document("a\tb\n")
    assert capsys.readouterr().out == "a\tb\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    say_document("a\x1b[2J\n")
    harmless(capsys.readouterr().out, 1)
