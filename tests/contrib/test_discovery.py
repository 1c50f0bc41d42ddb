"""Discovery: which jobs are found, and the one line for each mistake."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotwise import DistributedJob, InvalidJob, JobRegistry, SlotwiseError
from slotwise.contrib.discovery import discover, distributed_job

HEAD = """\
from slotwise import DistributedJob, Every, JobContext, OneTimeTask, job, task
from slotwise.contrib.discovery import distributed_job
"""
REPORT = """
@distributed_job
class Report(DistributedJob):
    name = "report"
    schedule = Every("1h")
    def execute(self, ctx): ...
"""

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write modules of a package ``shop`` that can be imported; forget them afterwards."""

    def make(**modules: str) -> None:
        (tmp_path / "shop").mkdir(exist_ok=True)
        (tmp_path / "shop" / "__init__.py").touch()
        for name, text in modules.items():
            path = tmp_path / "shop" / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(HEAD + text)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(tmp_path)
    _forget_shop()  # an earlier test in this process may have imported a package of this name
    yield make
    _forget_shop()


def _forget_shop() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def names(found: object) -> list[str]:
    return [str(getattr(one, "name")) for one in found]  # type: ignore[attr-defined]  # noqa: B009


def test_marked_classes_and_functions_are_found(write: Write) -> None:
    """Classes under the mark and functions under @job and @task, in all modules below, each once,
    by name.
    """
    write(
        jobs__reports=REPORT,
        jobs__mail="""
from shop.jobs.reports import Report

@distributed_job
class SendMail(OneTimeTask):
    name = "send-mail"
    def execute(self, ctx): ...

class Unmarked(Report):
    name = "unmarked"

@job(name="tick", schedule=Every("1m"))
def tick(ctx): ...

@task(name="resize")
def resize(ctx): ...

tock = tick
""",
    )
    found = discover("shop.jobs", "shop.jobs.mail")
    assert (names(found.jobs), names(found.tasks)) == (
        ["report", "tick"],
        ["resize", "send-mail"],
    )
    registry = JobRegistry(
        jobs=found.jobs, tasks=found.tasks, database_url="sqlite://"
    )
    assert sorted(registry.definitions) == ["report", "resize", "send-mail", "tick"]


def test_entry_points_are_found(write: Write, tmp_path: Path) -> None:
    """Installed distributions name a package, a module or a class in the group slotwise.jobs."""
    write(
        jobs__reports=REPORT,
        more=REPORT.replace("Report", "Other").replace('"report"', '"other"'),
    )
    info = tmp_path / "shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[slotwise.jobs]\nall = shop.jobs\nother = shop.more:Other\n"
    )
    assert names(discover(entry_points=True).jobs) == ["other", "report"]
    (info / "entry_points.txt").write_text(
        "[slotwise.jobs]\nwrong = shop.more:Missing\n"
    )
    importlib.invalidate_caches()
    with pytest.raises(
        SlotwiseError,
        match=r"entry point wrong = shop.more:Missing of shop: .*Missing",
    ):
        discover(entry_points=True)


