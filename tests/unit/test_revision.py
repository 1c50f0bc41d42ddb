"""Revisions: which of two deploys is the newer one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.kit.store import Revision

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(seconds=1)

#: Like with like: the first is the older one, whoever started first.
ORDERED = [
    ("9", "10"),
    ("v9", "v10"),
    ("1.9", "1.10.1"),
    ("v1.2", "V1.2.1"),
    ("release-2025.12", "release-2026.1"),
    ("build-9-web", "build-10-web"),
    ("v1.2-14-g2414721", "v1.2-15-gab12cd3-dirty"),
    ("2026-01-31", "2026-02-01T00:00:00Z"),
    ("2026-01-31T12:00:00+02:00", "2026-01-31T11:00:00Z"),
    ("2026-01-31 12:00:00 +0200", "2026-01-31 11:00:00 +0000"),
    ("20260131", "20260201"),
    ("1751000000", "1751000001"),
]

#: Without an order: the later start is the newer.
UNORDERED = [
    ("9fceb02", "1ab4c55"),
    ("deadbeef", "cafebabe"),
    (
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "0beec7b5ea3f0fdbc95d0dd47f3c5bc275da8a33",
    ),
    ("9", "v10"),
    ("2026-01-31", "42"),
    ("9fceb02", "42"),
    ("blue", "green"),
    ("1.0.0-rc1", "1.0.0"),
]


@pytest.mark.parametrize(("older", "newer"), ORDERED)
def test_order(older: str, newer: str) -> None:
    """Ids of one form are compared by what they say, not as text; when they started does not
    count.
    """
    for first, second in ((NOON, LATER), (LATER, NOON)):
        assert Revision(text=older, started=first).is_older(
            Revision(text=newer, started=second)
        )
        assert not Revision(text=newer, started=second).is_older(
            Revision(text=older, started=first)
        )


@pytest.mark.parametrize(("one", "other"), UNORDERED)
def test_no_order(one: str, other: str) -> None:
    """Ids that say nothing about each other: the later start is the newer, either way round."""
    for first, second in ((one, other), (other, one)):
        assert Revision(text=first, started=NOON).is_older(
            Revision(text=second, started=LATER)
        )
        assert not Revision(text=first, started=LATER).is_older(
            Revision(text=second, started=NOON)
        )


@pytest.mark.parametrize("text", ["1", "v2", "9fceb02", "2026-01-31", "blue"])
def test_an_id_outranks_none(text: str) -> None:
    """Code that is started by hand, without an id, does not undo a deploy that has one."""
    assert Revision(started=LATER).is_older(Revision(text=text, started=NOON))
    assert not Revision(text=text, started=NOON).is_older(Revision(started=LATER))


@pytest.mark.parametrize("text", ["42", "9fceb02"])
def test_the_same(text: str) -> None:
    """A deploy is not older than itself, whoever of it started first."""
    assert not Revision(text=text, started=NOON).is_older(
        Revision(text=text, started=LATER)
    )
    assert not Revision(text="1.0").is_older(Revision(text="1"))


def test_no_ids() -> None:
    """The later start is the newer; a row that nobody is known to have planned is older than
    everybody.
    """
    assert Revision(started=NOON).is_older(Revision(started=LATER))
    assert not Revision(started=LATER).is_older(Revision(started=NOON))
    assert not Revision(started=NOON).is_older(Revision())
    assert not Revision(text="1").is_older(Revision())


@pytest.mark.parametrize(
    ("ours", "theirs", "cure"),
    [
        (
            Revision(started=NOON),
            Revision(text="7"),
            "start its workers with a --revision above 7",
        ),
        (
            Revision(started=NOON),
            Revision(text="9fceb02"),
            "with a --revision of its own",
        ),
        (Revision(text="v6"), Revision(text="v7"), "with a --revision above v7"),
        (
            Revision(text="9fceb02", started=NOON),
            Revision(text="1ab4c55", started=LATER),
            "start its workers again",
        ),
        (Revision(started=NOON), Revision(started=LATER), "start its workers again"),
    ],
    ids=["none", "none after a hash", "lower", "hash", "earlier"],
)
def test_cure(ours: Revision, theirs: Revision, cure: str) -> None:
    """What is told to whoever was refused helps."""
    assert ours.is_older(theirs)
    assert cure in ours.cure(theirs)
