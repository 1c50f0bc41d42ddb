"""A checkpoint as JSON that keeps its types, although no type is declared for it: what JSON lacks
is an object with one key, such as ``{"$Decimal": "1.50"}``.
"""

from __future__ import annotations

from slotwise.errors import InvalidPayload
from slotwise.payload.codecs import JSON
from slotwise.payload.converters import TEXTS, shape_of
from slotwise.payload.payload import one_line
from slotwise.payload.shape import Misfit, member

#: The largest checkpoint, in bytes.
CHECKPOINT_LIMIT = 65_536
_TUPLE = "$tuple"
#: A dict with a key that could be taken for one of ours.
_DICT = "$dict"
_SHAPES = {kind: shape_of(kind) for kind in TEXTS}
_TAGS = {f"${kind.__name__}": shape for kind, shape in _SHAPES.items()}
#: Types whose values JSON keeps. A subclass, such as an Enum, would come back as one of these.
_PLAIN = frozenset({type(None), bool, int, float, str})


def encode_checkpoint(value: object) -> bytes:
    """Return the bytes to store. Raise InvalidPayload, with the path, for what would not come back
    as it is.
    """
    try:
        body = JSON.encode(_written(value))
    except Exception as error:
        raise InvalidPayload(
            f"the checkpoint cannot be written as JSON: {one_line(error)}"
        ) from None
    if len(body) > CHECKPOINT_LIMIT:
        raise InvalidPayload(
            f"the checkpoint has {len(body)} bytes, at most {CHECKPOINT_LIMIT} are allowed; "
            "save where the work stands, such as the last key"
        )
    return body


def decode_checkpoint(body: bytes) -> object:
    """Return the value. Raise InvalidPayload if another program has written something else."""
    try:
        return _read(JSON.decode(body))
    except Exception as error:
        raise InvalidPayload(
            f"the checkpoint cannot be read: {one_line(error)}"
        ) from None


def _written(value: object) -> object:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, list) and kind is list:
        return [member(place, _written, each) for place, each in enumerate(value)]
    if isinstance(value, tuple) and kind is tuple:
        return {
            _TUPLE: [member(place, _written, one) for place, one in enumerate(value)]
        }
    if isinstance(value, dict) and kind is dict:
        return _written_dict(value)
    if kind in _SHAPES:
        return {f"${kind.__name__}": _SHAPES[kind].convert(value, True)}
    raise Misfit(
        f"{kind.__name__} does not keep its type; save its parts: str, int, float, bool, None, "
        "list, tuple, dict, datetime, date, time, UUID or Decimal"
    )


def _written_dict(value: dict[object, object]) -> object:
    for key in value:
        if type(key) is not str:
            raise Misfit(f"the key {key!r:.80} is not a string")
    found = {key: member(key, _written, each) for key, each in value.items()}
    is_like_ours = any(str(key).startswith("$") for key in found)
    return {_DICT: found} if is_like_ours else found


def _read(value: object) -> object:
    if isinstance(value, list):
        return [_read(each) for each in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value)) if len(value) == 1 else ""
    if tag in _TAGS:
        return _TAGS[tag].convert(value[tag], False)
    if tag == _TUPLE:
        return tuple(_read(each) for each in value[tag])
    members = value[tag] if tag == _DICT else value
    return {key: _read(each) for key, each in members.items()}
