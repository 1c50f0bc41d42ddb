"""``--app``: which registry a text names, and how an application that cannot be imported is
told.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotwise import ConfigurationError
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.cli.shared.application import ApplicationFailed, load_registry

ONE = """
    from slotwise import Every, JobRegistry, job

    @job(name="tick", schedule=Every("1h"))
    def tick(ctx): ...

    class holder: registry = JobRegistry(jobs=[tick], threads=3)
    registry = again = JobRegistry(jobs=[tick])
    builder = JobRegistry.builder().with_job(tick)
    def make(): return JobRegistry(jobs=[tick])
    def make_wrong(): return 5
    def needs(argument): ...
"""
MODULES = {
    "app_one": ONE,
    "app_two": "from app_one import registry as one, make\ntwo = make()\n",
    "app_none": "x = 1\n",
    "app_package/__init__": "",
    "app_package/jobs": ONE,
    "app_syntax": "def f(:\n",
    "app_raises": """
        def compute():
            return 1 / 0

        try:
            compute()
        except ZeroDivisionError as error:
            raise RuntimeError("no way") from error
    """,
    "app_lacks": "import app_nowhere.deep\n",
    "app_exits": "import sys\nsys.exit(3)\n",
    "app_invalid": "from slotwise import JobRegistry\n\nregistry = JobRegistry(jobs=[None])\n",
    "app_invalid_make": "from slotwise import JobRegistry\ndef make(): return "
    "JobRegistry(jobs=[None])\n",
    "app_away": """
        from slotwise.errors import DatabaseRefused


        raise DatabaseRefused("the database 'c' cannot be reached; create it")
    """,
    "app_raising_make": "def make(): raise OSError('disk')\n",
}


@pytest.fixture
def app_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory with MODULES; what was imported from it is forgotten."""
    for name, text in MODULES.items():
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(text))
    path, known = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.startswith("app_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    "spec",
    [
        "app_one",
        "app_one:registry",
        "app_one:again",
        "app_one:holder.registry",
        "app_one:builder",
        "app_one:make",
        "app_package.jobs",
        "app_package.jobs:registry",
    ],
)
def test_found(app_dir: Path, spec: str) -> None:
    """A module's only registry is found by itself; a name may be a path, a builder or a
    function.
    """
    assert [job.name for job in load_registry(spec, app_dir).jobs] == ["tick"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "app_two",
            ["app_two has 2 registries", "--app app_two:one or --app app_two:two"],
        ),
        (
            "app_none",
            [
                "app_none.py) has no JobRegistry",
                "add one: registry = JobRegistry(jobs=[…])",
            ],
        ),
        ("app_package", ["has no JobRegistry"]),
        (
            "app_one:regsitry",
            ["there is no 'regsitry'", "registries of app_one: registry"],
        ),
        ("app_one:registry.jobz", ["there is no 'jobz'"]),
        (
            "app_one:tick",
            ["--app app_one:tick is of type ContextJob; expected a JobRegistry"],
        ),
        ("app_one:make_wrong", ["is of type int; expected a JobRegistry"]),
        ("app_one:needs", ["a function that needs arguments"]),
        (
            "app_ona",
            [
                "there is no module app_ona, neither installed nor in",
                "did you mean app_one?",
            ],
        ),
        (
            "zzz",
            ["there is no module zzz", "give --app-dir, or install the application"],
        ),
        ("app_package.jobz", ["there is no module app_package.jobz"]),
        ("app_one.py", ["expected a module, not a file; e.g. --app app_one"]),
        ("app_package/jobs.py", ["e.g. --app app_package.jobs"]),
        ("/srv/app_one.py", ["e.g. --app app_one"]),
        ("./app_one", ["expected a module, not a file; e.g. --app app_one"]),
        ("app_one:", ["expected package.module or package.module:registry"]),
        ("a b", ["expected package.module"]),
        ("", ["expected package.module"]),
        (
            "app_exits",
            [
                "importing app_exits ends the program (exit 3)",
                "if __name__ == '__main__':",
            ],
        ),
        ("app_invalid", ["a job cannot be None", "app_invalid.py, line 3"]),
        ("app_invalid_make:make", ["a job cannot be None"]),
    ],
)
def test_told_in_one_line(app_dir: Path, spec: str, words: list[str]) -> None:
    """What can be said in one line is: the place and the cure, and no traceback."""
    with pytest.raises(ConfigurationError) as caught:
        load_registry(spec, app_dir)
    assert not isinstance(caught.value, ApplicationFailed)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "text", ["61 * * * *", "-"], ids=["a wrong text", "an unknown name"]
)
def test_a_schedule_of_the_settings_is_not_blamed_on_the_application(
    app_dir: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Its place is the settings file, or the variable."""
    (app_dir / "ops.toml").write_text(
        f'[schedules]\n{"tick" if text != "-" else "tock"} = "{text}"\n'
    )
    monkeypatch.setenv("SLOTWISE_CONFIG", str(app_dir / "ops.toml"))
    with pytest.raises(ConfigurationError) as caught:
        load_registry("app_one", app_dir)
    assert str(caught.value).endswith(" (ops.toml: schedules)")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("app_syntax", ["app_syntax.py", "SyntaxError"]),
        (
            "app_raises",
            [
                "app_raises.py",
                "in compute",
                "ZeroDivisionError",
                "RuntimeError: no way",
            ],
        ),
        (
            "app_lacks",
            [
                "app_lacks.py",
                "import app_nowhere.deep",
                "No module named 'app_nowhere'",
            ],
        ),
        ("app_raising_make:make", ["in make", "OSError: disk"]),
    ],
)
def test_own_traceback(app_dir: Path, spec: str, words: list[str]) -> None:
    """What the application raised is told as a traceback of its own lines: none of slotwise, none
    of the import's.
    """
    with pytest.raises(ApplicationFailed) as caught:
        load_registry(spec, app_dir)
    text = str(caught.value)
    assert "slotwise/cli" not in text
    assert "importlib" not in text
    for word in words:
        assert word in text


@pytest.fixture
def importable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Put a module into a directory that comes first in ``sys.path``."""
    first = tmp_path / "first"
    first.mkdir()
    monkeypatch.syspath_prepend(first)
    return lambda name: (first / f"{name}.py").write_text("x = 'installed'\n") and None


def test_a_database_that_the_module_needs(
    app_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the place in the module, and the status of a database: a supervisor may wait
    for it.
    """
    monkeypatch.chdir(app_dir)
    assert status(["worker", "--app", "app_away"]) == exits.DATABASE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the database 'c' cannot be reached; create it (")
    assert line.endswith("app_away.py, line 5)")


def test_appended(app_dir: Path, importable: Callable[[str], None]) -> None:
    """The application's directory hides nothing that is installed: it stands at the end of
    ``sys.path``.
    """
    importable("app_one")
    with pytest.raises(ConfigurationError, match="has no JobRegistry"):
        load_registry("app_one", app_dir)
    assert sys.path[-1] == str(app_dir)
    load_registry("app_package.jobs", app_dir)
    assert sys.path.count(str(app_dir)) == 1
