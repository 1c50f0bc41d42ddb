"""``slotwise events``, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.contrib.events.shop import Shop

from slotwise.cli import main


@pytest.fixture
def shop(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("SLOTWISE_DATABASE_URL", url)
    with Shop(url, "mail") as shop:
        shop.fails = {("mail", 0)}
        for step in range(2):
            shop.publish("a", step)
        shop.publish("b", 9)
        shop.publish(None, 0, "order.sent")
        shop.run()
        shop.worker.tick("31s")
        shop.run()
        shop.publish("c", 5)
        yield shop


def status(*words: str) -> int:
    try:
        return main(["events", *words]) or 0
    except SystemExit as ended:
        return int(ended.code or 0)


def test_events_are_listed_by_state(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {
        "waiting": [5],
        "kept": [4],
        "blocked": [2],
        "dead": [1],
        "ended": [3],
    }
    for state, ids in expected.items():
        assert status("list", "--state", state, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert [one["id"] for one in found] == ids
        assert {one["state"] for one in found} == {state}
    assert status() == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        *"54321"
    ]


def test_one_is_shown(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("show", "1") == 0
    told = capsys.readouterr().out
    assert "order.paid  key a  dead: mail dead" in told
    assert '"step":0' in told
    assert status("show", "99") == 1
    assert "there is no event 99" in capsys.readouterr().out


def test_lag_names_the_key_that_is_blocked(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("lag") == 0
    told = capsys.readouterr().out
    assert "1 events wait for the fan-out" in told
    assert "2 open, 1 dead  key a is blocked by event 1" in told
    assert status("lag", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fan_out"]["waiting"] == 1
    assert found["handlers"][0]["blocked_key"] == "a"


@pytest.mark.parametrize("words", [("mail",), ("mail", "1")])
def test_a_retry_frees_the_key(
    shop: Shop, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    shop.fails = set()
    assert status("retry", *words) == 0
    assert capsys.readouterr().out == "1 dead events of mail are tried again\n"
    shop.worker.tick("3650d")  # the command has the database's own time
    shop.run()
    assert shop.seen("mail", "a") == [0, 0, 0, 1]
    assert status("retry", *words) == 1


def test_an_unknown_handler_is_refused(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("retry", "mial") != 0
    assert "there is no handler 'mial'; known: mail" in capsys.readouterr().err
