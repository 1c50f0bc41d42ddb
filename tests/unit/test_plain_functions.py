"""Plain functions under ``@task`` and ``@job``: their arguments are the data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

from slotwise import (
    Call,
    ConfigurationError,
    Context,
    Disabled,
    DistributedJob,
    InvalidJob,
    InvalidPayload,
    Item,
    JobContext,
    JobRegistry,
    TaskContext,
    job,
    task,
)
from slotwise.spi import define
from slotwise.testing import ManualWorker, override, scheduled

if TYPE_CHECKING:
    from slotwise import Settings as OnlyForCheckers


@dataclass
class Address:
    street: str


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@task
def send_mail(to: str, order: int, *, urgent: bool = False) -> str:
    """Send it."""
    return f"{to}, {order}, {urgent}"


@task(name="ship")
async def ship(ctx: TaskContext, to: Address, by: str | None = None, /) -> str:
    return f"{ctx.name} to {to.street} by {by}"


@task
def everything(
    day: date,
    at: datetime,
    price: Decimal,
    sizes: list[Size],
    address: Address | None = None,
    *,
    extra: Any = None,
) -> tuple[object, ...]:
    return day, at, price, sizes, address, extra


@task
def untyped(x, y=2):  # type: ignore[no-untyped-def]
    return x + y


@task
def nothing() -> str:
    return "ran"


@job(schedule="@hourly")
def nightly(customer: int = 0) -> None:
    """Report."""
    found.append(customer)


found: list[object] = []


def ran(call: Call) -> object:
    """What the call of a task returns, through the stored bytes and a handler."""
    registry = JobRegistry(tasks=[call.task])
    with override(registry), scheduled(registry) as tasks:
        registry.client.schedule(call)
        (result,) = tasks.run_all()
    return result


def test_a_call_runs_with_its_arguments() -> None:
    """What a worker passes is what was given, of its own types; defaults are the function's."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    day, price = date(2026, 2, 28), Decimal("7.10")
    assert ran(send_mail.call("ann", 7)) == "ann, 7, False"
    assert ran(send_mail.call(order=7, to="ann", urgent=True)) == "ann, 7, True"
    assert ran(ship.call(Address("Ring"))) == "ship to Ring by None"
    assert ran(ship.call(Address("Ring"), "air")) == "ship to Ring by air"
    assert ran(untyped.call(1)) == 3
    assert ran(nothing.call()) == "ran"
    call = everything.call(day, now, price, [Size.LARGE], extra={"a": [1]})
    assert ran(call) == (day, now, price, [Size.LARGE], None, {"a": [1]})


def test_a_row_is_an_object_with_the_given_arguments() -> None:
    """So that a parameter with a default may be added, and any program may write a row."""
    payload = define(send_mail).payload
    assert payload.encode({"to": "ann", "order": 7}, "x") == b'{"to":"ann","order":7}'
    assert payload.decode(b'{"order": 7, "to": "ann"}') == {"to": "ann", "order": 7}
    assert define(nothing).payload.encode(None, "x") is None
    assert define(nothing).payload.decode(None) == {}


def test_the_function_stays_callable() -> None:
    assert send_mail("ann", 7, urgent=True) == "ann, 7, True"
    assert nothing() == "ran"
    assert send_mail.__doc__ == "Send it."
    assert send_mail.name == "send_mail"


def test_old_rows_after_a_change_of_the_signature() -> None:
    """A new parameter with a default reads them; a removed one is refused with the cure."""

    @task
    def more(to: str, order: int, urgent: bool = False, by: str = "post") -> None: ...

    @task
    def fewer(to: str) -> None: ...

    row = define(send_mail).payload.encode({"to": "ann", "order": 7}, "x")
    assert define(more).payload.decode(row) == {"to": "ann", "order": 7}
    with pytest.raises(
        InvalidPayload, match=r"fewer has no argument 'order'.*upgrades"
    ):
        define(fewer).payload.decode(row)
    with pytest.raises(
        InvalidPayload, match=r"order is missing; send_mail takes \(to: "
    ):
        define(send_mail).payload.decode(b'{"to": "ann"}')
    upgrades = {1: lambda old: {"to": old["to"]}}
    newer = task(name="send_mail", payload_version=2, upgrades=upgrades)(
        lambda to: to  # type: ignore[misc]
    )
    with pytest.raises(InvalidJob, match=r"an argument or the context\?"):
        define(newer)
    newer = task(name="send_mail", payload_version=2, upgrades=upgrades)(typed_to)
    assert define(newer).payload.decode(row) == {"to": "ann"}


