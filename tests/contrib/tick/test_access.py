"""Who may request a tick."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from slotwise import ConfigurationError
from slotwise.contrib.tick.access import Access

OLD = "old-secret-of-the-clock"
NEW = "new-secret-of-the-clock"


def refused(headers: Mapping[str, str]) -> bool:
    return False


def known(headers: Mapping[str, str]) -> bool:
    return headers["x-host"] == "mine"


@pytest.mark.parametrize(
    ("secret", "check", "headers", "admitted"),
    [
        (OLD, None, {"authorization": f"Bearer {OLD}"}, True),
        (OLD, None, {"authorization": f"bearer  {OLD} "}, True),
        (OLD, None, {"authorization": f"Basic {OLD}"}, False),
        (OLD, None, {"authorization": OLD}, False),
        (OLD, None, {"authorization": f"Bearer {OLD[:-1]}"}, False),
        (OLD, None, {"authorization": "Bearer "}, False),
        (OLD, None, {"authorization": "Bearer \u00fc"}, False),
        (OLD, None, {}, False),
        ((OLD, NEW), None, {"authorization": f"Bearer {OLD}"}, True),
        ((OLD, NEW), None, {"authorization": f"Bearer {NEW}"}, True),
        (f"{OLD} {NEW}", None, {"authorization": f"Bearer {NEW}"}, True),
        (f"{OLD} {NEW}", None, {"authorization": f"Bearer {OLD} {NEW}"}, False),
        (None, known, {"x-host": "mine"}, True),
        (None, known, {"x-host": "yours"}, False),
        (None, known, {}, False),  # the check raises
        (None, known, {"authorization": "Bearer "}, False),
        (OLD, refused, {"authorization": f"Bearer {OLD}"}, True),
    ],
)
def test_who_is_let_in(
    secret: str | tuple[str, ...] | None,
    check: Callable[[Mapping[str, str]], bool] | None,
    headers: Mapping[str, str],
    admitted: bool,
) -> None:
    """One of the secrets, whole; or the host's own check, of which an error means no."""
    assert Access(secret, check).admits(headers) is admitted


def test_a_check_that_answers_anything_else_lets_nobody_in() -> None:
    """A coroutine or a text is true as a condition."""
    assert not Access(None, lambda headers: "no").admits({})  # type: ignore[arg-type,return-value]


async def later(headers: Mapping[str, str]) -> bool:
    return True


@pytest.mark.parametrize(
    ("secret", "check", "words"),
    [
        (None, None, "anybody could start ticks here"),
        ("", None, "anybody could start ticks here"),
        ("short", None, "at least 16"),
        ((OLD, ""), None, "at least 16"),
        ((OLD, "with a space in between"), None, "at least 16"),
        ("ü" * 20, None, "at least 16"),
        ((OLD, NEW, OLD), None, "3 secrets"),
        (None, later, "a plain function"),
    ],
)
def test_what_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    secret: str | tuple[str, ...] | None,
    check: Callable[[Mapping[str, str]], bool] | None,
    words: str,
) -> None:
    """A route that anybody could use is not made."""
    monkeypatch.delenv("SLOTWISE_TICK_SECRET", raising=False)
    with pytest.raises(ConfigurationError, match=words):
        Access(secret, check)


def test_the_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two, separated by a space, while they are changed."""
    monkeypatch.setenv("SLOTWISE_TICK_SECRET", f"{OLD} {NEW}")
    access = Access(None, None)
    assert all(access.admits({"authorization": f"Bearer {one}"}) for one in (OLD, NEW))
