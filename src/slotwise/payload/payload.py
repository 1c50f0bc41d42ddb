"""A task's data: its type, its codec, its version, the upgrades of older versions, and the plain
values in between.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from slotwise.errors import ConfigurationError, InvalidPayload, NewerPayload

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K")

#: Converts a typed value to a plain one if the flag is set, else a plain one to a typed one;
#: raises Misfit.
Convert: TypeAlias = Callable[[object, bool], object]


@dataclass(frozen=True, slots=True)
class Shape:
    """The converter of a type."""

    convert: Convert
    #: The types of the plain values.
    stored: frozenset[type] = frozenset()
    #: Typed and plain values are the same.
    is_plain: bool = False
    #: The plain values, if there are only a few.
    few: tuple[object, ...] | None = None
    #: Keys whose values tell plain values apart.
    tags: Mapping[str, frozenset[object]] = field(default_factory=dict)

    def may_be_taken_for(self, other: Shape) -> bool:
        """Return whether a plain value of one may be read by the other as a different typed
        value.
        """
        if (self.is_plain and other.is_plain) or not self.stored & other.stored:
            return False
        if self.few is not None:
            return any(other.reads(value) for value in self.few)
        if other.few is not None:
            return other.may_be_taken_for(self)
        return not any(
            self.tags[key].isdisjoint(other.tags[key])
            for key in self.tags.keys() & other.tags.keys()
        )

    def reads(self, value: object) -> bool:
        """Return whether this plain value is one of the type."""
        try:
            self.convert(value, False)
        except Misfit:
            return False
        return True


class Misfit(ValueError):
    """A value of the wrong type, with its path within the payload."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path.lstrip('.')}: {problem}" if path else problem)
        self.problem = problem
        self.path = path

    def within(self, place: str | int) -> Misfit:
        return Misfit(
            self.problem,
            f"[{place}]{self.path}" if isinstance(place, int) else f".{place}{self.path}",
        )


def member(convert: Callable[[object, K], R], value: object, place: str | int, how: K) -> R:
    """Convert what stands at a place of a container: under a name, or at an index."""
    try:
        return convert(value, how)
    except Misfit as misfit:
        raise misfit.within(place) from None


