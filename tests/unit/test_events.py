"""What happens, told to everybody: and nobody who listens can do harm."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError
from datetime import timedelta

import pytest
from tests.kit.events import Claimed, HandlerHangs, Listeners, PollBegan, about, events
from tests.unit.engine.parts import NOON, a_claim

from slotwise.contrib.logging import LogListener
from slotwise.spi import DatabaseLost, Event

LOST = DatabaseLost(worker="w", loop="poller", error="gone")
POLL = PollBegan(worker="w", capacity=3)


def every_event() -> list[type[Event]]:
    kinds = [
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, Event)
    ]
    return [kind for kind in kinds if isinstance(vars(kind).get("name"), str)]


def test_the_documented_names_are_there() -> None:
    """What operators and tests wait for."""
    names = {kind.name for kind in every_event()}
    assert names >= {
        "poll_begin",
        "claimed",
        "handler_start",
        "handler_end",
        "settle_sent",
        "settled",
        "claim_lost",
        "heartbeat",
        "reaped",
        "planned",
        "drain_begin",
        "drain_end",
    }


def test_no_two_events_share_a_name() -> None:
    """The name in the log tells which it is."""
    names = [kind.name for kind in every_event()]
    assert sorted(names) == sorted(set(names))


def test_an_attempts_event_says_where_it_is_from() -> None:
    """Job, instance, slot, attempt, token, worker; what is not known is left out."""
    claim = a_claim("report")
    assert Claimed(**about(claim)).facts() == {
        "worker": "host:1:a",
        "job": "report",
        "id": "recurring",
        "slot": NOON,
        "attempt": 1,
        "token": claim.token,
    }
    assert about(claim, "other")["worker"] == "other"
    assert "slot" not in Claimed(**about(a_claim("mail", schedule=None))).facts()


def test_a_job_logs_its_lines_from_its_level_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of the worker's lines alone: other listeners hear all, and other jobs log all."""
    heard = list[Event]()
    caplog.set_level(logging.DEBUG, "slotwise")
    loud = Claimed(**about(a_claim("report")))
    quiet = Claimed(**about(a_claim("poll")))
    hangs = HandlerHangs(
        **about(a_claim("poll")), reason="timeout", asked=timedelta(seconds=1)
    )
    for of_log in (LogListener(), None):
        listeners = Listeners((heard.append,), {"poll": logging.ERROR})
        if of_log is not None:
            listeners.add(of_log)
        for event in (loud, quiet, hangs, POLL):
            listeners.publish(event)
        assert heard == [loud, quiet, hangs, POLL]
        assert "poll " not in caplog.text.replace("poll_begin", "")
        heard.clear()
    assert "report" in caplog.text


def test_an_event_is_frozen() -> None:
    """Every listener sees the same."""
    with pytest.raises(FrozenInstanceError):
        POLL.capacity = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    "error",
    [ValueError("mine"), SystemExit(1), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)
def test_a_listener_that_fails_changes_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the event goes on to the others; the loop that told it does not end."""

    def fails(event: Event) -> None:
        raise error

    heard: list[Event] = []
    Listeners((fails, heard.append)).publish(POLL)
    assert heard == [POLL]
    assert "a listener failed on poll_begin" in caplog.text


def test_a_ctrl_c_is_not_the_listeners() -> None:
    """Whoever published in the main thread is interrupted."""

    def interrupted(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Listeners((interrupted,)).publish(POLL)


def test_somebody_listens() -> None:
    """Ask before making an event on a hot path."""
    listeners = Listeners()
    assert not listeners.hear(PollBegan)
    listeners.add(print)
    assert listeners.hear(PollBegan)


def test_a_listener_says_what_it_wants() -> None:
    """A log of warnings costs the hot path nothing."""

    class Choosy:
        def __call__(self, event: Event) -> None:
            """Hears."""

        def wants(self, kind: type[Event]) -> bool:
            return kind is DatabaseLost

    listeners = Listeners((Choosy(),))
    assert not listeners.hear(PollBegan)
    assert listeners.hear(DatabaseLost)


def test_trouble_is_logged_even_if_nobody_listens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker that waits for its database must not do so in silence; everything else may."""
    caplog.set_level(logging.DEBUG)
    heard: list[Event] = []
    for listeners in (Listeners(), Listeners((heard.append,))):
        listeners.publish(POLL)
        listeners.publish(LOST)
    assert [record.getMessage() for record in caplog.records] == [
        "database_lost worker=w loop=poller error=gone"
    ] * 2
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_trouble_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """By whoever writes the log, if somebody does; also if it was added later."""
    caplog.set_level(logging.DEBUG)
    late = Listeners()
    late.add(LogListener())
    for listeners in (Listeners((LogListener(),)), late):
        caplog.clear()
        listeners.publish(LOST)
        assert len(caplog.records) == 1


def test_levels_are_meant() -> None:
    """Trouble warns; the rhythm of the loops is for those who look closely."""
    warns = {kind.name for kind in every_event() if kind.level >= logging.WARNING}
    assert warns == {
        "claim_suspect",
        "claim_lost",
        "reaped",
        "database_lost",
        "handler_hangs",
        "handler_slow",
        "slots_moved",
    }
    assert events.PollBegan.level == events.HeartbeatSent.level == logging.DEBUG
