"""Payloads: what a task's data may be, how it is written, and what becomes of bytes that cannot be
read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NewType,
    NotRequired,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import pytest
from tests.kit.payloads import (
    JSON,
    PAYLOAD_LIMIT,
    UNTYPED,
    Payload,
    encode_result,
    shape_of,
)

from slotwise import (
    ConfigurationError,
    InvalidJob,
    InvalidPayload,
    JobContext,
    OneTimeTask,
    TaskContext,
    task,
)
from slotwise.errors import NewerPayload
from slotwise.spi import define, register_codec


class Colour(Enum):
    RED = "red"
    BLUE = 2


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass(frozen=True)
class Order:
    number: int
    lines: list[Line] = field(default_factory=list)
    due: datetime | None = None


@dataclass
class Counted(Line):
    of: int = 0


@dataclass
class Node:
    children: list[Node]


class Address(TypedDict):
    city: str
    code: NotRequired[str]


Kilos = NewType("Kilos", int)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID = UUID(int=7)


def payload(kind: Any, **declared: Any) -> Payload:
    return define(task(name="t", payload=kind, **declared)(_nothing)).payload


def _nothing(ctx: JobContext) -> None:
    """A handler that no test here runs."""


# -- there and back -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (Any, {"a": [1, None]}, {"a": [1, None]}),
        (int, 7, 7),
        (float, 7, 7),
        (bool, False, False),
        (str | None, "x", "x"),
        (int | str, "x", "x"),
        (list[int], [1, 2], [1, 2]),
        (Sequence[int], (1, 2), [1, 2]),
        (tuple[int, ...], (1, 2), [1, 2]),
        (tuple[int, str], (1, "x"), [1, "x"]),
        (set[str], {"x"}, ["x"]),
        (dict[str, int], {"x": 1}, {"x": 1}),
        (Mapping[str, Any], {"x": []}, {"x": []}),
        (Literal["a", 1], 1, 1),
        (Kilos, 5, 5),
        (Annotated[int, "positive"], 5, 5),
        (datetime, NOON, "2026-01-01T12:00:00+00:00"),
        (date, NOON.date(), "2026-01-01"),
        (time, time(1, 2), "01:02:00"),
        (UUID, ID, str(ID)),
        (Decimal, Decimal("0.10"), "0.10"),
        (Colour, Colour.BLUE, 2),
        (
            Order,
            Order(1, [Line("a", 2)], NOON),
            {
                "number": 1,
                "lines": [{"sku": "a", "count": 2}],
                "due": "2026-01-01T12:00:00+00:00",
            },
        ),
        (Address, {"city": "Graz"}, {"city": "Graz"}),
        (str, "\ud800", "\ud800"),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, dict | list) else "",
)
def test_a_value_comes_back_as_it_went(kind: Any, value: Any, stored: Any) -> None:
    """As JSON that any other program can read."""
    one = payload(kind)
    written = one.encode(value, "t")
    assert written is not None
    assert json.loads(written) == stored
    back = one.decode(written)
    assert back == (list(value) if kind == Sequence[int] else value)
    assert type(back) is type(value) or kind == Sequence[int]


@pytest.mark.parametrize("kind", [Any, None, str | None], ids=str)
def test_no_data(kind: Any) -> None:
    """Is stored as none, not as the text null."""
    assert payload(kind).encode(None, "t") is None
    assert payload(kind).decode(None) is None
    assert payload(kind).decode(b"null") is None


def test_what_a_reader_does_not_know_is_passed_over() -> None:
    """A field that a newer release added with a default stops no older worker, and the reverse."""
    assert payload(Order).decode(b'{"number":1,"colour":"red"}') == Order(1)
    assert payload(Address).decode(b'{"city":"Graz","street":"x"}') == {"city": "Graz"}


# -- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int, True, "expected int, got True"),
        (int, 1.0, "expected int, got 1.0"),
        (str, None, "expected str, got None"),
        (date, NOON, "expected date, got datetime"),
        (list[int], "12", "expected list[int], got '12'"),
        (dict[str, int], {"a": "x"}, "a: expected int, got 'x'"),
        (dict[str, int], {1: 1}, "expected dict[str, int], got {1: 1}"),
        (tuple[int, str], (1,), "expected tuple[int, str], got (1,)"),
        (tuple[int, str], (1, 2), "[1]: expected str, got 2"),
        (Literal["a"], "b", "expected typing.Literal['a'], got 'b'"),
        (Colour, "red", "expected Colour, got 'red'"),
        (Order, {"number": 1}, "expected Order, got {'number': 1}"),
        (Order, Order(1, [Line("a"), Line(2)]), "lines[1].sku: expected str, got 2"),  # type: ignore[arg-type]
        (Address, {"code": "8010"}, "city is missing"),
        (int | str | None, 5.5, "expected int | str | None, got 5.5"),
        (int | list[str], ["a", 1], "[1]: expected str, got 1"),
        (
            Any,
            {1, 2},
            "cannot be written as JSON: {1, 2} is of type set, which JSON cannot "
            "express; declare the type",
        ),
        (
            Any,
            Order(1),
            "cannot be written as JSON: Order(number=1, lines=[], due=None) is of type Order",
        ),
        (
            Any,
            {"lines": [1, {"at": NOON}]},
            "as JSON: lines[1].at: datetime.datetime(2026, 1, 1, 12, 0, tzinfo=",
        ),
        (
            Any,
            [b"x"],
            "[0]: b'x' is of type bytes, which JSON cannot express; declare the "
            "type of the data, or pass a string",
        ),
        (
            Any,
            {"share": float("inf")},
            "as JSON: share: inf is not a number of JSON; write None, or a string",
        ),
        (Address, {"city": "Graz", "zip": 1}, "zip: would be lost; the type has city"),
        (
            list[Address],
            [{"city": "Graz"}, {"city": "x", "zip": 1}],
            "[1].zip: would be lost; the type has city, code",
        ),
        (Line, Counted("a", of=7), "of: would be lost; the type has sku, count"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_data_of_another_type(kind: Any, value: Any, words: str) -> None:
    """Is refused where it is scheduled, with the place and the value, in one line."""
    with pytest.raises(InvalidPayload) as refused:
        payload(kind).encode(value, "t")
    assert words in str(refused.value)
    assert str(refused.value).startswith("the data for task 't' ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "stored", "words"),
    [
        (Any, b"{", "task_data cannot be read as JSON: "),
        (
            Any,
            b"slotwise/nonesuch/1\nx",
            "task_data needs the codec 'nonesuch'; registered are ",
        ),
        (Any, b"slotwise/json/2\n1", "task_data has version 2, this worker knows 1"),
        (Order, None, "expected Order, got None"),
        (Order, b"7", "expected Order, got 7"),
        (Order, b"{}", "number"),
        (
            Order,
            b'{"number":1,"lines":[{"sku":1}]}',
            "lines[0].sku: expected str, got 1",
        ),
        (datetime, b'"yesterday"', "expected datetime, got 'yesterday'"),
        (Decimal, b'"x"', "expected Decimal, got 'x'"),
        (Colour, b"[]", "expected Colour"),
        (Colour, b"2.0", "expected Colour, got 2.0"),
        (Address, b"[]", "expected Address"),
        (int | None, b'"x"', "expected int, got 'x'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_stored_data_that_is_not_what_the_task_takes(
    kind: Any, stored: bytes | None, words: str
) -> None:
    """Is one kind of error, whatever was wrong with it, in one line."""
    with pytest.raises(InvalidPayload) as refused:
        payload(kind).decode(stored)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_largest() -> None:
    """The limit is included, counts bytes, and one more is told with the cure."""
    assert (
        len(payload(str).encode("x" * (PAYLOAD_LIMIT - 2), "t") or b"")
        == PAYLOAD_LIMIT
    )
    with pytest.raises(
        InvalidPayload,
        match="has 1048577 bytes, at most 1048576 are allowed; store it elsewhere",
    ):
        payload(str).encode("x" * (PAYLOAD_LIMIT - 1), "t")
    assert payload(str).encode("ü", "t") == '"ü"'.encode()


#: Of which type a stored value was nobody could say: refused in either order, whichever a process
#: has met first.
UNTOLD: list[Any] = [
    Line | Order,
    Line | dict[str, int],
    Address | Line,
    str | datetime,
    datetime | str,
    date | datetime,
    str | Decimal,
    UUID | str,
    Colour | str,
    Colour | int,
    str | Colour | None,
    list[str] | list[datetime],
    list[int] | set[int],
    dict[str, str | date],
    Any | datetime,
    Literal["red"] | Colour,
]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (int | float | None, [1, 1.5, None]),
        (datetime | int | bool, [NOON, 1, True]),
        (Line | str | list[Line], [Line("a"), "a", [Line("b")]]),
        (list[int] | list[str], [[1], ["1"], []]),
        (Colour | bool, [Colour.RED, Colour.BLUE, True]),
        (Literal["x"] | datetime, ["x", NOON]),
        (Decimal | float, [Decimal("1.5"), 1.5]),
        (dict[str, int] | dict[str, str] | str, [{"a": 1}, {"a": "1"}, "a"]),
    ],
    ids=str,
)
def test_a_union_gives_back_what_it_was_given(kind: Any, values: list[Any]) -> None:
    """Each value, with its type."""
    one = payload(kind)
    back = [one.decode(one.encode(value, "t")) for value in values]
    assert list(map(repr, back)) == list(map(repr, values))


@pytest.mark.parametrize(
    ("kind", "plain", "words"),
    [
        (Address, {"city": "Graz", "zip": 1}, "zip: would be lost; the type has city"),
        (
            Order,
            {"number": 1, "lines": [{"sku": "a", "cuont": 2}]},
            "lines[0].cuont: would be lost; the type has sku, count",
        ),
    ],
    ids=["TypedDict", "within"],
)
def test_what_is_written_by_hand_is_taken_whole(
    kind: Any, plain: Any, words: str
) -> None:
    """On the command line, too, a key that nobody would ever read is refused."""
    with pytest.raises(InvalidPayload) as refused:
        payload(kind).given(plain, "t")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (complex, "complex is not a type for a payload; use str, int"),
        (dict[int, str], "the keys of a dict are str"),
        (list[Exception], "Exception is not a type for a payload"),
        (Node, "Node contains itself, which only models of pydantic and msgspec may"),
        *[(kind, "a stored one was cannot be told") for kind in UNTOLD],
    ],
    ids=str,
)
def test_a_type_that_no_payload_can_have(kind: Any, words: str) -> None:
    """Is refused when the task is registered, not when it runs."""
    with pytest.raises(InvalidPayload, match=r"^_nothing: ") as refused:
        payload(kind)
    assert words in str(refused.value)


# -- versions and codecs --------------------------------------------------------------------------


def test_older_data_is_upgraded_step_by_step() -> None:
    """Through plain values: the old type need not exist any more."""
    steps = {1: lambda old: {"number": old}, 2: lambda old: {**old, "lines": []}}
    third = payload(Order, payload_version=3, upgrades=steps)
    assert (
        third.decode(b"7")
        == third.decode(b'slotwise/json/2\n{"number":7}')
        == Order(7)
    )
    assert (
        third.encode(Order(7), "t")
        == b'slotwise/json/3\n{"number":7,"lines":[],"due":null}'
    )
    assert third.decode(third.encode(Order(7), "t")) == Order(7)


def test_an_upgrade_that_fails() -> None:
    """Is the data's fault: nothing is tried again."""
    second = payload(
        Order, payload_version=2, upgrades={1: lambda old: old["missing"]}
    )
    with pytest.raises(
        InvalidPayload,
        match="task_data of version 1 cannot be upgraded: KeyError: 'missing'",
    ):
        second.decode(b"{}")