def typed_to(to: str) -> None: ...


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: send_mail.call("ann"),
            "missing a required argument: 'order'; it takes",
        ),
        (lambda: send_mail.call("ann", 7, True), "too many positional arguments"),
        (lambda: send_mail.call("ann", 7, delay="1h"), "unexpected keyword argument"),
        (lambda: ran(send_mail.call("ann", "7")), "order: expected int, got '7'"),
        (lambda: ran(ship.call("Ring")), "to: expected Address, got 'Ring'"),
        (lambda: ran(everything.call(1, 2, 3, 4)), "day: expected date, got 1"),
        (lambda: of_payload.call(1, 2), "of_payload takes one payload"),
        (lambda: of_payload.call(address=1), "of_payload takes one payload"),
    ],
)
def test_wrong_arguments_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidPayload, match=message):
        make()


@task
def of_payload(ctx: TaskContext[Address]) -> str:
    return ctx.data.street


def of_any(ctx: Context, to: str) -> str:
    return f"{ctx.name} to {to}"


def of_whatever(ctx: Any, to: str) -> str:
    return f"{ctx.name} to {to}"


def test_the_context_is_passed_only_if_asked_for() -> None:
    assert ran(of_payload.call(Address("Ring"))) == "Ring"
    assert ran(task(of_any).call("ann")) == "of_any to ann"
    assert ran(task(of_whatever).call("ann")) == "of_whatever to ann"
    assert ran(task(name="x")(lambda ctx: ctx.data).call([1])) == [1]


class Mailer:
    def send(self, to: str) -> str:
        return f"by mailer to {to}"

    @staticmethod
    def send_all(to: list[str]) -> int:
        return len(to)


