"""Discovery: marks jobs, imports packages, and collects the marked jobs with their constructors'
arguments.

    found = discover("shop.jobs", resolvers=[FastAPIDependencies()])
    registry = JobRegistry(jobs=found.jobs, tasks=found.tasks)

``discover`` builds the jobs, so call it where your application is built: in each process, after a
server's fork.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Final, Never, TypeAlias, TypeVar

from slotwise import (
    ConfigurationError,
    DistributedJob,
    InvalidJob,
    OneTimeTask,
    SlotwiseError,
)
from slotwise.contrib.injection import (
    Resolvers,
    build,
    close_all,
    listed_resolvers,
    place_of,
)
from slotwise.spi import FunctionJob, FunctionTask, define

AnyClass: TypeAlias = (
    type[DistributedJob[Never, Never]] | type[OneTimeTask[Never, Never]]
)
Marked = TypeVar("Marked", bound=AnyClass)

#: Fits the lifespan of every registry.
AnyState: TypeAlias = Any

#: The group of entry points that name packages, modules, classes or functions with jobs.
GROUP: Final = "slotwise.jobs"

_MARK = "__slotwise_discovered__"


def distributed_job(marked: Marked) -> Marked:
    """Mark a class for ``discover``. Subclasses are not marked with it.

    Functions under ``@job`` and ``@task`` need no mark. Raises InvalidJob for anything but a
    subclass of DistributedJob or OneTimeTask.
    """
    if not (
        isinstance(marked, type) and issubclass(marked, DistributedJob | OneTimeTask)
    ):
        raise InvalidJob(
            f"@distributed_job above {marked!r:.80}: expected a subclass of "
            "DistributedJob or OneTimeTask; "
            "functions need @job or @task instead"
        )
    setattr(marked, _MARK, True)
    return marked


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """The jobs and tasks that were found, as a registry takes them, by name."""

    jobs: Sequence[DistributedJob[Never, AnyState]]
    tasks: Sequence[OneTimeTask[Never, AnyState]]
    _resolvers: Sequence[object] = field(default=(), repr=False)

    def close(self) -> None:
        """Close what the resolvers have opened: generators behind their ``yield``, containers."""
        close_all(self._resolvers)


def discover(
    *packages: str, entry_points: bool = False, resolvers: Resolvers = ()
) -> Discovered:
    """Import ``packages`` with all that is below them, and build the jobs and tasks that they
    define.

    Found are classes under ``@distributed_job`` and functions under ``@job`` or ``@task``, each in
    the module that defines it. ``entry_points``: also those of installed distributions, in the
    group ``slotwise.jobs``. ``resolvers`` supply constructor arguments, the first that knows one;
    a mapping of types or names to values is a resolver.

    Raises ConfigurationError for a module that cannot be imported, and InvalidJob for a name that
    is used twice, an abstract class, or an argument that no resolver knows: one line, with module
    and line.
    """
    if not packages and not entry_points:
        raise ConfigurationError(
            "discover() names no package; write discover('shop.jobs'), or entry_points=True"
        )
    subjects = [found for package in packages for found in _in_package(package)]
    if entry_points:
        subjects += [found for point in _points() for found in _at(point)]
    if not subjects:
        where = ", ".join(packages) or f"the entry points {GROUP}"
        raise InvalidJob(
            f"{where}: no jobs found; put @distributed_job above their classes"
        )
    return collect(subjects, resolvers)


def collect(subjects: Iterable[object], resolvers: Resolvers = ()) -> Discovered:
    """Build these classes, take functions as they are, and sort them into jobs and tasks by name.

    Raises what ``discover`` raises.
    """
    known = tuple(listed_resolvers(resolvers))
    built: dict[str, tuple[object, object]] = {}
    try:
        for subject in dict.fromkeys(subjects):
            made = build(subject, known) if isinstance(subject, type) else subject
            name = _name(made, subject)
            if name in built:
                places = " and ".join(
                    place_of(one) for one in (built[name][0], subject)
                )
                raise InvalidJob(
                    f"{name!r} is the name of two jobs, {places}; rename one of them"
                )
            built[name] = subject, made
    except BaseException:
        close_all(known)
        raise
    found = [built[name][1] for name in sorted(built)]
    return Discovered(
        jobs=[one for one in found if isinstance(one, DistributedJob)],
        tasks=[one for one in found if isinstance(one, OneTimeTask)],
        _resolvers=known,
    )


def _name(made: object, subject: object) -> str:
    try:
        return define(made).name
    except SlotwiseError as error:
        raise type(error)(f"{place_of(subject)}: {error}") from error


def in_module(module: ModuleType) -> Iterator[object]:
    """Return the marked classes and the function jobs that this module defines; raise InvalidJob
    for abstract ones.
    """
    for value in list(vars(module).values()):
        if isinstance(value, type):
            if vars(value).get(_MARK) and value.__module__ == module.__name__:
                yield _concrete(value)
        elif (
            isinstance(value, FunctionJob | FunctionTask)
            and value.execute.__module__ == module.__name__
        ):
            yield value


def import_module(name: str, said: str | None = None) -> ModuleType:
    """Import a module. Raises ConfigurationError with the line at which the import failed.

    ``said`` is where the name was written; the default is a call of ``discover``.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not _is_machinery(frame.filename)
        ]
        if not frames and isinstance(error, ModuleNotFoundError):
            raise ConfigurationError(
                f"{said or f'discover({name!r})'}: there is no module "
                f"{error.name}; {_cure(name, str(error.name))}"
            ) from None
        place = _place(frames) if frames else _syntax_place(error)
        text = " ".join(str(error).split())
        raise ConfigurationError(
            f"importing {name} failed at {place}: {type(error).__name__}: {text}"
        ) from error
    except SystemExit as error:
        place = _place(traceback.extract_tb(error.__traceback__))
        raise ConfigurationError(
            f"importing {name} ends the program at {place}; put what runs under: "
            "if __name__ == '__main__':"
        ) from None