def test_no_data_has_a_version_too() -> None:
    """From the second on: so workers of an older release leave the task to newer ones. Nothing is
    upgraded.
    """
    first = payload(Any)
    second = payload(Any, payload_version=2, upgrades={1: lambda old: old["missing"]})
    third = payload(
        Any,
        payload_version=3,
        upgrades=dict.fromkeys((1, 2), lambda old: old["missing"]),
    )
    assert first.encode(None, "t") is None
    stored = second.encode(None, "t")
    assert stored == b"slotwise/json/2\nnull"
    assert (second.decode(stored), second.decode(None), third.decode(stored)) == (
        None,
        None,
        None,
    )
    with pytest.raises(NewerPayload):
        first.decode(stored)


class Hex:
    """JSON, spelled out."""

    name = "test-hex"

    def encode(self, value: Any, /) -> bytes:
        return JSON.encode(value).hex().encode()

    def decode(self, data: bytes, /) -> Any:
        return JSON.decode(bytes.fromhex(data.decode()))


HEX = Hex()
register_codec(HEX)


def test_another_codec() -> None:
    """Its name goes with the data, so that rows of either kind may wait side by side."""
    spelled = payload(Order, codec="test-hex")
    written = spelled.encode(Order(7), "t")
    assert written is not None
    assert written.startswith(b"slotwise/test-hex/1\n7b22")
    assert spelled.decode(written) == payload(Order).decode(written) == Order(7)
    assert spelled.decode(b'{"number":8}') == Order(8)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({1: 2}, ": dict keys must be strings, got 1; write '1'"),
        (
            {"lines": [{}, {None: 2}]},
            ": lines[1]: dict keys must be strings, got None; write 'None'",
        ),
        ([{True: 1}], ": [0]: dict keys must be strings, got True; write 'True'"),
    ],
    ids=["number", "within", "list"],
)
def test_keys_that_json_would_change(data: Any, words: str) -> None:
    """The handler sees the data that were given, or nobody does; so it is with results."""
    for encode in (lambda: UNTYPED.encode(data, "mail"), lambda: encode_result(data)):
        with pytest.raises(InvalidPayload) as raised:
            encode()
        assert str(raised.value).endswith(words)


