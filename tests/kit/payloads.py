"""A task's data to bytes and back.

Tests import inner names from here: a module that moves is named in one place.
"""

from __future__ import annotations

from slotwise.payload.codecs import JSON
from slotwise.payload.converters import shape_of
from slotwise.payload.payload import PAYLOAD_LIMIT, UNTYPED, Payload, plain
from slotwise.payload.results import RESULT_LIMIT, encode_result

__all__ = [
    "JSON",
    "PAYLOAD_LIMIT",
    "RESULT_LIMIT",
    "UNTYPED",
    "Payload",
    "encode_result",
    "plain",
    "shape_of",
]