def wrapped(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def run(*given: object, **named: object) -> object:
        return function(*given, **named)

    return run


def test_other_callables() -> None:
    """Bound methods, static methods, and functions under decorators of other libraries."""
    assert ran(task(name="bound")(Mailer().send).call("ann")) == "by mailer to ann"
    assert ran(task(Mailer.send_all).call(["ann", "bob"])) == 2
    assert ran(task(wrapped(typed)).call(order="x")) == "x"
    assert ran(task(name="p")(functools.partial(typed, more=1)).call("y")) == "y"


def typed(order: str, more: int = 0) -> str:
    return order


def any_number(*names: str) -> None: ...
def any_names(to: str, **more: str) -> None: ...
def lone(order) -> None: ...  # type: ignore[no-untyped-def]
def of_a_set(to: set[object], by: complex = 1j) -> None: ...
def hidden(to: OnlyForCheckers) -> None: ...
def yields(to: str) -> Any:
    yield to


def both(ctx: TaskContext[Address], to: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (any_number, r"any_number: \*names: .*write one argument with a list"),
        (any_names, r"any_names: \*\*more: .*write one argument with a dict"),
        (Mailer.send, "Mailer.send is a method, and no worker has its self"),
        (lone, r"lone\(order\): an argument or the context\? Write its type"),
        (of_a_set, r"of_a_set\(by\): complex is not a type for a payload"),
        (hidden, r"hidden\(to\): name 'OnlyForCheckers' is not defined; import"),
        (yields, "yields contains yield"),
        (both, "both: ctx.data has a type, and there are arguments"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    function: Callable[..., object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        define(task(function))


def test_jobs_have_arguments_for_their_instances() -> None:
    """Their own slots have none, so that each needs a default, or a schedule that is disabled."""
    found.clear()
    with ManualWorker([nightly]) as worker:
        worker.client.schedule_recurring(nightly.call(customer=7), "7", "@hourly")
        worker.tick("1h")
        assert {event.outcome for event in worker.run_due()} == {"succeeded"}
    assert sorted(map(str, found)) == ["0", "7"]
    nightly(8)
    with pytest.raises(InvalidJob, match=r"\(customer: int\) needs some; give each"):
        define(job(schedule="@hourly")(needs_customer))
    assert define(job(schedule=Disabled())(needs_customer)).name == "needs_customer"


def needs_customer(customer: int) -> None: ...


class OfAddress(DistributedJob[Address]):
    name = "of-address"
    schedule = "@hourly"

    def execute(self, ctx: JobContext[Address]) -> None: ...


class MayHaveAddress(DistributedJob[Address | None]):
    name = "may-have-address"
    schedule = "@hourly"

    def execute(self, ctx: JobContext[Address | None]) -> None:
        found.append(ctx.data)


def test_jobs_have_typed_data() -> None:
    with pytest.raises(
        InvalidJob, match=r"ctx.data is Address; write Address \| None"
    ):
        define(OfAddress)
    found.clear()
    with ManualWorker([MayHaveAddress]) as worker:
        address = Address("Ring")
        worker.client.schedule_recurring(MayHaveAddress, "1", "@hourly", address)
        with pytest.raises(InvalidPayload, match="'may-have-address' does not fit"):
            worker.client.schedule_recurring(MayHaveAddress, "1", "@hourly", "Ring")
        worker.tick("1h")
        worker.run_due()
    assert sorted(found, key=str) == [Address("Ring"), None]


def test_calls_are_items() -> None:
    """``schedule``, ``schedule_many``, ``ctx.then`` and the instances take them."""

    @task
    def first(ctx: TaskContext, to: str) -> None:
        ctx.then(send_mail.call(to, 8), id="then")

    registry = JobRegistry(tasks=[send_mail, first])
    with override(registry), scheduled(registry) as tasks:
        client = registry.client
        client.schedule(first.call("ann"), id="1", delay="1h")
        client.schedule_many(send_mail.call("bob", number) for number in range(2))
        client.schedule_many([Item(send_mail.call("eve", 7), id="7")])
        client.schedule_many(
            send_mail, [send_mail.call("eve", 9), {"to": "x", "order": 1}]
        )
        assert client.schedule_many(iter(())).scheduled == 0  # type: ignore[arg-type]
        assert [one.data["to"] for one in tasks] == [
            "ann",
            "bob",
            "bob",
            "eve",
            "eve",
            "x",
        ]
        assert tasks.one(first, to="ann").id == "1"
        tasks.run_all()
        client.schedule_recurring(send_mail.call("ann", 7), "ann", "@daily")


def test_misuse_of_calls_is_refused() -> None:
    registry = JobRegistry(tasks=[send_mail, nothing])
    client = registry.client
    call = send_mail.call("ann", 7)
    with override(registry):
        for misuse, message in [
            (
                lambda: client.schedule(call, {"to": "bob"}),
                "the call of 'send_mail' has",
            ),
            (lambda: client.schedule_many(call), "the items are missing"),
            (lambda: client.schedule_many(send_mail), "the items are missing"),
            (
                lambda: client.schedule_many(["ann"]),
                r"items\[0\] is 'ann', and no call",
            ),
            (
                lambda: client.schedule_many([call, nothing.call()]),
                r"items\[1\]: it is a call of 'nothing' among those of 'send_mail'",
            ),
            (lambda: client.schedule(send_mail), "to is missing; send_mail takes"),
            (lambda: client.schedule(send_mail, "ann"), r"write send_mail.call\(…\)"),
            (
                lambda: client.schedule(send_mail, {"too": "ann"}),
                "send_mail has no argument 'too'; it takes",
            ),
        ]:
            with pytest.raises(ConfigurationError, match=message):
                misuse()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("send-mail", "'send-mail' is not a function; write name='send-mail'"),
        (7, "7 is not a function; decorate a function"),
        (OfAddress, "is not a function; decorate a function, or subclass OneTimeTask"),
    ],
)
def test_only_functions_are_decorated(given: Any, message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        task(given)


def test_models_of_libraries_are_arguments() -> None:
    """Pydantic's come back as they were given; wrong ones are named with their path."""
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Line", number=(int, ...))

    def order(line, lines):  # type: ignore[no-untyped-def]
        return line.number + sum(one.number for one in lines)

    order.__annotations__ = {"line": model, "lines": list[model]}
    subject: Any = task(order)
    assert ran(subject.call(model(number=1), [model(number=2)])) == 3
    with pytest.raises(InvalidPayload, match=r"lines\[0\]: expected Line, got 2"):
        ran(subject.call(model(number=1), [2]))
