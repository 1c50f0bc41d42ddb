"""Rounds of alarms over real tables: one message for each incident, and one when it is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.contrib.alarms.cluster import HOUR, NOT_ALIVE, Cluster, cluster

from slotwise import InvalidSetting
from slotwise.contrib.alarms import Call, Message, Rules, observation
from slotwise.contrib.alarms import alarms as alarms_module
from slotwise.contrib.alarms.targets import Rejected


@pytest.fixture(params=["pg_url", "sqlite_url"])
def here(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    url = request.getfixturevalue(request.param)
    rules = Rules(off=NOT_ALIVE)
    with cluster(url, rules=rules) as found:
        found.pass_hours(2)
        yield found


def test_a_failed_slot_is_told_once_and_its_end(here: Cluster) -> None:
    """Further failures of the same job belong to the same incident."""
    assert here.told == []
    here.fails = {"hourly"}
    here.pass_hours(2)
    assert here.told == [("opened", "failed", "hourly")]
    assert "no space left" in here.messages[0].summary
    here.fails = set()
    here.pass_hours(2)
    assert here.told[1:] == [("closed", "failed", "hourly")]
    assert "Over after" in here.messages[1].text


def test_several_in_a_row(here: Cluster) -> None:
    here.fails = {"hourly"}
    here.pass_hours(3)
    assert (
        here.told
        == [
            ("opened", "failed", "hourly"),
            ("opened", "in_a_row", "hourly"),
            ("opened", "no_success", "hourly"),
        ][: len(here.told)]
    )
    assert ("opened", "in_a_row", "hourly") in here.told
    here.fails = set()
    here.pass_hours(1)
    assert {one for one in here.told if one[0] == "closed"} == {
        ("closed", kind, name) for _, kind, name in here.told if kind
    }


def test_a_failure_between_two_rounds_is_told(here: Cluster) -> None:
    """A job that has failed and succeeded since the last round was never seen failing."""
    here.fails = {"hourly"}
    here.worker.tick(HOUR)
    here.worker.run_due()
    here.fails = set()
    here.worker.tick(HOUR / 2)
    here.registry.client.operations.trigger("hourly")
    here.worker.tick("1s")
    here.worker.run_due()
    here.alarms.run_once()
    here.alarms.run_once()
    assert here.told[:1] == [("opened", "failed", "hourly")]


def test_a_flood_of_failed_tasks_hides_no_failed_slot(
    here: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a job that has succeeded since."""
    monkeypatch.setattr(observation, "MOST_FAILURES", 3)
    here.fails = {"hourly"}
    here.worker.tick(HOUR)
    here.worker.run_due()
    here.fails = set()
    here.worker.tick(HOUR / 2)
    here.registry.client.operations.trigger("hourly")
    for number in range(5):
        here.worker.client.schedule(here.mail, "ann", id=str(number))
    here.worker.tick("1s")
    here.worker.run_due()
    here.alarms.run_once()
    assert ("opened", "failed", "hourly") in here.told


