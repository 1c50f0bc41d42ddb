"""How the plain values of a payload become bytes, and bytes plain values again: JSON, or whatever is registered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from slotwise.errors import ConfigurationError

_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,31}")


_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)
_dumps_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _writer() -> Callable[[Any, int], Iterable[str]]:
    """What ``json`` makes anew for each value, made once: making it takes longer than writing a small payload.

    It does not look for a value that contains itself, and ends in a RecursionError there.
    """
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:
        return lambda value, _: (_encoder.encode(value),)
    words = json.encoder.encode_basestring
    made: Callable[[Any, int], Iterable[str]] = make(None, _encoder.default, words, None, ":", ",", False, False, False)
    return made


_write = _writer()


class Codec(Protocol):
    """Turns plain values (None, bool, int, float, str, list, dict with text keys) into bytes and back.

    Whoever can write to the table feeds ``decode``: it must never run what it reads, as pickle does.
    """

    @property
    def name(self) -> str:
        """1 to 32 of ``a-z0-9.+-``; it is stored with each payload."""

    def encode(self, value: Any, /) -> bytes:
        """Raises ValueError or TypeError for what it cannot say."""

    def decode(self, data: bytes, /) -> Any:
        """Raises anything for bytes that it cannot read."""


_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class JsonCodec:
    """JSON in UTF-8, without NaN and infinities: what every other program can write and read."""

    name = "json"

    def encode(self, value: Any, /) -> bytes:
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