class Textual(Hex):
    name = "test-text"

    def encode(self, value: Any, /) -> bytes:
        return "text"  # type: ignore[return-value]


def test_a_codec_that_gives_no_bytes() -> None:
    """Is told as what it is."""
    register_codec(Textual())
    with pytest.raises(
        InvalidPayload,
        match="'t' cannot be written as TEST-TEXT: codec 'test-text' gave a str, expected bytes",
    ):
        payload(Any, codec="test-text").encode(1, "t")


class Unnamed(Hex):
    name = "Not A Name"


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        (Hex(), "'test-hex' is registered already"),
        (Unnamed(), "'Not A Name': 1 to 32 of a-z"),
    ],
)
def test_a_codec_that_cannot_be_registered(codec: Hex, words: str) -> None:
    """A name stands in rows, so it means one thing; to register the same one again is no
    mistake.
    """
    register_codec(HEX)
    with pytest.raises(ConfigurationError, match=words):
        register_codec(codec)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (
            {"payload_version": 0},
            "payload_version is 0; expected a whole number, 1 or more",
        ),
        ({"payload_version": "2"}, "payload_version is '2'"),
        (
            {"payload_version": 3, "upgrades": {2: repr}},
            "upgrades has [2]; for payload_version 3 give: 1, 2",
        ),
        (
            {"upgrades": {1: repr}},
            "upgrades has [1]; for payload_version 1 give: none",
        ),
        ({"upgrades": [repr]}, "expected {1: function from 1 to 2, …}"),
        ({"codec": "pickle"}, "codec is 'pickle'; registered are json"),
        ({"payload_versoin": 2}, "payload_versoin: did you mean payload_version?"),
    ],
    ids=str,
)
def test_a_declaration_that_cannot_work(declared: dict[str, Any], words: str) -> None:
    """Is refused at registration with the cure."""
    with pytest.raises(InvalidJob) as refused:
        payload(Any, **declared)
    assert words in str(refused.value)