def test_a_stale_round_ends_no_incident_of_another_watcher(
    here: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the tables before what the other one has found."""
    other = here.another()

    def slow(*args: Any) -> observation.Observation:
        seen = observation.observe(*args)
        monkeypatch.undo()
        here.worker.tick("75m")
        other.run_once()
        return seen

    monkeypatch.setattr(alarms_module, "observe", slow)
    here.alarms.run_once()
    assert here.told == [("opened", "late", "hourly")]
    assert [one.is_open for one in other.incidents()] == [True]


def test_without_targets_no_message_is_taken(here: Cluster) -> None:
    """Another watcher, with targets, sends it."""
    watcher = here.another(targets=[])
    here.fails = {"hourly"}
    here.worker.tick(HOUR)
    here.worker.run_due()
    assert watcher.run_once().began == 1
    here.alarms.run_once()
    assert here.told == [("opened", "failed", "hourly")]


def test_what_is_long_over_is_not_sent_to_the_first_target(here: Cluster) -> None:
    watcher = here.another(targets=[])
    here.fails = {"hourly"}
    here.worker.tick(HOUR)
    here.worker.run_due()
    watcher.run_once()
    here.fails = set()
    here.worker.tick(HOUR)
    here.worker.run_due()
    watcher.run_once()
    here.worker.tick("8d")
    here.worker.run_due()
    here.alarms.run_once()
    assert here.told == []


def test_an_absent_worker_makes_slots_late(here: Cluster) -> None:
    """What is late is overdue after two hours, too; a weekly job is neither."""
    here.pass_hours(1, works=False)
    here.worker.tick("15m")
    here.alarms.run_once()
    assert here.told == [("opened", "late", "hourly")]
    here.pass_hours(2, works=False)
    assert here.told[1:] == [("opened", "no_success", "hourly")]
    here.worker.run_due()
    here.alarms.run_once()
    assert set(here.told[2:]) == {
        ("closed", "late", "hourly"),
        ("closed", "no_success", "hourly"),
    }


def test_a_dead_task_is_told_until_it_is_gone(here: Cluster) -> None:
    here.worker.client.schedule(here.mail, "ann", id="1")
    here.worker.tick("1s")
    here.worker.run_due()
    here.alarms.run_once()
    assert here.told == [("opened", "dead", "mail")]
    here.alarms.run_once()
    here.registry.client.cancel(here.mail, "1")
    here.alarms.run_once()
    assert here.told == [("opened", "dead", "mail"), ("closed", "dead", "mail")]


def test_an_old_task_is_a_backlog(here: Cluster) -> None:
    here.worker.client.schedule(here.mail, "ann", id="1")
    here.worker.tick("11m")
    here.alarms.run_once()
    assert here.told == [("opened", "backlog", "mail")]


def test_a_pause_raises_nothing(here: Cluster) -> None:
    here.registry.client.operations.pause("hourly")
    here.pass_hours(30)
    here.registry.client.operations.resume("hourly")
    here.pass_hours(2)
    assert here.told == []


def test_a_maintenance_window_raises_nothing(here: Cluster) -> None:
    """Neither while it lasts, nor when it ends by itself."""
    until = here.clock.now() + 10 * HOUR
    here.registry.client.operations.pause("hourly", until=until)
    here.pass_hours(9)
    here.pass_hours(4)
    assert here.told == []


def test_two_watchers_send_one_message(here: Cluster) -> None:
    """Whoever is first writes the incident, and claims the message."""
    other = here.another()
    here.fails = {"hourly"}
    here.worker.tick(HOUR)
    here.worker.run_due()
    for _ in range(3):
        here.alarms.run_once()
        other.run_once()
    assert here.told == [("opened", "failed", "hourly")]
    assert len(other.incidents()) == 1


def test_a_failed_delivery_is_tried_again_and_stops_no_other(here: Cluster) -> None:
    """The incident keeps the error; the pauses grow."""
    good: list[Message] = []
    tried: list[Message] = []
    is_down = True

    def bad(message: Message) -> None:
        tried.append(message)
        if is_down:
            raise OSError("connection refused")

    targets = [Call(bad, name="bad"), Call(good.append, name="good")]
    alarms = here.another(targets=targets)
    here.fails = {"hourly"}
    here.worker.tick(HOUR)
    here.worker.run_due()
    alarms.run_once()
    (incident,) = alarms.incidents()
    assert incident.error == "bad: OSError: connection refused"
    assert [one.event for one in good] == ["opened"]
    alarms.run_once()
    assert len(tried) == 1
    for pause in ("11s", "21s"):
        here.worker.tick(pause)
        alarms.run_once()
    assert len(tried) == 3
    assert len({one.id for one in tried}) == 1
    assert len(good) == 1
    is_down = False
    here.worker.tick("41s")
    alarms.run_once()
    (incident,) = alarms.incidents()
    assert (incident.error, incident.attempts, incident.next_attempt) == (
        None,
        0,
        None,
    )


@pytest.mark.parametrize(
    ("error", "told_others"),
    [
        (Rejected("HTTP status 400"), True),
        (ValueError("no such letter"), True),
        (OSError("connection refused"), False),
    ],
)
def test_a_rejected_message_stops_no_other(
    here: Cluster, error: Exception, told_others: bool
) -> None:
    """Only a target that cannot be reached is asked no more in the round."""
    good: list[str] = []

    def picky(message: Message) -> None:
        if message.name == "hourly":
            raise error
        good.append(message.name)

    alarms = here.another(targets=[Call(picky, name="picky")])
    here.fails = {"hourly"}
    here.worker.tick(HOUR)
    here.worker.run_due()
    here.worker.client.schedule(here.mail, "ann", id="1")
    here.worker.tick("1s")
    here.worker.run_due()
    alarms.run_once()
    assert (good == ["mail"]) is told_others


def test_a_slow_target_sends_nothing_after_its_round(
    here: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another watcher may send the rest then."""
    tried: list[str] = []
    answers = threading.Event()

    def slow(message: Message) -> None:
        tried.append(message.name)
        answers.wait(60)

    monkeypatch.setattr("slotwise.contrib.alarms.delivery.ROUND", 0.2)
    alarms = here.another(targets=[Call(slow, name="slow")])
    here.fails = {"hourly"}
    here.worker.tick(HOUR)
    here.worker.run_due()
    here.worker.client.schedule(here.mail, "ann", id="1")
    here.worker.tick("1s")
    here.worker.run_due()
    alarms.run_once()
    assert len(tried) == 1
    answers.set()
    for thread in threading.enumerate():
        if thread.name == "slotwise-alarms-slow":
            thread.join(60)
    assert len(tried) == 1
    here.worker.tick("2m")
    alarms.run_once()
    assert sorted(set(tried)) == ["hourly", "mail"]


def test_a_new_message_is_sent_before_one_that_has_failed(here: Cluster) -> None:
    tried: list[str] = []

    def bad(message: Message) -> None:
        tried.append(message.name)
        raise ValueError("no")

    alarms = here.another(targets=[Call(bad, name="bad")])
    here.fails = {"hourly"}
    here.worker.tick(HOUR)
    here.worker.run_due()
    alarms.run_once()
    here.worker.client.schedule(here.mail, "ann", id="1")
    here.worker.tick("11s")
    here.worker.run_due()
    alarms.run_once()
    assert tried == ["hourly", "mail", "hourly"]


def test_a_silence_ends(here: Cluster) -> None:
    """What is over meanwhile is never told; what is still open is told when the silence ends."""
    here.alarms.silence("hourly", until=4 * HOUR, author="ada", note="known")
    here.fails = {"hourly"}
    here.pass_hours(1)
    here.fails = set()
    here.pass_hours(1)
    here.worker.tick("2m")
    here.alarms.run_once()
    assert here.told == []
    assert [one.is_open for one in here.alarms.incidents()] == [False]
    here.fails = {"hourly"}
    here.pass_hours(1)
    assert here.told == []
    here.worker.tick("1h")
    here.alarms.run_once()
    assert ("opened", "failed", "hourly") in here.told


def test_a_silence_is_ended_by_hand(here: Cluster) -> None:
    here.alarms.silence(until=3 * HOUR, author="ada")
    assert [one.author for one in here.alarms.silences()] == ["ada"]
    with pytest.raises(InvalidSetting, match="has passed"):
        here.alarms.silence(until=timedelta(0), author="ada")
    assert here.alarms.end_silence()
    assert here.alarms.silences() == []
    assert not here.alarms.end_silence()


def test_old_incidents_are_deleted(here: Cluster) -> None:
    here.fails = {"hourly"}
    here.pass_hours(1)
    here.fails = set()
    here.pass_hours(1)
    assert len(here.alarms.incidents()) == 1
    here.worker.tick("91d")
    here.worker.run_due()
    here.alarms.run_once()
    assert [one.kind for one in here.alarms.incidents() if one.kind == "failed"] == []
