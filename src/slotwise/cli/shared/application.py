"""Imports the user's application and finds its registry; errors show the user's own traceback."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from slotwise import ConfigurationError, DatabaseProblem, SlotwiseError

if TYPE_CHECKING:
    from slotwise import JobRegistry
    from slotwise.contrib.shards.fleet import Fleet
    from slotwise.spi import Worker

_SPEC = re.compile(r"(?P<module>\w+(?:\.\w+)*)(?::(?P<name>\w+(?:\.\w+)*))?")
_OURS = str(Path(__file__).resolve().parents[2])


class ApplicationFailed(ConfigurationError):
    """The user's module raised while it was imported, or its lifespan; the message is its own
    traceback.
    """


def load_registry(spec: str, app_dir: Path) -> JobRegistry:
    """Return the registry that ``package.module:name`` names; without a name, the module's only
    one.

    ``app_dir`` is appended to ``sys.path``. Raises ConfigurationError in one line, or
    ApplicationFailed. If the module uses a database that is not usable, DatabaseProblem names the
    place in the module.
    """
    match = _SPEC.fullmatch(spec)
    if match is None or spec.endswith(".py"):
        raise ConfigurationError(_not_a_module(spec))
    if str(app_dir) not in sys.path:
        sys.path.append(str(app_dir))
    module = _import(match["module"], app_dir)
    if match["name"] is None:
        return _only_registry(module)
    return _registry(_attribute(module, match["name"], spec), spec)


@contextlib.contextmanager
def lifespan_errors(worker: Worker | Fleet) -> Iterator[None]:
    """Raise ApplicationFailed, with the application's own traceback, for what the worker's
    lifespan raises. Other errors pass.
    """
    try:
        yield
    except BaseException as error:
        if (name := worker.blame(error)) is None:
            raise
        raise _failed(f"the lifespan {name}", error) from None


def _not_a_module(spec: str) -> str:
    if spec.endswith(".py") or "/" in spec:
        path = Path(spec).with_suffix("")
        module = (
            path.name
            if path.is_absolute()
            else ".".join(part for part in path.parts if part != "..")
        )
        return f"--app {spec}: expected a module, not a file; e.g. --app {module or 'jobs'}"
    return f"--app {spec}: expected package.module or package.module:registry"


def _import(name: str, app_dir: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except SlotwiseError as error:
        where = error.place or _last_place(error.__traceback__)
        kind = (
            type(error) if isinstance(error, DatabaseProblem) else ConfigurationError
        )
        raise kind(f"{error}{f' ({where})' if where else ''}") from None
    except ModuleNotFoundError as error:
        if _is_missing(name, error):
            raise ConfigurationError(
                _no_module(name, str(error.name), app_dir)
            ) from None
        raise _failed(f"importing {name}", error) from None
    except SystemExit as error:
        raise ConfigurationError(
            f"importing {name} ends the program (exit {error.code}); put what runs "
            "under: if __name__ == '__main__':"
        ) from None
    except Exception as error:
        if _lacks_django(error):
            raise ConfigurationError(
                f"importing {name} needs Django, which is not set up "
                f"({' '.join(str(error).split())[:80]}); start it "
                "as: python manage.py slotwise …, or with --app "
                "slotwise.contrib.django.worker:registry and "
                "DJANGO_SETTINGS_MODULE"
            ) from None
        raise _failed(f"importing {name}", error) from None


def _lacks_django(error: Exception) -> bool:
    """Whether this is Django's complaint that ``django.setup()`` was not called."""
    registry = getattr(sys.modules.get("django.apps"), "apps", None)
    return (
        type(error).__module__ == "django.core.exceptions"
        and type(error).__name__ in ("AppRegistryNotReady", "ImproperlyConfigured")
        and not getattr(registry, "ready", False)
    )


def _is_missing(name: str, error: ModuleNotFoundError) -> bool:
    """Whether the named module, or a package above it, is missing; not a module that it
    imports.
    """
    return f"{name}.".startswith(f"{error.name}.") and not _own_frames(
        error.__traceback__
    )


def _no_module(name: str, missing: str, app_dir: Path) -> str:
    near = difflib.get_close_matches(
        name, [path.stem for path in app_dir.glob("*.py")], n=1
    )
    hint = (
        f"did you mean {near[0]}?"
        if near
        else "give --app-dir, or install the application"
    )
    of = "" if missing == name else f" (of {name})"
    return (
        f"there is no module {missing}{of}, neither installed nor in {app_dir}; {hint}"
    )


def _failed(what: str, error: BaseException) -> ApplicationFailed:
    told = traceback.TracebackException.from_exception(error)
    _cut(told)
    return ApplicationFailed(f"{what} failed:\n{''.join(told.format()).rstrip()}")


def _cut(told: traceback.TracebackException) -> None:
    """Remove the frames of slotwise and of importlib and contextlib, in the causes, too."""
    told.stack[:] = [frame for frame in told.stack if not _is_foreign(frame.filename)]
    for inner in (told.__cause__, told.__context__):
        if inner is not None:
            _cut(inner)


def _own_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    return [
        frame
        for frame in traceback.extract_tb(trace)
        if not _is_foreign(frame.filename)
    ]


def _is_foreign(filename: str) -> bool:
    return filename.startswith(("<frozen ", _OURS)) or filename in (
        importlib.__file__,
        contextlib.__file__,
    )


def _last_place(trace: TracebackType | None) -> str | None:
    frames = _own_frames(trace)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else None


def _only_registry(module: ModuleType) -> JobRegistry:
    found = _registries(module)
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        names = " or ".join(f"--app {module.__name__}:{name}" for name in found)
        raise ConfigurationError(
            f"{module.__name__} has {len(found)} registries; choose one: {names}"
        )
    raise ConfigurationError(
        f"{module.__name__} ({module.__file__}) has no JobRegistry at its top level; "
        f"add one: registry = JobRegistry(jobs=[…]), or name another module"
    )


def _registries(module: ModuleType) -> dict[str, JobRegistry]:
    """The module's registries, each under its first name."""
    from slotwise import JobRegistry

    found: dict[str, JobRegistry] = {}
    for name, value in vars(module).items():
        if isinstance(value, JobRegistry) and all(
            value is not other for other in found.values()
        ):
            found[name] = value
    return found


def _attribute(module: ModuleType, path: str, spec: str) -> object:
    value: object = module
    for name in path.split("."):
        if not hasattr(value, name):
            known = ", ".join(_registries(module)) or "none"
            raise ConfigurationError(
                f"--app {spec}: there is no {name!r}; registries of {module.__name__}: {known}"
            )
        value = getattr(value, name)
    return value


def _registry(value: object, spec: str) -> JobRegistry:
    """Return a registry, also from a builder, or from a function without arguments."""
    from slotwise import JobRegistry

    if inspect.isroutine(value):
        value = _made(value, spec)
    if isinstance(value, type(JobRegistry.builder())):
        value = value.build()
    if not isinstance(value, JobRegistry):
        what = (
            f"the class {value.__name__}"
            if isinstance(value, type)
            else f"of type {type(value).__name__}"
        )
        raise ConfigurationError(
            f"--app {spec} is {what}; expected a JobRegistry, such as registry = JobRegistry(…)"
        )
    return value


def _made(function: Callable[..., object], spec: str) -> object:
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise ConfigurationError(
            f"--app {spec} is a function that needs arguments; expected a JobRegistry"
        ) from None
    try:
        return function()
    except SlotwiseError:
        raise
    except Exception as error:
        raise _failed(spec, error) from None
