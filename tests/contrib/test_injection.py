"""Constructor arguments from FastAPI's dependencies, Django's settings, svcs, dishka and plain
values.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Annotated, Any

import dishka
import pytest
import svcs
from fastapi import Depends, Header, Request

from slotwise import DistributedJob, InvalidJob, JobContext, SlotwiseError
from slotwise.contrib.discovery import collect
from slotwise.contrib.injection import (
    Argument,
    DishkaContainer,
    DjangoSettings,
    FastAPIDependencies,
    Resolver,
    SvcsServices,
)


class Mailer:
    closed = False


class Reports:
    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer


def make_mailer() -> Iterator[Mailer]:
    mailer = Mailer()
    yield mailer
    mailer.closed = True


def make_reports(
    mailer: Annotated[Mailer, Depends(make_mailer)], limit: int = 10
) -> Reports:
    assert limit == 10
    return Reports(mailer)


class Job(DistributedJob):
    name = "job"
    schedule = "@hourly"

    def execute(self, ctx: JobContext) -> None: ...


class Nested(Job):
    def __init__(
        self,
        reports: Annotated[Reports, Depends(make_reports)],
        mailer: Mailer = Depends(make_mailer),  # noqa: B008
        size: int = 3,
    ) -> None:
        self.reports, self.mailer, self.size = reports, mailer, size


class ByType(Job):
    def __init__(self, reports: Reports, mailer: Mailer, bucket: str = "none") -> None:
        self.reports, self.mailer, self.bucket = reports, mailer, bucket


def test_fastapi_dependencies_are_shared_and_closed() -> None:
    """Dependencies nest, are called once, and a generator's end is run by close."""
    found = collect([Nested], [FastAPIDependencies()])
    (job,) = found.jobs
    assert isinstance(job, Nested)
    assert (job.reports.mailer, job.size) == (job.mailer, 3)
    assert not job.mailer.closed
    found.close()
    assert job.mailer.closed


def test_fastapi_overrides_are_used() -> None:
    """The overrides of a test reach jobs, too."""
    fake = Mailer()
    (job,) = collect([Nested], [FastAPIDependencies({make_mailer: lambda: fake})]).jobs
    assert isinstance(job, Nested)
    assert job.reports.mailer is fake


def current_user(request: Request) -> str:
    return "ann"


def token(authorization: Annotated[str, Header()] = "") -> str:
    return authorization


def limit(size: int) -> int:
    return size


def optional_request(request: Request = None) -> str:  # type: ignore[assignment]
    return "ann"


async def session() -> AsyncIterator[str]:
    yield "session"


@pytest.mark.parametrize(
    ("dependency", "line"),
    [
        (
            current_user,
            r"Depends\(current_user\) takes request: .*Request.*, which only a request has",
        ),
        (
            optional_request,
            r"Depends\(optional_request\) takes request: .*Request.*, which only a request has",
        ),
        (token, r"Depends\(token\) takes authorization: .*, which only a request has"),
        (limit, r"Depends\(limit\) takes size: .*int.*, which only a request has"),
        (
            session,
            r"Depends\(session\) is async; jobs are built without a loop: pass a plain function",
        ),
    ],
    ids=["request", "request with a default", "header", "query", "async"],
)
def test_what_needs_a_request_is_refused_by_name(
    dependency: Callable[..., Any], line: str
) -> None:
    """The line names the job, its argument and the dependency."""

    class Refused(Job):
        def __init__(self, value: Any = Depends(dependency)) -> None: ...  # noqa: B008

    with pytest.raises(InvalidJob, match=r"Refused\(… value: .*\): " + line):
        collect([Refused], [FastAPIDependencies()])


def svcs_registry() -> Resolver:
    registry = svcs.Registry()
    registry.register_factory(Mailer, make_mailer)
    registry.register_factory(
        Reports, lambda svcs_container: Reports(svcs_container.get(Mailer))
    )
    return SvcsServices(registry)


def dishka_container() -> Resolver:
    provider = dishka.Provider(scope=dishka.Scope.APP)
    provider.provide(make_mailer)
    provider.provide(Reports)
    return DishkaContainer(dishka.make_container(provider))


@pytest.mark.parametrize("make", [svcs_registry, dishka_container])
def test_containers_supply_types(make: Callable[[], Resolver]) -> None:
    """Services come by type; what the container does not know keeps its default; close ends what
    was opened.
    """
    found = collect([ByType], [make()])
    (job,) = found.jobs
    assert isinstance(job, ByType)
    assert (job.reports.mailer, job.bucket) == (job.mailer, "none")
    found.close()
    assert job.mailer.closed