# -- where the type stands ------------------------------------------------------------------------

P = TypeVar("P")


class InBrackets(OneTimeTask[Order]):
    name = "t"

    def execute(self, ctx: TaskContext[Order]) -> None: ...


class Base(OneTimeTask[P], Generic[P]):
    name = "t"

    def execute(self, ctx: TaskContext[P]) -> None: ...


class Middle(Base[list[P]]):
    pass


class OfABase(Middle[int]):
    pass


class Below(InBrackets):
    pass


class Bare(OneTimeTask):
    name = "t"

    def execute(self, ctx: TaskContext[Order]) -> None: ...


class Quoted(OneTimeTask["Order"]):
    name = "t"

    def execute(self, ctx: JobContext) -> None: ...


class Said(OneTimeTask):
    name = "t"
    payload = Order

    def execute(self, ctx: JobContext) -> None: ...


@task(name="t")
def function(ctx: TaskContext[Order]) -> None: ...


@task(name="t")
async def coroutine(ctx: TaskContext[Order]) -> None: ...


@pytest.mark.parametrize(
    ("subject", "kind"),
    [
        (InBrackets, Order),
        (InBrackets(), Order),
        (Below, Order),
        (Bare, Order),
        (Quoted, Order),
        (Said, Order),
        (Base, Any),
        (function, Order),
        (coroutine, Order),
        (task(name="t")(_nothing), Any),
        (task(name="t")(lambda ctx: None), Any),
    ],
)
def test_where_the_type_stands(subject: Any, kind: Any) -> None:
    """In the brackets of the class or of the context, or in ``payload``; else the data is what
    JSON can say.
    """
    assert define(subject).payload.kind == kind


def test_a_type_through_generic_bases() -> None:
    """As a type checker sees it, nearly."""
    assert define(Below).payload.shape is shape_of(Order)
    assert define(OfABase).payload.kind == list[int]


def test_an_annotation_that_cannot_be_resolved() -> None:
    """Is no reason to guess: the type can be named."""

    class Local:
        pass

    def handler(ctx: TaskContext[Local]) -> None: ...

    with pytest.raises(
        InvalidJob,
        match="name 'Local' is not defined; name the type of the data: payload=…",
    ):
        define(task(name="t")(handler))
