"""What a handler returned, as bytes that are kept for a while."""

from __future__ import annotations

from typing import Any

from slotwise.errors import InvalidPayload
from slotwise.jobs.definition import Definition
from slotwise.model.follow_ups import FollowUps
from slotwise.payload.codecs import JSON
from slotwise.payload.converters import ANYTHING, Misfit
from slotwise.payload.types import shape_of

#: The largest result; whatever is larger belongs elsewhere, with its key as the result.
RESULT_LIMIT = 65_536


def kept(result: object, definition: Definition, sequel: FollowUps | None) -> FollowUps:
    """The sequel with the result, if the task keeps it. One that cannot be kept is told, and the task has succeeded:
    to do its work again would not mend it.
    """
    sequel = sequel or FollowUps()
    if definition.keep_result is not None:
        try:
            sequel.result = encoded(result)
        except InvalidPayload as error:
            sequel.problem = str(error)
    return sequel


def encoded(result: object) -> bytes:
    """As JSON: plain values, dataclasses, models. Raises InvalidPayload with the reason."""
    kind: Any = type(result)
    try:
        shape = ANYTHING if isinstance(result, dict | list | tuple) else shape_of(kind)
        plain = shape.write(result)
        body = JSON.encode(plain)
    except (Misfit, TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"the result is not kept: it cannot be written as JSON: {error}") from None
    except InvalidPayload:
        raise InvalidPayload(f"the result is not kept: {type(result).__name__} cannot be written as JSON") from None
    if len(body) > RESULT_LIMIT:
        raise InvalidPayload(f"the result is not kept: it has {len(body)} bytes, at most {RESULT_LIMIT} are allowed")
    return body
