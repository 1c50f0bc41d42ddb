"""``finish_by``: deadlines, shares, and what they are worth on synthetic histories."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from tests.docs.markdown import ROOT

from slotwise import Every, InvalidJob, JobContext, job
from slotwise.jobs.finish_by import FEW, RUNS, FinishBy, share_at_risk
from slotwise.spi import define

VIENNA = ZoneInfo("Europe/Vienna")
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("by", "slot", "deadline"),
    [
        ("06:00", "2026-11-01T02:00+01:00", "2026-11-01T06:00+01:00"),
        ("06:00", "2026-11-01T06:00+01:00", "2026-11-02T06:00+01:00"),
        ("6:00", "2026-11-01T23:00+01:00", "2026-11-02T06:00+01:00"),
        ("06:00", "2026-10-24T22:00+02:00", "2026-10-25T06:00+01:00"),
        ("02:30", "2026-03-28T23:00+01:00", "2026-03-29T03:30+02:00"),
        ("2h", "2026-10-25T01:00+02:00", "2026-10-25T02:00+01:00"),
        (timedelta(hours=30), "2026-11-01T02:00+01:00", "2026-11-02T08:00+01:00"),
    ],
)
def test_the_deadline_of_a_slot(by: str | timedelta, slot: str, deadline: str) -> None:
    """The first such time after the slot in the zone of the job; or so long after it."""
    at = datetime.fromisoformat(slot).astimezone(UTC)
    found = FinishBy(by).deadline(at, VIENNA)
    assert found == datetime.fromisoformat(deadline)


@pytest.mark.parametrize(
    ("lasted", "elapsed", "left", "expected"),
    [
        pytest.param([10] * 19, 0, 5, None, id="too few runs"),
        pytest.param([10] * 20, 0, 5, (1.0, 20), id="all would miss"),
        pytest.param([10] * 20, 0, 10, (0.0, 20), id="just in time"),
        pytest.param([10] * 10 + [20] * 10, 0, 15, (0.5, 20), id="half of them"),
        pytest.param([10] * 80 + [20] * 20, 0, 15, (0.2, 100), id="few"),
        pytest.param([10] * 80 + [20] * 20, 10, 5, (0.2, 100), id="at least as long"),
        pytest.param(
            [10] * 80 + [20] * 20, 11, 4, (1.0, 20), id="only long ones left"
        ),
        pytest.param([10] * 81 + [20] * 19, 11, 4, None, id="too few that long"),
        pytest.param([10] * 5, 20, -1, (1.0, 0), id="its time has passed"),
        pytest.param([10] * 200 + [99] * 50, 0, 15, (0.0, 200), id="the last 200"),
    ],
)
def test_the_share(
    lasted: list[float],
    elapsed: float,
    left: float,
    expected: tuple[float, int] | None,
) -> None:
    durations = [one * MINUTE for one in lasted]
    assert share_at_risk(durations, elapsed * MINUTE, left * MINUTE) == expected
    assert (RUNS, FEW) == (200, 20)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("25:00", "25:00"),
        ("soon", "soon"),
        ("-1h", "never negative"),
        (timedelta(0), "more than zero"),
        (5, "finish_by"),
    ],
)
def test_a_mistake_is_one_line(value: object, words: str) -> None:
    @job(name="late", schedule=Every("1d"), finish_by=value)  # type: ignore[arg-type]
    def late(ctx: JobContext) -> None: ...

    with pytest.raises(InvalidJob, match=words) as found:
        define(late)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("risk", [0, 1.5, -1])
def test_a_risk_is_a_share(risk: float) -> None:
    @job(name="late", schedule=Every("1d"), finish_by="06:00", finish_risk=risk)
    def late(ctx: JobContext) -> None: ...

    with pytest.raises(InvalidJob, match="finish_risk"):
        define(late)


@pytest.mark.parametrize("by", ["06:00", timedelta(minutes=90)])
def test_a_row_keeps_it(by: str | timedelta) -> None:
    wanted = FinishBy(by, risk=0.7)
    slot = datetime(2026, 11, 1, tzinfo=UTC)
    found = FinishBy.read(wanted.document())
    assert found is not None
    assert found.deadline(slot, VIENNA) == wanted.deadline(slot, VIENNA)
    assert found.risk == 0.7
    for odd in (None, {}, {"by": 5, "risk": 1}, {"by": "soon", "risk": 0.5}, "06:00"):
        assert FinishBy.read(odd) is None


@pytest.mark.extended
def test_on_synthetic_histories() -> None:
    """As the page says, with the seed of the tool."""
    sys.path.insert(0, str(ROOT / "tools"))
    import finish_histories as tool

    for kind in (tool.steady, tool.trending, tool.weekly):
        found = tool.measure(kind)
        assert found["missed"] > 100, kind
        assert found["recall"] >= 0.9, kind
        assert found["precision"] >= 0.8, kind
    found = tool.measure(tool.bimodal)
    assert found["missed"] > 100
    assert abs(found["announced"] - found["came true"]) < 0.1