def _cure(name: str, missing: str) -> str:
    parent = missing.rpartition(".")[0]
    if parent and not hasattr(sys.modules.get(parent), "__path__"):
        return f"name the module: {parent!r}"
    guess = get_close_matches(missing, _siblings(parent), n=1, cutoff=0.7)
    return (
        f"did you mean {guess[0] + name.removeprefix(missing)!r}?"
        if guess
        else "correct the name, or install it"
    )


def _place(frames: Sequence[traceback.FrameSummary]) -> str:
    own = [frame for frame in frames if not _is_machinery(frame.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}"


def _in_package(name: str) -> Iterator[object]:
    if not isinstance(name, str) or not all(
        part.isidentifier() for part in name.split(".")
    ):
        raise ConfigurationError(
            f"discover({name!r:.80}): expected the name of a package or module, as 'shop.jobs'"
        )
    for module in _walk(import_module(name)):
        yield from in_module(module)


def _walk(package: ModuleType) -> Iterator[ModuleType]:
    """Yield a module and, if it is a package, all below it, by name."""
    yield package
    for info in sorted(
        pkgutil.iter_modules(getattr(package, "__path__", ())),
        key=lambda one: one.name,
    ):
        if info.name != "__main__":
            yield from _walk(import_module(f"{package.__name__}.{info.name}"))


def _siblings(parent: str) -> list[str]:
    """Return the modules beside one that does not exist, for a hint."""
    if not parent:
        return [info.name for info in pkgutil.iter_modules()]
    path = getattr(sys.modules.get(parent), "__path__", ())
    return [f"{parent}.{info.name}" for info in pkgutil.iter_modules(path)]


def _points() -> Iterable[EntryPoint]:
    return sorted(
        entry_points(group=GROUP), key=lambda point: (point.name, point.value)
    )


def _at(point: EntryPoint) -> Iterator[object]:
    where = (
        f"entry point {point.name} = {point.value} of "
        f"{point.dist.name if point.dist else 'an unknown distribution'}"
    )
    try:
        found = point.load() if point.attr else None
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{where}: {error}; correct it there, or uninstall that distribution"
        ) from error
    if found is None or isinstance(found, ModuleType):
        yield from _in_package(found.__name__ if found else point.module)
    elif isinstance(found, type) and issubclass(found, DistributedJob | OneTimeTask):
        yield _concrete(found)
    elif isinstance(found, DistributedJob | OneTimeTask):
        yield found
    else:
        raise InvalidJob(
            f"{where} is {found!r:.80}; expected a package, a module, or a job"
        )


def _concrete(found: Any) -> object:
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise InvalidJob(
            f"{place_of(found)} is abstract: it does not define {missing}; define "
            "it, or remove @distributed_job"
        )
    return found


def _is_machinery(filename: str) -> bool:
    return filename.startswith("<frozen ") or filename in (
        __file__,
        importlib.__file__,
    )


def _syntax_place(error: Exception) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    return "an unknown line"
