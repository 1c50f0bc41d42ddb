"""A task's data: its type, its codec, its version, and the upgrades of older versions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from slotwise.errors import InvalidPayload, NewerPayload
from slotwise.payload.codecs import CODECS, JSON, Codec
from slotwise.payload.comparison import refuse_changes, refuse_lost_names
from slotwise.payload.shape import ANYTHING, Misfit, Shape

#: The largest payload, in bytes; store a larger one elsewhere, with its key as the payload.
PAYLOAD_LIMIT = 1_048_576

# JSON of the first version has no header, so that any program can write it; all else has one.
_MAGIC = b"slotwise/"
_HEADER = re.compile(rb"slotwise/([a-z0-9.+-]+)/([0-9]{1,9})\n")

Upgrade: TypeAlias = Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """How a task's data is written and read; without a type, any value of JSON."""

    kind: object = Any
    shape: Shape = ANYTHING
    codec: Codec = JSON
    version: int = 1
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)

    def encode(self, data: object, name: str) -> bytes | None:
        """Return the bytes to store; None for no data of the first version. Raise InvalidPayload
        with the reason, also if a worker would read other data than these.
        """
        try:
            body = self._written(data)
        except Misfit as misfit:
            raise InvalidPayload(
                f"the data for task {name!r} {misfit.verdict}: {misfit}"
            ) from None
        except Exception as error:  # a model's own serializer may raise any exception
            raise InvalidPayload(
                f"the data for task {name!r} cannot be written as "
                f"{self.codec.name.upper()}: {one_line(error)}"
            ) from error
        if body is None or len(body) <= PAYLOAD_LIMIT:
            return body
        raise InvalidPayload(
            f"the data for task {name!r} has {len(body)} bytes, at most "
            f"{PAYLOAD_LIMIT} are allowed; store it elsewhere and schedule its key"
        )

    def _written(self, data: object) -> bytes | None:
        plain = self.shape.convert(data, True)
        body = self.codec.encode(plain)
        if not isinstance(body, bytes):
            raise TypeError(
                f"codec {self.codec.name!r} gave a {type(body).__name__}, expected bytes"
            )
        if self.codec is not JSON:
            refuse_changes(plain, self.codec.decode(body))
        if plain is None and self.version == 1:
            return None
        if self.codec is JSON and self.version == 1:
            return body
        return f"slotwise/{self.codec.name}/{self.version}\n".encode() + body

    def decode(self, stored: bytes | None) -> object:
        """Return the data, upgraded to this version. Raise NewerPayload, or InvalidPayload for
        unreadable data.
        """
        if stored is None:
            return self.typed(None)
        plain, version = _decoded(stored)
        if version != self.version:
            plain = self._upgraded(plain, version)
        return self.typed(plain)

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
        if plain is None:  # no data, in any version
            return None
        for older in range(version, self.version):
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
            refuse_lost_names(plain, self.shape.convert(data, True))
        except Misfit as misfit:
            raise InvalidPayload(
                f"the data for task {name!r} does not fit its type: {misfit}"
            ) from None
        return data


#: The payload of jobs and of unknown tasks: untyped JSON.
UNTYPED = Payload()


def one_line(error: BaseException) -> str:
    """Return the message of an error; the models' libraries write several lines."""
    if isinstance(error, RecursionError):
        return "it contains itself or is too deep"
    lines = str(error).splitlines() or [type(error).__name__]
    kept = [
        one for one in lines if not one.lstrip().startswith("For further information")
    ]
    return " ".join(" ".join(kept).split())


def plain(stored: bytes | None) -> object:
    """Return the stored plain values, of any version. Raise InvalidPayload."""
    return None if stored is None else _decoded(stored)[0]


def _header(stored: bytes) -> tuple[Codec, int, int]:
    """Return the codec, the version, and where the data begin. Raise NewerPayload for an unknown
    codec.
    """
    header = _HEADER.match(stored) if stored.startswith(_MAGIC) else None
    if header is None:
        return JSON, 1, 0
    name = header[1].decode()
    if name not in CODECS:
        raise NewerPayload(
            f"task_data needs the codec {name!r}; registered are {', '.join(sorted(CODECS))}"
        )
    return CODECS[name], int(header[2]), header.end()


def _decoded(stored: bytes) -> tuple[object, int]:
    codec, version, offset = _header(stored)
    try:
        return codec.decode(stored[offset:]), version
    except Exception as error:  # a user's codec may raise any exception
        raise InvalidPayload(
            f"task_data cannot be read as {codec.name.upper()}: {error}"
        ) from None
