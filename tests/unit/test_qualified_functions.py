"""Each function in our statements for PostgreSQL bears its schema: without it, the search_path
would decide.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import slotwise

SOURCE = Path(slotwise.__file__).parent
GOLDEN = Path(__file__).parents[1] / "store" / "golden" / "postgresql"
#: What our statements write in small letters, and the parser resolves without the search_path.
GRAMMAR = {"coalesce", "greatest", "least", "nullif", "extract"}
#: Files of which SQLite or Redis read the texts, or whose texts become statements elsewhere: the
#: golden files show these. A demo and a benchmark own their database.
ELSEWHERE = (
    "bench/",
    "demo/",
    "embedded/",
    "contrib/locks/redis.py",
    "contrib/mysql/",  # a name without a schema is a built-in function there
    "store/schema/",
    "migrate/grants.py",
)
_SQL = re.compile(r"\b(SELECT|UPDATE|INSERT INTO|DELETE FROM|FROM|WHERE|RETURNING)\b")
_LITERALS = re.compile(r"'(?:[^']|'')*'")
#: Columns of what stands in FROM, of a WITH, and of an insert.
_COLUMNS = re.compile(r'\b(?:AS|INTO|WITH|RECURSIVE|CONFLICT)\s+[\w."{}]+\s*\(')
_CALLS = re.compile(r'(?<![\w."$@}])([a-z_][a-z_0-9]*)\(')


def unqualified(statement: str) -> set[str]:
    """Return the functions in this statement whose schema the search_path decides."""
    text = _COLUMNS.sub(" (", _LITERALS.sub("''", statement))
    return {
        call[1]
        for call in _CALLS.finditer(text)
        if call[1] not in GRAMMAR
        and not (call[1] == "unnest" and _has_comma(text, call.end()))
    }


def _has_comma(text: str, start: int) -> bool:
    """Whether a call has several arguments: an unnest of several arrays is the parser's."""
    depth = 1
    for sign in text[start:]:
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0:
            return False
        if depth == 1 and sign == ",":
            return True
    return False


def texts_of(file: Path) -> Iterator[str]:
    """The strings of a module that are SQL, without docstrings."""
    tree = ast.parse(file.read_text())
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr | ast.Expr)
        for part in ast.iter_child_nodes(node)
    }
    for node in ast.walk(tree):
        if id(node) in inner and not isinstance(node, ast.JoinedStr):
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if _SQL.search(text):
            yield text


@pytest.mark.parametrize(
    "file", sorted(GOLDEN.glob("*.sql")), ids=lambda file: file.stem
)
def test_sent_statements(file: Path) -> None:
    """What is sent, compiled and with all its parts."""
    assert unqualified(file.read_text()) == set()


def test_texts_in_the_source() -> None:
    """What is written as text, also where no golden file has it."""
    found = {
        f"{file.relative_to(SOURCE)}: {name}"
        for file in SOURCE.rglob("*.py")
        if not file.relative_to(SOURCE).as_posix().startswith(ELSEWHERE)
        for text in texts_of(file)
        for name in unqualified(text)
    }
    of_mariadb = {
        "migrate/target.py: " + name for name in ("md5", "concat", "database")
    }
    # SQLite's, of two numbers
    assert found == {"contrib/locks/sqlite.py: max"} | of_mariadb


#: A literal beside an operator is of the other side's type, if any schema has such an operator.
_BESIDE_LITERAL = re.compile(r"'\s*\|\|\s*([\w.:()\[\]]+)")


def concatenated(statement: str) -> set[str]:
    """Return what is appended to a literal without being a text."""
    found = _BESIDE_LITERAL.findall(statement)
    return {one for one in found if not one.endswith("::text")}


@pytest.mark.parametrize(
    "file", sorted(GOLDEN.glob("*.sql")), ids=lambda file: file.stem
)
def test_literals_are_appended_to_texts(file: Path) -> None:
    """Else one operator of another role would stop all claims."""
    assert concatenated(file.read_text()) == set()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT unnest($1::text[])", {"unnest"}),
        ("SELECT pg_catalog.unnest($1::text[])", set()),
        ("SELECT * FROM unnest(%(a)s::text[], %(b)s::text[]) AS i(x, y)", set()),
        ("SELECT coalesce(a, greatest(b, 1)), count(*) FROM t", {"count"}),
        ("INSERT INTO t (a, b) VALUES ('now(', 2) ON CONFLICT (a) DO NOTHING", set()),
        ("WITH found (a) AS (SELECT 1) SELECT a FROM found WHERE a IN (1, 2)", set()),
    ],
)
def test_a_function_without_its_schema_is_found(
    statement: str, expected: set[str]
) -> None:
    """Functions are found, and neither grammar nor lists of columns."""
    assert unqualified(statement) == expected