MISTAKES = {
    "two of one name": (
        {"jobs__a": REPORT, "jobs__b": REPORT},
        r"'report' is the name of two jobs, shop\.jobs\.a:Report \(.*a\.py, line "
        r"4\) and shop\.jobs\.b:Report "
        r"\(.*b\.py, line 4\); rename one of them",
    ),
    "abstract": (
        {"jobs__a": REPORT.replace("    def execute(self, ctx): ...\n", "")},
        r"shop\.jobs\.a:Report \(.*a\.py, line 4\) is abstract: it does not define "
        r"execute; define it, or remove @",
    ),
    "import fails": (
        {"jobs__a": "import no_such_library\n"},
        r"importing shop\.jobs\.a failed at .*a\.py, line 3: ModuleNotFoundError: "
        r"No module named 'no_such_library'",
    ),
    "syntax": (
        {"jobs__a": "def broken(:\n"},
        r"importing shop\.jobs\.a failed at .*a\.py, line 3: SyntaxError: ",
    ),
    "nothing found": (
        {"jobs__a": ""},
        r"shop\.jobs: no jobs found; put @distributed_job above their classes",
    ),
    "a wrong name": (
        {"job": REPORT},
        r"discover\('shop\.jobs'\): there is no module shop\.jobs; did you mean 'shop\.job'\?",
    ),
    "an argument that nobody knows": (
        {"jobs__a": REPORT + "    def __init__(self, bucket: str): ...\n"},
        r"shop\.jobs\.a:Report \(.*a\.py, line 4\): no resolver supplies the "
        r"argument Report\(… bucket: str …\) "
        r"\(resolvers: none given\); add one, or a default",
    ),
    "a constructor that raises": (
        {"jobs__a": REPORT + "    def __init__(self): 1 / 0\n"},
        r"shop\.jobs\.a:Report \(.*\): its constructor raised ZeroDivisionError: "
        r"division by zero; correct it",
    ),
    "an annotation of nothing": (
        {"jobs__a": REPORT + '    def __init__(self, x: "Nowhere"): ...\n'},
        r"shop\.jobs\.a:Report \(.*\): an annotation of its constructor cannot be evaluated",
    ),
    "an invalid job": (
        {"jobs__a": REPORT.replace('"report"', '" "')},
        r"shop\.jobs\.a:Report \(.*a\.py, line 4\): .*a name cannot be blank",
    ),
}


@pytest.mark.parametrize(("modules", "line"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_with_its_place(
    write: Write, modules: dict[str, str], line: str
) -> None:
    """The message names the module and the line, and says what to do."""
    write(**modules)
    with pytest.raises(SlotwiseError, match=line) as raised:
        discover("shop.jobs")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "shpo.jobs",
            r"discover\('shpo\.jobs'\): there is no module shpo; did you mean 'shop\.jobs'\?",
        ),
        (
            "shop.jbos.reports",
            r"there is no module shop\.jbos; did you mean 'shop\.jobs\.reports'\?",
        ),
        (
            "shop.jobs.report",
            r"there is no module shop\.jobs\.report; did you mean 'shop\.jobs\.reports'\?",
        ),
        (
            "shop.jobs.reports.Report",
            r"there is no module shop\.jobs\.reports\.Report; name the module: 'shop\.jobs\.re",
        ),
        (
            "shop.jobs.zzz",
            r"there is no module shop\.jobs\.zzz; correct the name, or install it",
        ),
        (
            "shop.jobs:reports",
            r"discover\('shop\.jobs:reports'\): expected the name of a package or module",
        ),
    ],
)
def test_a_misspelt_package_is_recognized(write: Write, name: str, line: str) -> None:
    """The suggestion is a module that exists."""
    write(jobs__reports=REPORT)
    with pytest.raises(SlotwiseError, match=line):
        discover(name)


def test_a_module_that_ends_the_program(write: Write) -> None:
    """It would end the worker without a word."""
    write(jobs__a="import sys\nsys.exit(3)\n")
    with pytest.raises(
        SlotwiseError,
        match=r"importing shop\.jobs\.a ends the program at .*a\.py, line 4; put what runs",
    ):
        discover("shop.jobs")


def test_calls_that_cannot_work() -> None:
    """The mark is for classes of jobs, and discover wants a name."""
    with pytest.raises(
        InvalidJob, match="expected a subclass of DistributedJob or OneTimeTask"
    ):
        distributed_job(int)  # type: ignore[type-var]
    with pytest.raises(SlotwiseError, match=r"discover\(\) names no package"):
        discover()
    with pytest.raises(SlotwiseError, match="expected the name of a package"):
        discover("./shop")
    assert distributed_job(type("Own", (DistributedJob,), {})).__name__ == "Own"