@pytest.mark.parametrize("make", [svcs_registry, dishka_container])
def test_containers_that_do_not_know_a_type(make: Callable[[], Resolver]) -> None:
    """The line names the class, the argument and who was asked."""

    class Unknown(Job):
        def __init__(self, there: Iterator[int]) -> None: ...

    with pytest.raises(
        InvalidJob,
        match=r"no resolver supplies the argument .*Unknown\(… there: .*\(resolvers: \w+\)",
    ):
        collect([Unknown], [make()])


def test_an_async_container_is_refused() -> None:
    """A job is built without a loop."""
    with pytest.raises(
        SlotwiseError, match=r"AsyncContainer is async; .* pass make_container"
    ):
        DishkaContainer(dishka.make_async_container(dishka.Provider()))


def test_the_first_resolver_that_knows_an_argument_counts() -> None:
    """A mapping supplies by name or type; the order of resolvers is their precedence."""
    mine = Mailer()
    values: Mapping[Any, object] = {Mailer: mine, "bucket": "b"}
    found = collect([ByType], [values, svcs_registry()])
    (job,) = found.jobs
    assert isinstance(job, ByType)
    assert (job.mailer, job.bucket) == (mine, "b")
    assert job.reports.mailer is not mine
    found.close()


@pytest.mark.parametrize("scope", [dishka.Scope.REQUEST, dishka.Scope.SESSION])
def test_a_scope_that_a_job_does_not_have(scope: dishka.Scope) -> None:
    """The line names the scope and what to do; a default is no excuse for a type that the
    container provides.
    """
    provider = dishka.Provider(scope=scope)
    provider.provide(make_mailer)

    class WithDefault(Job):
        def __init__(
            self,
            mailer: Mailer | None = None,
            other: Mailer = Mailer(),  # noqa: B008
        ) -> None: ...

    line = (
        rf"other: Mailer …\): dishka provides it in Scope\.{scope.name}, and jobs "
        r"are built once; provide it in "
        r"Scope\.APP, or pass an entered container: "
        r"DishkaContainer\(stack\.enter_context\(container\(\)\)\)"
    )
    container = dishka.make_container(provider)
    with pytest.raises(InvalidJob, match=line):
        collect([WithDefault], [DishkaContainer(container)])
    if scope is dishka.Scope.REQUEST:
        with container() as entered:
            assert collect([WithDefault], [DishkaContainer(entered)]).jobs


class Raising:
    def resolve(self, argument: Argument) -> object:
        raise OSError("no\nroute")


NO_RESOLVERS: dict[str, tuple[Any, str]] = {
    "a value": (
        [7],
        r"resolvers: 7 has no method resolve\(argument\); pass a mapping, or one "
        r"of slotwise\.contrib\.",
    ),
    "no list": (7, r"resolvers is 7; pass a list: resolvers=\[7\]"),
    "one resolver": (
        Raising(),
        r"resolvers is <.*Raising object.*>; pass a list: resolvers=\[…\]",
    ),
    "one mapping": (
        {Mailer: 1},
        r"resolvers is \{.*Mailer.*: 1\}; pass a list: resolvers=\[\{.*\}\]",
    ),
    "a string": ("svcs", r"resolvers is 'svcs'; pass a list: resolvers=\['svcs'\]"),
    "a class": (
        [FastAPIDependencies],
        r"resolvers: FastAPIDependencies is a class; pass an instance: FastAPIDep.*\(\)",
    ),
    "one that raises": (
        [Raising()],
        r"ByType \(.*\): the resolver Raising raised OSError: no route for the "
        r"argument .*reports: Reports …\); corr",
    ),
}


@pytest.mark.parametrize(
    ("resolvers", "line"), NO_RESOLVERS.values(), ids=NO_RESOLVERS
)
def test_what_is_no_resolver_is_refused(resolvers: Any, line: str) -> None:
    """One line each, with the value and the cure."""
    with pytest.raises(SlotwiseError, match=line) as raised:
        collect([ByType], resolvers)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda: FastAPIDependencies(7),
            r"FastAPIDependencies\(7\): pass app\.dependency_overrides, or nothing",
        ),  # type: ignore[arg-type]
        (
            lambda: DjangoSettings(7),
            r"DjangoSettings\(7\): the prefix must be a string, e\.g\. 'SHOP_'",
        ),  # type: ignore[arg-type]
        (
            lambda: SvcsServices(7),
            r"SvcsServices\(7\): pass a svcs\.Registry or a svcs\.Container",
        ),
        (
            lambda: DishkaContainer(7),
            r"DishkaContainer\(7\): pass the container of dishka\.make_container",
        ),
    ],
)
def test_resolvers_of_wrong_things_are_refused(
    make: Callable[[], object], line: str
) -> None:
    """One line each, with the value and the cure."""
    with pytest.raises(SlotwiseError, match=line):
        make()