def members(value: object) -> Iterable[tuple[str | int, object]]:
    """Return the members of a plain container with their places."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def text_keyed(value: object, writing: bool) -> object:
    """Return the value. Raise Misfit for a key to write that is no string: JSON would silently
    convert it.
    """
    for place, each in members(value) if writing else ():
        if not isinstance(place, str) and isinstance(value, dict):
            raise Misfit(
                f"dict keys must be strings, got {place!r:.80}; write {str(place)!r:.80}"
            )
        if isinstance(each, _CONTAINERS):
            member(text_keyed, each, place, writing)
    return value


_CONTAINERS = (dict, list, tuple)
#: The types that JSON distinguishes.
PLAIN_TYPES = frozenset({type(None), bool, int, float, str, list, dict})
#: Any value that the codec can encode.
ANYTHING = Shape(text_keyed, PLAIN_TYPES, is_plain=True)


_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,31}")


_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)
_dumps_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


#: A value and its depth to pieces of JSON.
Writer: TypeAlias = Callable[[object, int], Iterable[str]]


def _writer() -> Writer:
    """Return the C encoder of ``json``, which JSONEncoder creates for each value; it detects no
    circular values.
    """
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:
        return lambda value, _: (_encoder.encode(value),)
    words = json.encoder.encode_basestring
    made: Writer = make(None, _encoder.default, words, None, ":", ",", False, False, False)
    return made


_write = _writer()


class Codec(Protocol):
    """A codec: plain values (None, bool, int, float, str, list, dict with string keys) to bytes
    and back.

    Other programs that can write to the table feed ``decode``, so it must never execute its input,
    as pickle does.
    """

    @property
    def name(self) -> str:
        """The name, 1 to 32 of ``a-z0-9.+-``; it is stored with each payload."""

    def encode(self, value: object, /) -> bytes:
        """Return the bytes. Raise ValueError or TypeError for a value that cannot be encoded."""

    def decode(self, data: bytes, /) -> object:
        """Return the value. May raise any exception for invalid bytes."""


_scan: Callable[[str, int], tuple[object, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class JsonCodec:
    """JSON in UTF-8, without NaN and infinities, so that every program can read and write it."""

    name = "json"

    def encode(self, value: object, /) -> bytes:
        try:
            return "".join(_write(value, 0)).encode()
        except (
            UnicodeEncodeError
        ):  # lone surrogates, as in file names: UTF-8 has none, JSON's escapes do
            return _dumps_ascii(value).encode()
        except RecursionError:
            return _encoder.encode(
                value
            ).encode()  # reports whether it contains itself, or is too deep

    def decode(self, data: bytes, /) -> object:
        """Decode like ``json.loads``, which has five times the overhead with a small payload."""
        try:
            text = data.decode()
            value, end = _scan(text, 0)
            if end == len(text):
                return value
        except (UnicodeDecodeError, StopIteration, json.JSONDecodeError):
            pass  # white space around it, another encoding, or no JSON: left to json.loads
        return json.loads(data)


JSON = JsonCodec()
#: The registered codecs by name.
CODECS: dict[str, Codec] = {JSON.name: JSON}


def register_codec(codec: Codec) -> None:
    """Register a codec under its name; do so in every process that schedules or runs tasks with
    it.

    Raise ConfigurationError for a name that is taken or invalid.
    """
    name = getattr(codec, "name", None)
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"codec name {name!r}: 1 to 32 of a-z, 0-9, '.', '+' and '-', for instance 'msgpack'"
        )
    if CODECS.setdefault(name, codec) is not codec:
        raise ConfigurationError(
            f"codec {name!r} is registered already; choose another name"
        )


#: A value with deeper nesting contains itself, or is too deep.
_DEEPEST = 100


def whole(given: T, again: object) -> T:
    """Return ``given``. Raise Misfit if ``again``, its round trip through the type, lacks one of
    its keys.
    """
    if (
        isinstance(given, dict)
        and isinstance(again, dict)
        and (more := sorted(given.keys() - again.keys()))
    ):
        raise Misfit("would be lost: the task's type has no such name", f".{more[0]}")
    others = dict(members(again))
    for place, each in members(given):
        if place in others:
            member(whole, each, place, others[place])
    return given


def unwritable(plain: object, depth: int = 0) -> Misfit | None:
    """Return the first value that JSON cannot express, with its path and the cure, or None."""
    if depth == _DEEPEST or plain is None or isinstance(plain, str | int):
        return None
    if isinstance(plain, dict | list | tuple):
        found = ((place, unwritable(each, depth + 1)) for place, each in members(plain))
        return next(
            (misfit.within(place) for place, misfit in found if misfit is not None), None
        )
    if not isinstance(plain, float):
        return Misfit(
            f"{plain!r:.80} is of type {type(plain).__name__}, which JSON cannot "
            "express; declare the type of the "
            "data, or pass a string"
        )
    return (
        None
        if math.isfinite(plain)
        else Misfit(f"{plain!r} is not a number of JSON; write None, or a string")
    )


#: The largest payload, in bytes; store a larger one elsewhere, with its key as the payload.
PAYLOAD_LIMIT = 1_048_576

# JSON of the first version has no header, so that any program can write it; all else has one.
_MAGIC = b"slotwise/"
_HEADER = re.compile(rb"slotwise/([a-z0-9.+-]+)/([0-9]{1,9})\n")

Upgrade: TypeAlias = Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """How a task's data is written and read; without a type, any value that the codec can
    encode.
    """

    kind: object = Any
    shape: Shape = ANYTHING
    codec: Codec = JSON
    version: int = 1
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)

    def encode(self, data: object, name: str) -> bytes | None:
        """Return the bytes to store; None for no data of the first version. Raise InvalidPayload
        with the reason.
        """
        try:
            plain = self.shape.convert(data, True)
            if plain is None and self.version == 1:
                return None
            body = self.codec.encode(plain)
        except Misfit as misfit:
            raise InvalidPayload(
                f"the data for task {name!r} does not fit its type: {misfit}"
            ) from None
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            said = (
                unwritable(plain)
                if self.codec is JSON and not isinstance(error, RecursionError)
                else None
            )
            raise InvalidPayload(
                f"the data for task {name!r} cannot be written as "
                f"{self.codec.name.upper()}: {said or error}"
            ) from None
        if not isinstance(body, bytes):
            raise InvalidPayload(
                f"the data for task {name!r}: codec {self.codec.name!r} gave a "
                f"{type(body).__name__}, expected bytes"
            )
        if len(body) > PAYLOAD_LIMIT:
            raise InvalidPayload(
                f"the data for task {name!r} has {len(body)} bytes, at most "
                f"{PAYLOAD_LIMIT} are allowed; store it "
                "elsewhere and schedule its key"
            )
        if self.codec is JSON and self.version == 1:
            return body
        return f"slotwise/{self.codec.name}/{self.version}\n".encode() + body

    def decode(self, stored: bytes | None) -> object:
        """Return the data, upgraded to this version. Raise NewerPayload, or InvalidPayload for
        unreadable data.
        """
        return self.typed(None if stored is None else self._upgraded(*_decoded(stored)))

    def newer(self, stored: bytes | None) -> str | None:
        """Return why only a newer release can read this, by its header alone; None: this one can,
        or none can.
        """
        try:
            self._refuse_newer(1 if stored is None else _header(stored)[1])
        except NewerPayload as error:
            return str(error)
        return None

    def _refuse_newer(self, version: int) -> None:
        if version > self.version:
            raise NewerPayload(
                f"task_data has version {version}, this worker knows {self.version}"
            )

    def _upgraded(self, plain: object, version: int) -> object:
        self._refuse_newer(version)
        for older in (
            range(version, self.version) if plain is not None else ()
        ):  # no data, in any version
            try:
                plain = self.upgrades[older](plain)
            except Exception as error:
                raise InvalidPayload(
                    f"task_data of version {older} cannot be upgraded: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return plain

    def typed(self, plain: object) -> object:
        """Convert plain values of this version to the task's type. Raise InvalidPayload."""
        try:
            return self.shape.convert(plain, False)
        except Misfit as misfit:
            raise InvalidPayload(
                f"task_data does not fit the task's type: {misfit}"
            ) from None
        except Exception as error:  # a model's own validation may raise any exception
            raise InvalidPayload(
                f"task_data does not fit the task's type: {type(error).__name__}: {error}"
            ) from error

    def given(self, plain: object, name: str) -> object:
        """As ``typed``, for data typed by hand: raise InvalidPayload for unknown keys as well."""
        data = self.typed(plain)
        try:
            whole(plain, self.shape.convert(data, True))
        except Misfit as misfit:
            raise InvalidPayload(
                f"the data for task {name!r} does not fit its type: {misfit}"
            ) from None
        return data


#: The payload of jobs and of unknown tasks: untyped JSON.
UNTYPED = Payload()


def plain(stored: bytes | None) -> object:
    """Return the stored plain values, of any version. Raise InvalidPayload."""
    return None if stored is None else _decoded(stored)[0]


def _header(stored: bytes) -> tuple[Codec, int, int]:
    """Return the codec, the version, and where the data begin. Raise NewerPayload for an unknown
    codec.
    """
    header = _HEADER.match(stored) if stored.startswith(_MAGIC) else None
    name = header[1].decode() if header else JSON.name
    if (codec := CODECS.get(name)) is None:
        raise NewerPayload(
            f"task_data needs the codec {name!r}; registered are {', '.join(sorted(CODECS))}"
        )
    return (codec, int(header[2]), header.end()) if header else (codec, 1, 0)


def _decoded(stored: bytes) -> tuple[object, int]:
    codec, version, begin = _header(stored)
    try:
        return codec.decode(stored[begin:]), version
    except Exception as error:  # a user's codec may raise any exception
        raise InvalidPayload(
            f"task_data cannot be read as {codec.name.upper()}: {error}"
        ) from None
