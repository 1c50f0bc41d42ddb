"""A task's data: its type, its codec, its version, the upgrades of older versions, and the plain values in between."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from slotwise.errors import ConfigurationError, InvalidPayload
from slotwise.payload.converters import ANYTHING, Misfit, Shape, member

T = TypeVar("T")

_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,31}")


_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)
_dumps_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


#: A value and its depth to pieces of JSON.
Writer: TypeAlias = Callable[[object, int], Iterable[str]]


def _writer() -> Writer:
    """What ``json`` makes anew for each value, made once: making it takes longer than writing a small payload.

    It does not look for a value that contains itself, and ends in a RecursionError there.
    """
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:
        return lambda value, _: (_encoder.encode(value),)
    words = json.encoder.encode_basestring
    made: Writer = make(None, _encoder.default, words, None, ":", ",", False, False, False)
    return made


_write = _writer()


class Codec(Protocol):
    """Turns plain values (None, bool, int, float, str, list, dict with text keys) into bytes and back.

    Whoever can write to the table feeds ``decode``: it must never run what it reads, as pickle does.
    """

    @property
    def name(self) -> str:
        """1 to 32 of ``a-z0-9.+-``; it is stored with each payload."""

    def encode(self, value: object, /) -> bytes:
        """Raises ValueError or TypeError for what it cannot say."""

    def decode(self, data: bytes, /) -> Any:
        """Raises anything for bytes that it cannot read."""


_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class JsonCodec:
    """JSON in UTF-8, without NaN and infinities: what every other program can write and read."""

    name = "json"

    def encode(self, value: object, /) -> bytes:
        try:
            return "".join(_write(value, 0)).encode()
        except UnicodeEncodeError:  # half a surrogate pair, as in names of files: UTF-8 has none, JSON's escapes do
            return _dumps_ascii(value).encode()
        except RecursionError:
            return _encoder.encode(value).encode()  # says whether it contains itself, or is deep

    def decode(self, data: bytes, /) -> Any:
        """As ``json.loads``, which takes five times as long to get to its scanner with a small payload."""
        try:
            text = data.decode()
            value, end = _scan(text, 0)
            if end == len(text):
                return value
        except (UnicodeDecodeError, StopIteration, json.JSONDecodeError):
            pass  # white space around it, another encoding, or no JSON: json.loads tells
        return json.loads(data)


JSON = JsonCodec()
_codecs: dict[str, Codec] = {JSON.name: JSON}


def register_codec(codec: Codec) -> None:
    """Make a codec known under its name, in every process that schedules or runs tasks with it.

    Raises ConfigurationError for a name that is taken, or cannot be one.
    """
    name = getattr(codec, "name", None)
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigurationError(f"codec name {name!r}: 1 to 32 of a-z, 0-9, '.', '+' and '-', for instance 'msgpack'")
    if _codecs.setdefault(name, codec) is not codec:
        raise ConfigurationError(f"codec {name!r} is registered already; choose another name")


def codec_named(name: str) -> Codec | None:
    """The codec that is registered under ``name``."""
    return _codecs.get(name)


def codec_names() -> list[str]:
    """What is registered, for messages."""
    return sorted(_codecs)


#: What lies deeper contains itself, or is deep.
_DEEPEST = 100


def whole(given: T, again: object) -> T:
    """As it is, if ``again``, written of what was read of it, has all its keys; else raise Misfit."""
    place: Any
    if isinstance(given, dict) and isinstance(again, dict):
        if more := sorted(given.keys() - again.keys()):
            raise Misfit("would be lost: the task takes nothing of this name", f".{more[0]}")
        for place, each in given.items():
            member(partial(whole, again=again[place]), each, place)
    elif isinstance(given, list) and isinstance(again, list):
        for place, (one, other) in enumerate(zip(given, again, strict=False)):
            try:
                whole(one, other)
            except Misfit as misfit:
                raise misfit.within(f"[{place}]") from None
    return given


def unwritable(plain: object) -> Misfit | None:
    """The first value that JSON cannot say, with its place and the cure; None if there is none."""
    try:
        _written(plain, 0)
    except Misfit as misfit:
        return misfit
    return None


def _written(value: object, depth: int) -> None:
    place: Any
    if depth == _DEEPEST or value is None or isinstance(value, str | int):
        return
    if isinstance(value, dict):
        for place, each in value.items():
            member(lambda one: _written(one, depth + 1), each, place)
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            try:
                _written(each, depth + 1)
            except Misfit as misfit:
                raise misfit.within(f"[{place}]") from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Misfit(f"{value!r} is no number of JSON; write None, or a text")
    else:
        raise Misfit(
            f"{value!r:.80} is a {type(value).__name__}, for which JSON has no word; declare the type of the data, or "
            "write a text of it"
        )


#: The largest payload; whatever is larger belongs into a table or an object store, with its key as the payload.
PAYLOAD_LIMIT = 1_048_576

# Bare JSON of the first version stands alone, so that any program can write it; all else says what it is.
_MAGIC = b"slotwise/"
_HEADER = re.compile(rb"slotwise/([a-z0-9.+-]+)/([0-9]{1,9})\n")

Upgrade = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """How a task's data is written and read; without a type, it is whatever the codec can say."""

    kind: Any = Any
    shape: Shape = ANYTHING
    codec: Codec = JSON
    version: int = 1
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)

    def encode(self, data: object, name: str) -> bytes | None:
        """The bytes to store; None for no data. Raises InvalidPayload with the reason."""
        try:
            plain = self.shape.write(data)
            if plain is None:
                return None
            body = self.codec.encode(plain)
        except Misfit as misfit:
            raise InvalidPayload(f"the data for task {name!r} is not what it takes: {misfit}") from None
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            said = unwritable(plain) if self.codec is JSON and not isinstance(error, RecursionError) else None
            raise InvalidPayload(
                f"the data for task {name!r} cannot be written as {self.codec.name.upper()}: {said or error}"
            ) from None
        if not isinstance(body, bytes):
            raise InvalidPayload(
                f"the data for task {name!r}: codec {self.codec.name!r} gave a {type(body).__name__}, expected bytes"
            )
        if len(body) > PAYLOAD_LIMIT:
            raise InvalidPayload(
                f"the data for task {name!r} has {len(body)} bytes, at most {PAYLOAD_LIMIT} are allowed; store it "
                "elsewhere and schedule its key"
            )
        if self.codec is JSON and self.version == 1:
            return body
        return f"slotwise/{self.codec.name}/{self.version}\n".encode() + body

    def decode(self, stored: bytes | None) -> Any:
        """The data, brought to this version. Raises InvalidPayload for what no further attempt can mend."""
        if stored is None:
            return self.typed(None)
        return self.typed(self._upgraded(*_decoded(stored)))

    def _upgraded(self, plain: object, version: int) -> object:
        if version > self.version:
            raise InvalidPayload(
                f"task_data has version {version}, this worker knows {self.version}; deploy workers before those who "
                "schedule, then re-drive the task"
            )
        for older in range(version, self.version):
            try:
                plain = self.upgrades[older](plain)
            except Exception as error:
                raise InvalidPayload(
                    f"task_data of version {older} cannot be upgraded: {type(error).__name__}: {error}"
                ) from error
        return plain

    def typed(self, plain: object) -> Any:
        """Plain values of this version as the task's type. Raises InvalidPayload."""
        try:
            return self.shape.read(plain)
        except Misfit as misfit:
            raise InvalidPayload(f"task_data is not what the task takes: {misfit}") from None
        except Exception as error:  # a model's own validation may raise anything
            raise InvalidPayload(f"task_data is not what the task takes: {type(error).__name__}: {error}") from error

    def given(self, plain: object, name: str) -> Any:
        """As ``typed``, of what somebody writes by hand. InvalidPayload: also for keys that would be left out."""
        data = self.typed(plain)
        try:
            whole(plain, self.shape.write(data))
        except Misfit as misfit:
            raise InvalidPayload(f"the data for task {name!r} is not what it takes: {misfit}") from None
        return data


#: For jobs, and for tasks of which nothing else is known: JSON as it is.
UNTYPED = Payload()


def plain(stored: bytes | None) -> Any:
    """The plain values that are stored, of whichever version. Raises InvalidPayload."""
    return None if stored is None else _decoded(stored)[0]


def _decoded(stored: bytes) -> tuple[Any, int]:
    """Plain values and their version."""
    name, version, body = _taken_apart(stored)
    codec = codec_named(name)
    if codec is None:
        raise InvalidPayload(f"task_data needs the codec {name!r}; registered are {', '.join(codec_names())}")
    try:
        return codec.decode(body), version
    except Exception as error:  # a codec may be anybody's
        raise InvalidPayload(f"task_data cannot be read as {name.upper()}: {error}") from None


def _taken_apart(stored: bytes) -> tuple[str, int, bytes]:
    """Codec, version and body."""
    header = _HEADER.match(stored) if stored.startswith(_MAGIC) else None
    if header is None:
        return JSON.name, 1, stored
    return header[1].decode(), int(header[2]), stored[header.end() :]
