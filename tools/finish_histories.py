"""Measure the forecasts of ``finish_by`` on synthetic histories: python3 tools/finish_histories.py

Each history is 600 daily runs of a job; the forecasts of the last 400 are judged, by what was known
at the time. A miss counts as recalled if it was reported 30 minutes before its time, or half the
usual duration if that is shorter. The seed is SEED.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from statistics import median

from slotwise.jobs.finish_by import RUNS, share_at_risk

SEED = 20261129
HISTORIES = 5
LENGTH = 600
#: Forecasts of each run, at equal distances until its time.
FORECASTS = 60
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class History:
    """Start after the slot and duration of each run, and the minutes after the slot by which it
    should have ended.
    """

    runs: list[tuple[float, float]]
    limit: float


@dataclass(frozen=True)
class Judged:
    """A run: whether it missed, and minutes before its time and share of its first report."""

    missed: bool
    ahead: float | None
    share: float


def steady(rng: random.Random) -> History:
    """The same duration but for noise; every tenth run starts late, by up to three durations."""
    usual = rng.uniform(20, 240)
    runs = []
    for _ in range(LENGTH):
        late = rng.uniform(0.1, 3) * usual if rng.random() < 0.1 else 0.0
        runs.append((late, usual * rng.lognormvariate(0, 0.04)))
    return History(runs, usual * 1.6)


def trending(rng: random.Random) -> History:
    """It grows to twice its duration in 100 runs after the first 150, and stays there."""
    usual = rng.uniform(60, 240)
    runs = []
    for number in range(LENGTH):
        growth = min(max(number - 150, 0), 100) / 100
        runs.append((0.0, usual * (1 + growth) * rng.lognormvariate(0, 0.04)))
    return History(runs, usual * 1.45)


def weekly(rng: random.Random) -> History:
    """One day of the week takes four times as long, and misses its time."""
    usual = rng.uniform(20, 90)
    runs = []
    for number in range(LENGTH):
        factor = 4 if number % 7 == 0 else 1
        runs.append((0.0, usual * factor * rng.lognormvariate(0, 0.01)))
    return History(runs, usual * 3)


def bimodal(rng: random.Random) -> History:
    """One run of three takes long, and about half of these miss their time."""
    usual = rng.uniform(20, 90)
    runs = []
    for _ in range(LENGTH):
        factor = 4 if rng.random() < 1 / 3 else 1
        runs.append((0.0, usual * factor * rng.lognormvariate(0, 0.15)))
    return History(runs, usual * 4)


def judge(history: History, risk: float = 0.5) -> list[Judged]:
    """Follow each run until its time, and forecast from the runs before it."""
    found = []
    for number in range(RUNS, len(history.runs)):
        before = history.runs[max(0, number - RUNS) : number]
        durations = [took * MINUTE for _, took in reversed(before)]
        start, took = history.runs[number]
        found.append(_judged(durations, start, took, history.limit, risk))
    return found


def _judged(
    durations: list[timedelta], start: float, took: float, limit: float, risk: float
) -> Judged:
    minute = 0.0
    while minute < min(start + took, limit):
        elapsed = max(minute - start, 0.0)
        forecast = share_at_risk(
            durations, elapsed * MINUTE, (limit - minute) * MINUTE
        )
        if forecast is not None and forecast[0] >= risk:
            return Judged(start + took > limit, limit - minute, forecast[0])
        minute += limit / FORECASTS
    return Judged(start + took > limit, None, 0.0)


def measure(
    kind: Callable[[random.Random], History], seed: int = SEED
) -> dict[str, float]:
    """Return recall, precision, and the share announced and come true, over all histories."""
    rng = random.Random(f"{seed} {kind.__name__}")
    missed = recalled = reported = true = 0
    announced = 0.0
    for _ in range(HISTORIES):
        history = kind(rng)
        usual = median(took for _, took in history.runs)
        wanted = min(30.0, usual / 2)
        for one in judge(history):
            missed += one.missed
            recalled += one.missed and one.ahead is not None and one.ahead >= wanted
            reported += one.ahead is not None
            true += one.missed and one.ahead is not None
            announced += one.share
    return {
        "missed": missed,
        "recall": recalled / max(missed, 1),
        "precision": true / max(reported, 1),
        "announced": announced / max(reported, 1),
        "came true": true / max(reported, 1),
    }


if __name__ == "__main__":
    for one in (steady, trending, weekly, bimodal):
        told = ", ".join(f"{name} {value:.2f}" for name, value in measure(one).items())
        print(f"{one.__name__}: {told}")
