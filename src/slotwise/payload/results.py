"""What a handler returned, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Set

from slotwise.errors import InvalidPayload
from slotwise.payload.codecs import JSON
from slotwise.payload.converters import shape_of
from slotwise.payload.payload import one_line
from slotwise.payload.shape import member, plain

#: The largest result, in bytes; store a larger one elsewhere and return its key.
RESULT_LIMIT = 65_536


def encode_result(result: object) -> bytes:
    """Return a result as JSON: all that payloads may consist of, by the types it turns out to
    have. Raise InvalidPayload with the reason.
    """
    try:
        body = JSON.encode(plain(_written(result), True))
    except Exception as error:  # a model's own serializer may raise any exception
        raise InvalidPayload(
            f"the result is not kept: it cannot be written as JSON: {one_line(error)}"
        ) from None
    if len(body) > RESULT_LIMIT:
        raise InvalidPayload(
            f"the result is not kept: it has {len(body)} bytes, at most {RESULT_LIMIT} are allowed"
        )
    return body


def _written(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: member(key, _written, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [member(place, _written, each) for place, each in enumerate(value)]
    if isinstance(value, Set):
        return sorted(map(_written, value), key=repr)
    if value is None or isinstance(value, str | int | float):
        return value
    kind: type = type(value)
    try:
        shape = shape_of(kind)
    except InvalidPayload:
        return value  # rejected with its path
    return shape.convert(value, True)
