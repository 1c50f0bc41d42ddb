"""Codecs: plain values to bytes and back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from slotwise.errors import ConfigurationError


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


#: A value and its depth to pieces of JSON.
Writer: TypeAlias = Callable[[object, int], Iterable[str]]

_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)
_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _writer() -> Writer:
    """Return the C encoder of ``json``, which JSONEncoder creates for each value; it detects no
    circular values.
    """
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:
        return lambda value, _: (_encoder.encode(value),)
    words = json.encoder.encode_basestring
    made: Writer = make(
        None, _encoder.default, words, None, ":", ",", False, False, False
    )
    return made


_write = _writer()
_decoder = json.JSONDecoder()
_scan: Callable[[str, int], tuple[object, int]] = _decoder.scan_once  # type: ignore[attr-defined]


class JsonCodec:
    """JSON in UTF-8, without NaN and infinities, so that every program can read and write it."""

    name = "json"

    def encode(self, value: object, /) -> bytes:
        try:
            return "".join(_write(value, 0)).encode()
        except UnicodeEncodeError:
            # lone surrogates, as in file names: UTF-8 has none, JSON's escapes do
            return _ascii.encode(value).encode()

    def decode(self, data: bytes, /) -> object:
        text = data.decode()
        try:
            # A tenth of the time that ``decode`` takes for a short text, but no white space.
            value, end = _scan(text, 0)
        except StopIteration:
            return _decoder.decode(text)
        return value if end == len(text) else _decoder.decode(text)


JSON = JsonCodec()
#: The registered codecs by name.
CODECS: dict[str, Codec] = {JSON.name: JSON}


def register_codec(codec: Codec) -> None:
    """Register a codec under its name; do so in every process that schedules or runs tasks with
    it.

    Raise ConfigurationError for a name that is taken or invalid.
    """
    name = getattr(codec, "name", None)
    if not isinstance(name, str) or not re.fullmatch(
        r"[a-z0-9][a-z0-9.+-]{0,31}", name
    ):
        raise ConfigurationError(
            f"codec name {name!r}: 1 to 32 of a-z, 0-9, '.', '+' and '-', for instance 'msgpack'"
        )
    if CODECS.setdefault(name, codec) is not codec:
        raise ConfigurationError(
            f"codec {name!r} is registered already; choose another name"
        )
