"""A statement as rows of text, as CSV, and as a page to print."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from slotwise.contrib.statement.reconcile import NUMBERS, JobStatement, Statement
from slotwise.contrib.wording import counted
from slotwise.inspect import RECURRING

COLUMNS: Final = (
    *("JOB", "EXPECTED", "RAN", "LATE", "SKIPPED", "FAILED", "OPEN", "UNEXPLAINED"),
    "BESIDE",
)
_STYLE: Final = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #111; background: #fff }
table { border-collapse: collapse; width: 100% }
th, td { padding: 0.3em 0.6em; border-bottom: 1px solid #bbb; text-align: right }
th, td { vertical-align: top }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere }
thead { display: table-header-group }
tr { break-inside: avoid }
tfoot td { font-weight: bold; border-top: 2px solid #111 }
.bad { color: #a00; font-weight: bold }
@page { margin: 15mm }
"""


def rows(found: Statement) -> list[list[str]]:
    """Return a row of each job, and the total."""
    return [_row(one) for one in (*found.jobs, found.total)]


def name_of(one: JobStatement) -> str:
    if not one.job:
        return "total"
    return one.job if one.id == RECURRING else f"{one.job} {one.id}"


def _row(one: JobStatement) -> list[str]:
    return [
        name_of(one),
        f"{one.expected:,}",
        f"{one.ran:,}",
        f"{one.late:,}",
        _by_name(one.skipped),
        _by_name(one.failed),
        f"{one.open:,}",
        f"{one.unexplained:,}",
        f"{one.beside:,}",
    ]


def _by_name(counts: Mapping[str, int]) -> str:
    """Return a number, and of what."""
    if not counts:
        return "0"
    parts = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return parts if len(counts) == 1 else f"{sum(counts.values()):,} ({parts})"


def as_csv(found: Statement) -> str:
    """Return one line for each job and each of its outcomes and reasons, and the total."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["job", "id", "what", "reason", "count"])
    for one in (*found.jobs, found.total):
        of = [_cell(one.job or "total"), _cell(one.id)]
        writer.writerows([*of, *numbers] for numbers in _numbers(one))
    return out.getvalue()


def _numbers(one: JobStatement) -> Iterator[tuple[str, str, int]]:
    """Yield what a statement counts: what, the reason or outcome, and how many."""
    for what in NUMBERS:
        yield what, "", getattr(one, what)
    for what, counts in (("skipped", one.skipped), ("failed", one.failed)):
        for reason, count in counts.items():
            yield what, _cell(reason), count


def _cell(text: str) -> str:
    """Return a name that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def as_page(found: Statement, title: str) -> str:
    """Return a page of HTML, without scripts, that a browser prints."""
    head = "".join(f'<th scope="col">{name.capitalize()}</th>' for name in COLUMNS)
    body = "\n".join(_line(one) for one in found.jobs)
    verdict = "Everything that was expected is explained."
    if found.total.unexplained:
        verdict = (
            f"{counted(found.total.unexplained, 'slot', 'is', 'are')} not explained."
        )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>From {found.start.isoformat()} to before {found.end.isoformat()}.
Expected = ran + late + skipped + failed + open + unexplained. {verdict}</p>
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
<tfoot>{_line(found.total)}</tfoot>
</table>
</body>
</html>
"""


def _line(one: JobStatement) -> str:
    cells: Sequence[str] = _row(one)
    kind = ' class="bad"' if one.unexplained else ""
    return "".join(
        ["<tr>", *(f"<td{kind}>{escape(cell)}</td>" for cell in cells), "</tr>"]
    )
