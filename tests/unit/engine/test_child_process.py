"""What an attempt in a process of its own says to its parent."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
from tests.kit.loops import ActiveClaims
from tests.kit.records import (
    Aborted,
    AttemptOutcome,
    Cancelled,
    Failed,
    FollowUps,
    HandedBack,
    Snoozed,
    Succeeded,
)
from tests.unit.engine.parts import a_claim

from slotwise.contrib.isolation.attempts import (
    Channel,
    _Attempt,
    outcome_of,
    say_outcome,
)

OUTCOMES: list[AttemptOutcome] = [
    Succeeded(),
    Succeeded(promised=True),
    Succeeded(follow_ups=FollowUps(result=b'{"n": "\xc3\xbc"}', problem="too large")),
    Failed("ValueError: ü\nno luck"),
    Failed("for good", final=True, promised=True),
    Snoozed(timedelta(seconds=90, microseconds=7)),
    Aborted("timeout"),
    Cancelled("not today"),
    HandedBack("lost"),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
def test_an_outcome_comes_back_as_it_was(outcome: AttemptOutcome) -> None:
    """As data, through JSON, and equal at the other end."""
    assert outcome_of(json.loads(json.dumps(say_outcome(outcome)))) == outcome


def test_what_cannot_be_handed_on_is_told() -> None:
    """No task that was to follow is lost in silence."""
    told = outcome_of(
        say_outcome(Succeeded(follow_ups=FollowUps(arrivals=[("mail", "1")])))
    )  # type: ignore[list-item]
    assert isinstance(told, Failed)
    assert told.final
    assert "schedule them with ctx.client" in told.error


@pytest.mark.parametrize("reason", ["operator", "overlap", "shutdown", "timeout"])
def test_what_is_told_to_stop_before_its_handler_began_has_not_started(
    reason: str,
) -> None:
    """Its child has ended without a word: no attempt is burnt, and nobody reads of a start."""
    (holding,) = ActiveClaims().add([a_claim()], 0.0)
    holding.signal.set(reason)
    ours, theirs = socket.socketpair()
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    theirs.close()
    with ours:
        attempt = _Attempt(Channel(ours), child, holding, patience=0)
        assert attempt.run(
            {}, begun=lambda: None, draining=lambda: False
        ) == HandedBack(reason)


def test_words_arrive_whole_and_in_order() -> None:
    """However they are cut on their way; and whoever hangs up is known to be gone."""
    ours, theirs = socket.socketpair()
    channel, text = Channel(theirs), "x" * 200_000
    assert list(channel.lines(0.01) or ()) == []
    ours.sendall(json.dumps({"n": 1}).encode() + b'\n{"n"')
    assert list(channel.lines(1) or ()) == [{"n": 1}]
    ours.sendall(b": 2}\n")
    assert list(channel.lines(1) or ()) == [{"n": 2}]
    ours.settimeout(5)
    found: list[object] = []
    ours.setblocking(False)
    left = json.dumps({"text": text}).encode() + b"\n"
    while not found:
        if left:
            left = left[ours.send(left[:4096]) :]
        found += channel.lines(0.01) or ()
    assert found == [{"text": text}]
    ours.close()
    assert channel.lines(1) is None
    channel.send(n=3)
    channel.close()


@pytest.mark.parametrize(
    ("status", "how"),
    [(-9, "by SIGKILL"), (-40, "by signal 40"), (255, "with exit status 255")],
)
def test_a_child_that_ends_without_a_word_has_failed(status: int, how: str) -> None:
    """Its status names the signal; real-time signals have no name."""
    (holding,) = ActiveClaims().add([a_claim()], 0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen([sys.executable, "-c", ""]) as child:
        attempt = _Attempt(Channel(ours), child, holding, 1.0)
        assert attempt._end(status) == Failed(
            f"its process ended {how} before its handler started"
        )
