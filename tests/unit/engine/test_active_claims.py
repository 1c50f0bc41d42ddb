"""What a process holds, and how far it may believe in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from tests.kit.loops import ActiveClaims, Holding
from tests.kit.patience import PATIENCE
from tests.unit.engine.parts import MINUTE, a_claim


class Stopwatch:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def holding(watch: Stopwatch) -> Holding:
    return Holding(a_claim(lease=MINUTE), watch(), watch)


def test_a_claim_is_good_for_its_lease() -> None:
    """Measured from before the last successful heartbeat was sent; renewed by the next."""
    watch = Stopwatch()
    held = holding(watch)
    watch.seconds = 45
    assert held.lease_left() == timedelta(seconds=15)
    assert held.doubt(20.0) == "suspect"
    assert not held.lost
    held.renew(40.0)
    assert held.lease_left() == timedelta(seconds=55)
    held.renew(30.0)  # an older one that comes late takes nothing back
    assert held.lease_left() == timedelta(seconds=55)
    watch.seconds = 100
    assert held.lost
    assert held.waited() == 100


def test_what_is_lost_stays_lost() -> None:
    """Its handler has been told; a late heartbeat does not take that back."""
    held = holding(Stopwatch())
    held.lose()
    held.renew(1.0)
    assert held.lost
    assert held.doubt(0.0) == "suspect"
    assert held.signal.reason == "lost"


def test_a_claim_waits_from_when_it_came_in() -> None:
    """Its lease counts from before it was sent; while it was decided and committed, it kept nobody
    waiting here.
    """
    watch = Stopwatch()
    watch.seconds = 12
    held = Holding(a_claim(lease=MINUTE), 0.0, watch)
    assert (held.waited(), held.lease_left()) == (0, timedelta(seconds=48))
    assert held.doubt(10.0) is None
    watch.seconds = 23
    assert held.doubt(10.0) == "queued"
    watch.seconds = 51
    assert held.doubt(10.0) == "suspect"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["begin", "end", "end"], [True, True, False]),
        (["begin", "give up", "end"], [True, False, True]),
        (["give up", "begin", "end"], [True, False, False]),
        (["end", "begin", "give up"], [True, False, False]),
        (["give up", "give up"], [True, False]),
    ],
    ids=lambda steps: "-".join(map(str, steps)),
)
def test_an_attempt_begins_at_most_once_and_ends_once(
    steps: list[str], expected: list[bool]
) -> None:
    """Who comes second is told so, whatever the second was."""
    held = holding(Stopwatch())
    does = {
        "begin": held.begin,
        "end": held.end,
        "give up": lambda: held.end(unstarted=True),
    }
    assert [does[step]() for step in steps] == expected


def test_either_it_begins_or_it_goes_back() -> None:
    """Race: a thread enters the handler while the lease watch gives the claim back. One of them
    wins.
    """
    for _ in range(1000):
        held = holding(Stopwatch())
        barrier, won = threading.Barrier(2), []

        def step(
            act: Callable[[], bool],
            barrier: threading.Barrier = barrier,
            won: list[bool] = won,
        ) -> None:
            barrier.wait(PATIENCE)
            won.append(act())

        acts = held.begin, partial(held.end, unstarted=True)
        threads = [threading.Thread(target=step, args=(act,)) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert sorted(won) == [False, True]
        assert held.started is not held.ended


def test_the_holdings_know_key_and_token() -> None:
    """The same row under another token is another claim."""
    active_claims = ActiveClaims()
    first, second = a_claim(), a_claim()
    assert first.key == second.key
    (held,) = active_claims.add([first], 0.0)
    assert first in active_claims
    assert second not in active_claims
    assert active_claims.get(first) is held
    active_claims.remove([second])
    assert active_claims.get(first) is held
    active_claims.remove([first])
    assert len(active_claims) == 0


def test_waiting_until_nothing_is_held() -> None:
    """Ends when the last is removed, or when the time is up."""
    active_claims = ActiveClaims()
    claims = [a_claim(), a_claim()]
    active_claims.add(claims, 0.0)
    assert not active_claims.wait_empty(0.01)
    remover = threading.Thread(
        target=lambda: [active_claims.remove([claim]) for claim in claims]
    )
    remover.start()
    assert active_claims.wait_empty(PATIENCE)
    remover.join(PATIENCE)


def test_quiet_is_when_no_claim_is_under_way() -> None:
    """And the number tells whether one has begun since."""
    active_claims = ActiveClaims()
    before = active_claims.quiet()
    with active_claims.claiming():
        assert active_claims.quiet() is None
    assert active_claims.quiet() not in (None, before)
