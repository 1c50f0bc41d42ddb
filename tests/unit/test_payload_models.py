"""Models of pydantic and msgspec as payloads, where these libraries are installed."""

from __future__ import annotations

import json
from datetime import date
from typing import Any, Literal
from uuid import UUID

import pytest
from tests.kit.payloads import Payload, shape_of

from slotwise import InvalidPayload

# With the oldest typing-extensions that slotwise allows, pydantic, which needs a newer one, cannot
# be imported.
pydantic = pytest.importorskip("pydantic", exc_type=ImportError)
msgspec = pytest.importorskip("msgspec")

ID = UUID("12345678-1234-5678-1234-567812345678")
NEW_YEAR = date(2026, 1, 1)


class Person(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    name: str
    born: date


class Renamed(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    model_config = pydantic.ConfigDict(extra="forbid")
    number: int = pydantic.Field(alias="no")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.number


class Point(msgspec.Struct):  # type: ignore[name-defined, misc]
    x: int
    at: UUID


class Employee(Person):
    firm: str


class Point3(Point):
    z: int


class Cat(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    kind: Literal["cat"] = "cat"
    name: str


class Dog(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    kind: Literal["dog"] = "dog"
    name: str


class Up(msgspec.Struct, tag="up"):  # type: ignore[name-defined, misc, call-arg]
    by: int


class Down(msgspec.Struct, tag="down"):  # type: ignore[name-defined, misc, call-arg]
    by: int


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Cat | Dog, Dog(name="Rex")), (Up | Down | None, Down(by=1))],
    ids=["pydantic", "msgspec"],
)
def test_tags_tell_models_apart(kind: Any, value: Any) -> None:
    """Each comes back as what it was."""
    one = payload(kind)
    assert one.decode(one.encode(value, "t")) == value


@pytest.mark.parametrize(
    "kind",
    [Person | Renamed, Point | Up, Person | Point, Cat | dict[str, str]],
    ids=str,
)
def test_without_tags_they_are_refused(kind: Any) -> None:
    """Which of them a stored one was could not be told."""
    with pytest.raises(InvalidPayload, match="a stored one was cannot be told"):
        payload(kind)


def payload(kind: Any) -> Payload:
    return Payload(kind=kind, shape=shape_of(kind))


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (
            Person,
            Person(name="Ann", born=NEW_YEAR),
            {"name": "Ann", "born": "2026-01-01"},
        ),
        (Renamed, Renamed(no=7), {"no": 7}),
        (Point, Point(1, ID), {"x": 1, "at": str(ID)}),
        (
            list[Person | None],
            [None, Person(name="A", born=NEW_YEAR)],
            [None, {"name": "A", "born": "2026-01-01"}],
        ),
    ],
    ids=["pydantic", "aliases and computed fields", "msgspec", "within"],
)
def test_a_model_comes_back_as_it_went(kind: Any, value: Any, stored: Any) -> None:
    """As JSON that any other program can read."""
    one = payload(kind)
    written = one.encode(value, "t")
    assert written is not None
    assert json.loads(written) == stored
    assert one.decode(written) == value


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Person, {"name": "Ann"}, "expected Person"),
        (
            Person,
            Employee(name="Ann", born=NEW_YEAR, firm="x"),
            "firm: would be lost; the type has name, born",
        ),
        (Point, Point3(1, ID, 2), "z: would be lost; the type has x, at"),
        (Point, 1, "expected Point, got 1"),
        (
            Person,
            Person.model_construct(name=1, born=NEW_YEAR),
            "1 validation error for Person name Input should be",
        ),
        (list[Point], [Point("one", ID)], "[0]: Expected `int`, got `str` - at `$.x`"),  # type: ignore[arg-type]
    ],
    ids=[
        "no model",
        "a model with more",
        "a struct with more",
        "no struct",
        "unchecked",
        "a struct of other types",
    ],
)
def test_what_no_worker_could_read(kind: Any, value: Any, words: str) -> None:
    """Is refused where it is scheduled, in one line, though it is an instance of the model."""
    with pytest.raises(InvalidPayload) as refused:
        payload(kind).encode(value, "t")
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "For further information" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "stored", "words"),
    [
        (
            Person,
            b'{"name":1}',
            "task_data does not fit the task's type: 2 validation errors",
        ),
        (Point, b'{"x":"1"}', "Expected `int`"),
    ],
    ids=["pydantic", "msgspec"],
)
def test_stored_data_that_is_no_such_model(
    kind: Any, stored: bytes, words: str
) -> None:
    """Is one kind of error, whatever was wrong with it, in one line."""
    with pytest.raises(InvalidPayload) as refused:
        payload(kind).decode(stored)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
