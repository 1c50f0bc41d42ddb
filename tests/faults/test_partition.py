"""The network between one worker and the database fails in the ways that networks have."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from tests.faults.bench import (
    HEARTBEAT,
    LEASE,
    SLACK,
    TAKE_OVER,
    WIDE,
    Bench,
    eventually,
    loaded,
)
from tests.faults.conftest import MakeBench
from tests.faults.proxy import CAN_CUT, Proxy
from tests.kit.dialect import DIALECT
from tests.kit.patience import PATIENCE

#: Words that fall only in this transaction of the engine, said or heard; of a claim that found
#: something.
SETTLEMENT = {"said": b"SET picked = false"}
CLAIM = {"said": b"SET picked = true", "heard": b"EVERY|1s"}
MARK = {"said": b"SET outcome = 'running'"}
if DIALECT == "locking":
    SETTLEMENT = {"said": b"wanted_due="}
    CLAIM = {"said": b"new_watermark", "heard": b"EVERY|1s"}
    MARK = {"said": b"SET outcome=$1::TEXT, started="}
#: Never below a second, whatever the heartbeat interval.
TCP_USER_TIMEOUT = timedelta(seconds=1)


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    with Proxy(pg_url) as proxy:
        yield proxy


def leave(stage: Bench, *jobs: str) -> None:
    until = stage.now()
    for job in jobs:
        stage.wait("settled", job=job, slot=lambda slot: slot > until)
    stage.end_all()
    stage.expect_clean(until=until)


#: Whether the server gets the commit whose answer is lost.
LOST = pytest.mark.parametrize(
    "forward",
    [
        pytest.param(True, id="the reply"),
        pytest.param(False, id="the request", marks=pytest.mark.extended),
    ],
)


@pytest.mark.skipif(
    not CAN_CUT, reason="a link is cut with a filter of Linux on a socket"
)
def test_a_worker_behind_a_black_hole_steps_down_and_comes_back(
    bench: MakeBench, proxy: Proxy
) -> None:
    """Packets vanish without a reset: it notices within seconds, stops its handler by the end of
    the lease, rejoins.
    """
    stage = bench("hold-async,rerun")
    apart = stage.start("apart", database_url=proxy.url)
    start = stage.wait("handler_start", job="hold-async", by=apart)
    other = stage.start("other")
    stage.wait("worker_start", by=other)
    eventually(lambda: stage.starts("hold-async"))

    cut = stage.mark()
    proxy.cut()
    noticed = stage.wait("database_lost", by=apart, after=cut)
    assert timedelta(
        seconds=noticed.at - cut.at
    ) <= TCP_USER_TIMEOUT + HEARTBEAT + loaded(SLACK)
    end = stage.wait("handler_end", by=apart, job=start["job"], token=start["token"])
    assert end["outcome"] == "cancelled"
    assert timedelta(seconds=end.at - cut.at) <= LEASE + loaded(SLACK)
    again = stage.wait("handler_start", job="hold-async", slot=start["slot"], by=other)
    # Nobody else starts while it may still believe in its claim.
    assert again.at >= end.at - loaded(timedelta(seconds=0.2)).total_seconds()
    assert timedelta(seconds=again.at - cut.at) <= TAKE_OVER + loaded(SLACK)

    healed = stage.mark()
    proxy.heal()
    back = stage.wait("database_back", by=apart, after=healed)
    assert timedelta(seconds=back.at - healed.at) <= timedelta(seconds=5) + loaded(
        SLACK
    )
    stage.wait("claimed", by=apart, after=healed)
    leave(stage, "hold-async", "rerun")


@LOST
def test_a_settlement_whose_commit_is_in_doubt_is_neither_lost_nor_repeated(
    bench: MakeBench, proxy: Proxy, forward: bool
) -> None:
    """The connection breaks around COMMIT: a new one asks what became of it, and the slot is
    settled once.
    """
    stage = bench("rerun,give-up,completing", missed_heartbeats_limit=WIDE)
    stage.start("apart", database_url=proxy.url)
    for _ in range(3):
        stage.wait("settled", after=stage.mark())
        proxy.lose_commit(**SETTLEMENT, forward=forward)
        assert proxy.lost.wait(PATIENCE)
    leave(stage, "rerun", "give-up", "completing")
    assert stage.events.all("claim_lost", "reaped") == []
    assert len({(line.job, line.slot) for line in stage.log.read()}) == len(
        [line for line in stage.log.read() if line.mark == "start"]
    )


@LOST
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(CLAIM, id="claim", marks=pytest.mark.extended),
        pytest.param(MARK, id="mark"),
    ],
)
def test_a_start_whose_commit_is_in_doubt_is_neither_lost_nor_repeated(
    bench: MakeBench, proxy: Proxy, words: dict[str, bytes], forward: bool
) -> None:
    """A claim that nobody learned of goes back; a mark that was not acknowledged starts
    nothing.
    """
    stage = bench("rerun,give-up", missed_heartbeats_limit=WIDE)
    stage.start("apart", database_url=proxy.url)
    for _ in range(2):
        stage.wait("settled", after=stage.mark())
        proxy.lose_commit(**words, forward=forward)
        assert proxy.lost.wait(PATIENCE)
    leave(stage, "rerun", "give-up")
    assert stage.events.all("reaped") == []
    if forward or words == MARK:
        assert stage.events.all("handed_back")


@LOST
def test_a_completion_whose_commit_is_in_doubt_is_neither_lost_nor_repeated(
    bench: MakeBench, proxy: Proxy, forward: bool
) -> None:
    """The handler's own commit, and nobody tells it what became of it: the slot ended well if its
    effect is there.
    """
    stage = bench("completing,completing-give-up", missed_heartbeats_limit=WIDE)
    stage.start("apart", way=proxy.url)
    for job in ("completing", "completing-give-up", "completing"):
        stage.wait("committed", job=job, after=stage.mark())
        proxy.lose_commit(said=b"", forward=forward)
        assert proxy.lost.wait(PATIENCE)
    leave(stage, "completing", "completing-give-up")
    effects = {
        (job, datetime.fromisoformat(key))
        for job, key in stage.rows("select job, key from effects")
    }
    jobs = ("completing", "completing-give-up")
    ended = {
        (job, slot): row for job in jobs for slot, row in stage.ledger(job).items()
    }
    assert effects == {one for one, row in ended.items() if row.outcome == "succeeded"}
    assert [row.outcome for row in ended.values()].count("failed") == (
        0 if forward else 3
    )
    told = {
        (seen["job"], seen["slot"]): seen["outcome"]
        for seen in stage.events.all("settled")
    }
    assert told == {
        one: row.outcome
        for one, row in ended.items()
        if row.outcome in ("succeeded", "failed")
    }
    assert stage.events.all("claim_lost", "reaped") == []


def test_a_mark_that_comes_too_late_starts_nothing(
    bench: MakeBench, proxy: Proxy
) -> None:
    """give_up: frozen while its mark is on the way, taken over meanwhile: the mark is refused, and
    nothing starts.
    """
    stage = bench("give-up")
    apart = stage.start("apart", database_url=proxy.url)
    stage.wait("settled", job="give-up", by=apart)
    proxy.hold(MARK["said"])
    assert proxy.holding.wait(PATIENCE)
    apart.freeze()
    # Race: what it has told last may not be read yet, so the row says which claim it holds.
    ((token,),) = stage.rows("select version from scheduled_tasks where picked")
    claim = stage.wait("claimed", by=apart, token=token)
    other = stage.start("other")
    reaped = stage.wait("reaped", job=claim["job"], token=claim["token"])
    assert reaped["outcome"] == "handed_back"
    stage.wait("settled", by=other, after=reaped)
    proxy.release()
    apart.thaw()
    stage.wait("claim_lost", by=apart, job=claim["job"], token=claim["token"])
    leave(stage, "give-up")
    assert (
        stage.events.all("handler_start", job=claim["job"], token=claim["token"]) == []
    )


@pytest.mark.extended
def test_all_sessions_ended_by_the_server_cost_nothing(bench: MakeBench) -> None:
    """pg_terminate_backend for everybody, again and again: no worker ends, no attempt is lost."""
    stage = bench("rerun,give-up,async,completing", missed_heartbeats_limit=WIDE)
    stage.start_all(2)
    for _ in range(3):
        stage.wait("settled", after=stage.mark())
        gone = stage.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like 'slotwise%'"
        )
        assert gone
    leave(stage, "rerun", "give-up", "async", "completing")
    assert stage.events.all("reaped") == []
