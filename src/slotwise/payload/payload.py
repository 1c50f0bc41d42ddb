"""What a task's data is: its type, its codec, its version, and how older versions become the newest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slotwise.errors import InvalidPayload
from slotwise.payload.codecs import JSON, Codec, codec_named, codec_names
from slotwise.payload.converters import ANYTHING, Misfit, Shape
from slotwise.payload.plain import unwritable, whole

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

    def encode(self, data: Any, name: str) -> bytes | None:
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

    def _upgraded(self, plain: Any, version: int) -> Any:
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

    def typed(self, plain: Any) -> Any:
        """Plain values of this version as the task's type. Raises InvalidPayload."""
        try:
            return self.shape.read(plain)
        except Misfit as misfit:
            raise InvalidPayload(f"task_data is not what the task takes: {misfit}") from None
        except Exception as error:  # a model's own validation may raise anything
            raise InvalidPayload(f"task_data is not what the task takes: {type(error).__name__}: {error}") from error

    def given(self, plain: Any, name: str) -> Any:
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
