"""Payloads arrive as they were given, or are rejected with the path before they are stored."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from tests.kit.payloads import Payload, encode_result

from slotwise import InvalidJob, InvalidPayload, JobContext, task
from slotwise.spi import define, register_codec

# With the oldest typing-extensions that slotwise allows, pydantic, which needs a newer one, cannot
# be imported.
pydantic = pytest.importorskip("pydantic", exc_type=ImportError)
msgspec = pytest.importorskip("msgspec")

Model: Any = pydantic.BaseModel
Struct: Any = msgspec.Struct
VIENNA = ZoneInfo("Europe/Vienna")
NEW_YEAR = datetime(2026, 1, 1)  # noqa: DTZ001
#: The second pass of the hour that the end of summer time repeats.
SECOND_PASS = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=VIENNA)


def payload(kind: Any, **declared: Any) -> Payload:
    return define(task(name="t", payload=kind, **declared)(_nothing)).payload


def _nothing(ctx: JobContext) -> None:
    """A handler that no test here runs."""


def shown(value: object) -> str:
    """Return the name of a case, the same in every process."""
    if isinstance(value, type):
        return value.__name__
    is_short = isinstance(value, str | float) and "0x" not in str(value)
    return str(value)[:30] if is_short else type(value).__name__


# -- pydantic -------------------------------------------------------------------------------------


class Pet(Model):
    name: str


class Dog(Pet):
    breed: str


class Puppy(Dog):
    """A subclass without fields of its own."""


class Owner(Model):
    pet: Pet


class Kennel(Model):
    pets: list[Pet]


class Registered(Model):
    pets: dict[str, Pet | None]


class Anything(Model):
    x: Any


class Untyped(Model):
    model_config = pydantic.ConfigDict(extra="allow")


class Excluded(Model):
    a: int
    b: int = pydantic.Field(5, exclude=True)


class Private(Model):
    a: int
    _b: int = pydantic.PrivateAttr(0)


class Secret(Model):
    key: pydantic.SecretStr


class SecretBytes(Model):
    key: pydantic.SecretBytes


class Euros(Model):
    cents: int

    @pydantic.field_validator("cents")
    @classmethod
    def from_euros(cls, value: int) -> int:
        return value * 100


class Initialised(Model):
    count: int

    def model_post_init(self, context: Any) -> None:
        self.count += 1


class Rounded(Model):
    x: float

    @pydantic.field_serializer("x")
    def rounded(self, value: float) -> float:
        return round(value, 1)


class Refusing(Model):
    x: int

    @pydantic.field_serializer("x")
    def refuse(self, value: int) -> int:
        raise ValueError("no such form")


class Base64Out(Model):
    model_config = pydantic.ConfigDict(ser_json_bytes="base64")
    body: bytes


class HexOut(Base64Out):
    model_config = pydantic.ConfigDict(ser_json_bytes="hex")


class Base64Both(Model):
    model_config = pydantic.ConfigDict(
        ser_json_bytes="base64", val_json_bytes="base64"
    )
    body: bytes


class Blob(Model):
    body: bytes


class Smart(Model):
    x: int | float | date | None


class Shares(Model):
    x: float


class Strict(Model):
    model_config = pydantic.ConfigDict(strict=True)
    on: date
    ids: tuple[int, ...]


class Camel(Model):
    model_config = pydantic.ConfigDict(
        alias_generator=str.upper, populate_by_name=True
    )
    first_name: str

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shouted(self) -> str:
        return self.first_name.upper()

    @cached_property
    def length(self) -> int:
        return len(self.first_name)


class TwoNames(Model):
    n: int = pydantic.Field(validation_alias="in", serialization_alias="out")


class Deep(Model):
    n: int = pydantic.Field(validation_alias=pydantic.AliasPath("a", "n"))


class Choices(Model):
    n: int = pydantic.Field(validation_alias=pydantic.AliasChoices("in", "old"))


class OneOfChoices(Model):
    n: int = pydantic.Field(
        validation_alias=pydantic.AliasChoices("old", pydantic.AliasPath("n"))
    )


class ByName(TwoNames):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    n: int = pydantic.Field(validation_alias="in")


class Renaming(TwoNames):
    @pydantic.model_serializer
    def write(self) -> dict[str, int]:
        return {"in": self.n}


class Tree(Model):
    children: list[Tree] = pydantic.Field(default_factory=list)


class Flavours(Model):
    at: datetime
    span: timedelta
    price: Decimal
    id: UUID
    where: Path
    keys: dict[int, str]
    tags: frozenset[str]


class OddlyEqual(Model):
    """Its comparison looks at one field only."""

    id: int
    key: pydantic.SecretStr

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OddlyEqual) and self.id == other.id


def private() -> Private:
    made = Private(a=1)
    made._b = 9
    return made


def itself() -> Any:
    made = Anything(x=None)
    made.x = made
    return made


# -- msgspec --------------------------------------------------------------------------------------


class Point(Struct):
    x: int


class Point3(Point):
    z: int


class Line(Struct):
    end: Point


class Loose(Struct):
    x: Any


class Counters(Struct):
    k: dict[int, int]


class Doubling(Struct):
    n: int

    def __post_init__(self) -> None:
        self.n *= 2


class Tupled(Struct):
    t: tuple[int, ...]
    d: dict[UUID, frozenset[str]]


class Mixed(Struct):
    share: float
    body: bytes
    at: datetime


# -- dataclasses, enums and others ----------------------------------------------------------------


@dataclass
class Late:
    a: int
    c: int = field(init=False, default=0)


def late(value: int) -> Late:
    made = Late(1)
    made.c = value
    return made


@dataclass
class Tripled:
    n: int

    def __post_init__(self) -> None:
        self.n *= 3


@dataclass
class Normalised:
    name: str

    def __post_init__(self) -> None:
        self.name = self.name.strip()


@dataclass
class Tipped:
    total: int
    tip: InitVar[int]

    def __post_init__(self, tip: int) -> None:
        self.total += tip


@dataclass
class TippedByDefault:
    total: int
    tip: InitVar[int] = 5

    def __post_init__(self, tip: int) -> None:
        self.total += tip


@dataclass(init=False)
class OwnInit:
    number: int

    def __init__(self, text: str) -> None:
        self.number = int(text)


@dataclass
class Animal:
    name: str


@dataclass
class Bird(Animal):
    span: int = 1


@dataclass
class Wren(Animal):
    """A subclass without fields of its own."""


@dataclass
class Cage:
    animal: Animal
    extra: Any = None


@dataclass(eq=False, slots=True)
class Incomparable:
    at: datetime
    seen: frozenset[int] = frozenset()


@dataclass
class Measured:
    name: str

    @cached_property
    def length(self) -> int:
        return len(self.name)


class Planet(enum.Enum):
    """As in the documentation of Python."""

    EARTH = (5.976e24, 6.37814e6)
    MARS = (6.421e23, 3.3972e6)


class Lists(enum.Enum):
    A = [1]  # noqa: RUF012 - the point
    B = {"b": [2, (3,)]}  # noqa: RUF012


class Alike(enum.Enum):
    A = (1,)
    B = [1]  # noqa: RUF012


class Objects(enum.Enum):
    A = object()


class Dates(enum.Enum):
    A = date(2026, 1, 1)


class Nan(enum.Enum):
    A = math.nan


class Level(enum.IntEnum):
    LOW = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Word(enum.StrEnum):
    A = "a"


class Pair(NamedTuple):
    x: int
    y: int


class Named(TypedDict):
    name: str


class Text(str):
    __slots__ = ()


class Finer(datetime):
    """As pandas.Timestamp, with more digits than a datetime."""

    def isoformat(self, *args: Any, **kwargs: Any) -> str:
        return "2026-01-01T00:00:00.123456789"


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def circular() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Owner, Owner(pet=Dog(name="a", breed="b")), "pet.breed: would be lost"),
        (
            Owner,
            Owner(pet=Pet.model_construct(name=1)),
            "1 validation error for Owner",
        ),
        (
            Kennel,
            Kennel(pets=[Dog(name="a", breed="b")]),
            "pets[0].breed: would be lost",
        ),
        (
            Registered,
            Registered(pets={"x": None, "y": Dog(name="a", breed="b")}),
            "pets.y.breed: would be lost",
        ),
        (
            Dog,
            Puppy(name="a", breed="b"),
            "a worker would read Dog(name='a', breed='b') instead of P",
        ),
        (
            Anything,
            Anything(x={1, 2}),
            "x: would be changed: a worker would read [1, 2]",
        ),
        (Anything, Anything(x=(1, 2)), "x: would be changed"),
        (Anything, Anything(x=Decimal("1.5")), "x: would be changed"),
        (Anything, Anything(x=NEW_YEAR), "x: would be changed"),
        (Anything, Anything(x=[1, {"a": {3}}]), "x[1].a: would be changed"),
        (
            Anything,
            Anything(x={1: 2}),
            "x[1]: would be changed: a worker would read the key '1'",
        ),
        (Anything, Anything(x=math.nan), "x"),
        (Anything, Anything(x=Pet(name="a")), "x: would be changed"),
        (
            Anything,
            Anything(x=object()),
            "cannot be written as JSON: Unable to serialize",
        ),
        (Anything, itself(), "cannot be written as JSON: Circular reference detected"),
        (Untyped, Untyped(at=NEW_YEAR), "at: would be changed"),
        (
            Excluded,
            Excluded(a=1, b=9),
            "b: would be changed: a worker would read 5 inste",
        ),
        (
            Private,
            private(),
            "_b: would be changed: a worker would read 0 instead of 9",
        ),
        (Secret, Secret(key="s3cr3t"), "key: would be changed"),
        (SecretBytes, SecretBytes(key=b"s3cr3t"), "key: would be changed"),
        (OddlyEqual, OddlyEqual(id=1, key="s3cr3t"), "key: would be changed"),
        (
            Euros,
            Euros(cents=5),
            "cents: would be changed: a worker would read 50000 inst",
        ),
        (Initialised, Initialised(count=1), "count: would be changed"),
        (
            Rounded,
            Rounded(x=1.25),
            "x: would be changed: a worker would read 1.2 instead",
        ),
        (Refusing, Refusing(x=1), "no such form"),
        (Base64Out, Base64Out(body=b"abc"), "body: would be changed"),
        (HexOut, HexOut(body=b"abc"), "body: would be changed"),
        (Blob, Blob(body=b"\xff"), "invalid utf-8"),
        (Shares, Shares(x=math.nan), "x: nan is not a number of JSON"),
        (Shares, Shares(x=-math.inf), "x: -inf is not a number of JSON"),
        (list[Secret], [Secret(key="s")], "[0].key: would be changed"),
        (dict[str, Euros], {"a": Euros(cents=1)}, "a.cents: would be changed"),
        (
            Cage,
            Cage(Animal("x"), Pet(name="y")),
            "extra: Pet(name='y') is of type Pet",
        ),
        (Line, Line(Point3(1, 2)), "end.z: would be lost"),
        (
            Loose,
            Loose(object()),
            "cannot be written as JSON: Encoding objects of type",
        ),
        (Loose, Loose({1, 2}), "x: would be changed"),
        (Loose, Loose(NEW_YEAR), "x: would be changed"),
        (Loose, Loose(math.nan), "x: nan is not a number of JSON"),
        (
            Doubling,
            Doubling(2),
            "n: would be changed: a worker would read 8 instead of 4",
        ),
        (Late, late(7), "c: would be changed: a worker would read 0 instead of 7"),
        (Tripled, Tripled(1), "n: would be changed"),
        (TippedByDefault, TippedByDefault(1, 2), "total: would be changed"),
        (Cage, Cage(Bird("x")), "animal.span: would be lost"),
        (Cage, Cage(Wren("x")), "animal: would be changed"),
        (
            list[Animal],
            [Wren("x")],
            "[0]: would be changed: a worker would read Animal(",
        ),
        (
            Cage,
            Cage(Animal("x"), NEW_YEAR),
            "extra: datetime.datetime(2026, 1, 1, 0, 0) is",
        ),
        (Named, {"name": "x", "more": 1}, "more: would be lost; the type has name"),
        (Any, (1, 2), "(1, 2) is of type tuple, which comes back as a list"),
        (
            Any,
            {"a": [Pair(1, 2)]},
            "a[0]: Pair(x=1, y=2) is of type Pair, which comes",
        ),
        (Any, {"a": {1: 2}}, "a: dict keys must be strings, got 1"),
        (Any, [complex(1)], "[0]: (1+0j) is of type complex"),
        (Any, Level, "<enum 'Level'> is of type EnumType"),
        (Any, MappingProxyType({}), "is of type mappingproxy"),
        (list[float], [1.0, math.nan], "[1]: nan is not a number of JSON"),
        (float, math.inf, "inf is not a number of JSON"),
        (int, Decimal(1), "expected int, got Decimal('1')"),
        (Literal[1], True, "expected typing.Literal[1], got True"),
        (Access, Access.READ | Access.WRITE, "expected Access"),
        (datetime, NEW_YEAR.replace(fold=1), "would be changed"),
        (time, time(2, 30, fold=1), "would be changed"),
        (time, time(2, 30, tzinfo=VIENNA), "would be changed"),
        (datetime, Finer(2026, 1, 1), "would be changed"),
        (Any, circular(), "contains itself"),
        (Any, {"a": nested(3_000)}, "is too deep; at most 100 levels"),
        (Any, nested(101), "is too deep; at most 100 levels"),
        (dict[str, Any], {"a": circular()}, "contains itself"),
        (Any, 10**5000, "cannot be written as JSON: Exceeds the limit"),
    ],
    ids=shown,
)
def test_what_would_arrive_changed(kind: Any, value: Any, words: str) -> None:
    """Is rejected before it is stored, in one line, with the path of the difference."""
    with pytest.raises(InvalidPayload) as refused:
        payload(kind).encode(value, "t")
    said = str(refused.value)
    assert words in said
    assert said.startswith("the data for task 't' ")
    assert "\n" not in said
    assert len(said) < 600
    assert "s3cr3t" not in said


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Owner, Owner(pet=Pet(name="a"))),
        (Kennel, Kennel(pets=[])),
        (Anything, Anything(x={"a": [1, 1.5, None, True, "x"]})),
        (Untyped, Untyped(a=1, b=[{"c": None}])),
        (Excluded, Excluded(a=1)),
        (Private, Private(a=1)),
        (Base64Both, Base64Both(body=b"\xff\x00")),
        (Blob, Blob(body=b"abc")),
        (Smart, Smart(x=1)),
        (Smart, Smart(x=1.5)),
        (Smart, Smart(x=date(2026, 1, 1))),
        (Shares, Shares(x=1)),
        (Strict, Strict(on=date(2026, 1, 1), ids=(1, 2))),
        (Camel, Camel(FIRST_NAME="ann")),
        (Tree, Tree(children=[Tree(), Tree(children=[Tree()])])),
        (
            Flavours,
            Flavours(
                at=SECOND_PASS,
                span=timedelta(days=-1, microseconds=3),
                price=Decimal("1.10"),
                id=UUID(int=3),
                where=Path("/x"),
                keys={1: "a"},
                tags=frozenset("ab"),
            ),
        ),
        (OneOfChoices, OneOfChoices(old=3)),
        (ByName, ByName(n=3)),
        (Renaming, Renaming(**{"in": 3})),
        (Line, Line(Point(1))),
        (Loose, Loose([1, {"a": None}])),
        (Counters, Counters({1: 2})),
        (Tupled, Tupled((1, 2), {UUID(int=1): frozenset("a")})),
        (list[Tupled], [Tupled((), {})]),
        (
            Mixed,
            Mixed(1, b"\xff", datetime(2026, 1, 1, tzinfo=UTC)),
        ),  # a float that is 1
        (Late, late(0)),
        (Normalised, Normalised(" x ")),
        (Measured, Measured("x")),
        (Cage, Cage(Animal("x"), {"a": [1]})),
        (Planet, Planet.EARTH),
        (dict[str, Planet], {"here": Planet.MARS}),
        (Lists, Lists.A),
        (list[Lists], [Lists.A, Lists.B]),
        (Level, Level.LOW),
        (Word, Word.A),
        (Literal[Word.A, "b"], Word.A),
        (int, Level.LOW),
        (str, Word.A),
        (str, Text("x")),
        (Any, {"a": Word.A, "b": Level.LOW}),
        (Any, OrderedDict(a=1)),
        (dict[str, int], MappingProxyType({"a": 1})),
        (Mapping[str, int], OrderedDict(b=1, a=2)),
        (tuple[int, int], Pair(1, 2)),
        (Any, "a\ud800b"),
        (Any, 2**70),
        (Any, nested(99)),
        (float, 7),
        (float, -0.0),
        (Decimal, Decimal("NaN")),
        (Decimal, Decimal("-0.00")),
        (list[Decimal], [Decimal("Infinity")]),
        (datetime, SECOND_PASS),
        (datetime, datetime(1890, 1, 1, tzinfo=VIENNA)),
        (time, time(1, 2, tzinfo=UTC)),
        (set[int], {3, 1, 2}),
        (frozenset[tuple[str, int]], frozenset({("a", 1)})),
        (None, None),
        (Pet | None, None),
    ],
    ids=shown,
)
def test_what_arrives_equal(kind: Any, value: Any) -> None:
    """With its type, or the plain type that it equals."""
    one = payload(kind)
    back = one.decode(one.encode(value, "t"))
    if isinstance(value, datetime):
        assert value.astimezone(UTC) == back.astimezone(UTC)  # type: ignore[attr-defined]
    elif isinstance(value, Flavours):
        assert value.at.isoformat() == back.at.isoformat()  # type: ignore[attr-defined]
        at = {"at": NEW_YEAR}
        assert value.model_copy(update=at) == back.model_copy(update=at)  # type: ignore[attr-defined]
    elif isinstance(value, Decimal | float):
        assert repr(value) == repr(back)
    else:
        assert back == value


def test_what_cannot_be_compared_arrives() -> None:
    """A class without comparison is compared by its fields."""
    one = payload(Incomparable)
    given = Incomparable(SECOND_PASS, frozenset({1}))
    back = one.decode(one.encode(given, "t"))
    assert isinstance(back, Incomparable)
    assert dataclasses.astuple(back) == (datetime.fromisoformat(str(SECOND_PASS)), {1})


class UnionOfTexts(Model):
    x: str | datetime


class UnionWithin(Model):
    d: dict[str, list[UUID | str | None]]


class UnionBelow(Model):
    below: UnionWithin


class UnknownName(Model):
    x: Nowhere  # type: ignore[name-defined]  # noqa: F821


class StructOfTexts(Struct):
    x: str | datetime


class Unsupported(Struct):
    x: Point | Line


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            UnionOfTexts,
            "UnionOfTexts: a datetime in str | datetime.datetime would come back as a str",
        ),
        (TwoNames, "TwoNames: the field n is written as out and read as in; give it"),
        (
            list[Deep],
            "Deep: the field n is written as n and read as a path of several",
        ),
        (Choices, "Choices: the field n is written as n and read as in, old; give it"),
        (UnionWithin, "a UUID in "),
        (UnionBelow, "a UUID in "),
        (list[UnionBelow], "a UUID in "),
        (UnknownName, "'Nowhere'"),
        (
            StructOfTexts,
            "StructOfTexts: Type unions may not contain more than one str-like",
        ),
        (Unsupported, "Unsupported: "),
        (
            Tipped,
            "Tipped cannot be made of its fields: missing a required argument: 'tip'",
        ),
        (OwnInit, "OwnInit cannot be made of its fields: "),
        (list[OwnInit | None], "OwnInit cannot be made of its fields: "),
        (Alike, "Alike: Alike.B and Alike.A are the same in JSON"),
        (Objects, "Objects.A cannot be written as JSON: Object of type object is not"),
        (Dates, "Dates.A cannot be written as JSON"),
        (Nan, "Nan.A cannot be written as JSON"),
        (Literal[b"x"], "cannot be written as JSON"),
        (Pair, "Pair is not a type for a payload"),
        (dict[Word, int], "the keys of a dict are str"),
        (Path, "is not a type for a payload"),
        (timedelta, "is not a type for a payload"),
        (bytes, "is not a type for a payload"),
    ],
    ids=shown,
)
def test_a_type_whose_values_cannot_come_back(kind: Any, words: str) -> None:
    """Is rejected when the task is registered."""
    with pytest.raises((InvalidPayload, InvalidJob)) as refused:
        payload(kind)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_sets_are_written_in_one_order() -> None:
    """Equal sets have equal bytes in every process, whatever its hash seed."""
    one = payload(set[str])
    written = one.encode({"b", "c", "a"}, "t")
    assert written == b'["a","b","c"]'


class Lossy:
    """A codec that writes less than it is given."""

    name = "test-lossy"

    def encode(self, value: Any, /) -> bytes:
        return json.dumps({"a": value["a"]}).encode()

    def decode(self, data: bytes, /) -> Any:
        return json.loads(data)


register_codec(Lossy())


@pytest.mark.parametrize("kind", [Any, dict[str, int]], ids=str)
def test_a_codec_that_loses_data(kind: Any) -> None:
    """Is found out before the data is stored."""
    one = payload(kind, codec="test-lossy")
    assert one.decode(one.encode({"a": 1}, "t")) == {"a": 1}
    with pytest.raises(InvalidPayload, match="b: would be lost"):
        one.encode({"a": 1, "b": 2}, "t")


@pytest.mark.parametrize(
    ("result", "stored"),
    [
        ([Animal("x")], [{"name": "x"}]),
        (
            {"at": NEW_YEAR, "sum": Decimal("1.0")},
            {"at": "2026-01-01T00:00:00", "sum": "1.0"},
        ),
        ((1, Pet(name="a")), [1, {"name": "a"}]),
        ({"b", "a"}, ["a", "b"]),
        ([{"p": Planet.EARTH}], [{"p": [5.976e24, 6378140.0]}]),
        (Text("x"), "x"),
        ({Word.A: Level.LOW}, {"a": 1}),
        (Late(1), {"a": 1}),
        (None, None),
    ],
    ids=shown,
)
def test_results_are_written_as_payloads_are(result: Any, stored: Any) -> None:
    """By the types that they turn out to have."""
    assert json.loads(encode_result(result)) == stored


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ([object()], "[0]: <object object at "),
        ({"a": {1: 2}}, "a: dict keys must be strings, got 1"),
        ([math.nan], "[0]: nan is not a number of JSON"),
        (circular(), "contains itself"),
        (nested(3_000), "is too deep"),
        (nested(101), "is too deep; at most 100 levels"),
        (Blob(body=b"\xff"), "invalid utf-8"),
        ([Refusing(x=1)], "no such form"),
    ],
    ids=shown,
)
def test_a_result_that_is_not_kept(result: Any, words: str) -> None:
    """Has one line that says why."""
    with pytest.raises(InvalidPayload, match=r"^the result is not kept: ") as refused:
        encode_result(result)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
