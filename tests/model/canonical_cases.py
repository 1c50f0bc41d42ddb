"""The canonical cases of "Where policies meet": a table of inputs and of what each catch-up policy
makes of them.

Cases whose name is a number are those with which the rules were chosen. The others are named by
the rule that they show, and follow from its text.

The table is data: ``Play`` does what a case says to any ``Side``, such as the model or the
product. Times are seconds after an epoch. An expectation names every slot that has a fate when the
case ends:

| text | the slot … |
|---|---|
| ``60 r`` | ran, with one attempt |
| ``60#2`` | ran, and its second attempt succeeded |
| ``120-240 o`` | and those up to 240 were skipped: overlap |
| ``l``, ``c``, ``p`` | skipped: late, collapsed, paused |
| ``60 lost`` | has this outcome |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

#: The policies of catch-up, one column each.
NONE, LATEST, FIRST, ALL = COLUMNS = ("none", "latest", "first", "all")

Span = tuple[float, float]


@dataclass(frozen=True)
class Run:
    """One attempt: how long its handler takes, and how it ends: "succeed", "fail" or "snooze" for
    ``pause`` seconds.
    """

    takes: float
    ends: str = "succeed"
    pause: float = 0


@dataclass(frozen=True)
class Kill:
    """The worker that runs something dies. ``has_completed``: after the commit of
    ``complete_in``.
    """

    at: float
    last_beat: float
    taken_over: float
    has_completed: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """What happens to a job. A worker looks for due rows each ``poll`` seconds, and after each
    settlement.
    """

    title: str
    expected: dict[str, str]
    until: float
    #: When the job is planned: its first slot comes after that.
    begin: float = 1
    every: float = 60
    handler: float = 5
    grace: float = 60
    poll: float = 1
    overlap: str = "skip"
    #: The ``max`` of ``allow`` or ``queue``.
    places: int = 1
    #: Of ``all``.
    max: int | None = None
    window: float | None = None
    pace: float | None = None
    start_within: float | None = None
    gives_up: bool = False
    #: Retries, and whether they may fall behind the next slot.
    attempts: int = 1
    retry_pause: float = 13
    past_next_slot: bool = False
    #: Attempts that are not like the others, by slot, or by "slot#attempt" from the second one on.
    runs: dict[str, Run] = field(default_factory=dict)
    #: Nobody looks for due rows: workers are down, or busy.
    unwatched: tuple[Span, ...] = ()
    #: No worker reaches the database. Handlers go on.
    database_away: tuple[Span, ...] = ()
    kills: tuple[Kill, ...] = ()
    #: A pause, and whether its slots are replayed.
    paused: Span | None = None
    replay: bool = False
    #: When a deploy comes, and how many seconds apart slots are from then on.
    deploy: tuple[float, int] | None = None

    def run(self, slot: float, attempt: int) -> Run:
        name = f"{slot:g}" if attempt == 1 else f"{slot:g}#{attempt}"
        return self.runs.get(name, Run(self.handler))


def alike(expected: str) -> dict[str, str]:
    """The same for each policy."""
    return dict.fromkeys(COLUMNS, expected)


KILLED_BEFORE_A_SLOT = (Kill(70, last_beat=70, taken_over=135),)
KILLED_LATE = (Kill(175, last_beat=170, taken_over=240),)

CASES: dict[str, Case] = {
    "1": Case(
        title="idle, and all workers down from 66 to 395",
        unwatched=((66, 395),),
        until=430,
        expected={
            NONE: "60 r, 120-300 l, 360-420 r",
            LATEST: "60 r, 120-300 c, 360-420 r",
            FIRST: "60-120 r, 180-360 c, 420 r",
            ALL: "60-420 r",
        },
    ),
    "2": Case(
        title="a run takes 200 s, without an outage",
        runs={"60": Run(200)},
        until=310,
        expected=alike("60 r, 120-240 o, 300 r"),
    ),
    "2, queued": Case(
        title="a run takes 200 s, without an outage, and queue_all",
        overlap="queue_all",
        runs={"60": Run(200)},
        until=310,
        expected=alike("60-300 r"),
    ),
    "3": Case(
        title="killed at 70, slot 120 comes due within the lease, taken over at 135",
        runs={"60": Run(50)},
        kills=KILLED_BEFORE_A_SLOT,
        until=190,
        expected=alike("60#2, 120-180 r"),
    ),
    "4": Case(
        title="runs since 60, killed at 175, taken over at 240",
        runs={"60": Run(300)},
        kills=KILLED_LATE,
        until=299,
        expected={
            NONE: "60#2, 120 o, 180 l, 240 r",
            LATEST: "60#2, 120 o, 180 c, 240 r",
            FIRST: "60#2, 120 o, 180 r, 240 c",
            ALL: "60#2, 120 o, 180-240 r",
        },
    ),
    "5": Case(
        title="as 4, with queue_all",
        overlap="queue_all",
        runs={"60": Run(300)},
        kills=KILLED_LATE,
        until=299,
        expected={
            NONE: "60#2, 120 r, 180 l, 240 r",
            LATEST: "60#2, 120 r, 180 c, 240 r",
            FIRST: "60#2, 120-180 r, 240 c",
            ALL: "60#2, 120-240 r",
        },
    ),
    "6": Case(
        title="a snooze is due at 165, and all workers are down from 70 to 400",
        runs={"60": Run(5, "snooze", 100)},
        unwatched=((70, 400),),
        until=450,
        expected={
            NONE: "60#2, 120 o, 180-300 l, 360-420 r",
            LATEST: "60#2, 120 o, 180-300 c, 360-420 r",
            FIRST: "60#2, 120 o, 180 r, 240-360 c, 420 r",
            ALL: "60#2, 120 o, 180-420 r",
        },
    ),
    "6, a retry": Case(
        title="as 6, but a retry is due at 165, which may fall behind the next slot",
        attempts=2,
        retry_pause=100,
        past_next_slot=True,
        runs={"60": Run(5, "fail")},
        unwatched=((70, 400),),
        until=450,
        expected={
            NONE: "60#2, 120 o, 180-300 l, 360-420 r",
            LATEST: "60#2, 120 o, 180-300 c, 360-420 r",
            FIRST: "60#2, 120 o, 180 r, 240-360 c, 420 r",
            ALL: "60#2, 120 o, 180-420 r",
        },
    ),
    "7": Case(
        title="a retry due at 78 is claimed 3 s late, no slot comes due in between, and "
        "it takes 150 s",
        attempts=2,
        retry_pause=13,
        runs={"60": Run(5, "fail"), "60#2": Run(150)},
        unwatched=((77.5, 81),),
        until=250,
        expected=alike("60#2, 120-180 o, 240 r"),
    ),
    "8": Case(
        title="two outages while a queue_all waits",
        overlap="queue_all",
        runs={"60": Run(200)},
        unwatched=((260, 500), (505, 700)),
        until=730,
        expected={
            NONE: "60-240 r, 300-600 l, 660-720 r",
            LATEST: "60-240 r, 300-600 c, 660-720 r",
            FIRST: "60-300 r, 360-660 c, 720 r",
            ALL: "60-480 r, 540 running",
        },
    ),
    "9": Case(
        title="a poll interval of 10 s, and a slot each second",
        every=1,
        begin=0.5,
        poll=10,
        handler=0.05,
        until=25,
        expected={
            NONE: "1-9 l, 10 r, 11-19 l, 20 r",
            LATEST: "1-9 c, 10 r, 11-19 c, 20 r",
            FIRST: "1 r, 2-10 c, 11 r, 12-20 c",
            ALL: "1-20 r",
        },
    ),
    "10": Case(
        title="a slot each second, a handler of 0.4 s, and one look 1.25 s late: 5 "
        "comes due during a run",
        every=1,
        begin=0.5,
        handler=0.4,
        unwatched=((2.5, 4.25),),
        until=8.8,
        expected={
            NONE: "1-2 r, 3 l, 4-8 r",
            LATEST: "1-2 r, 3 c, 4-8 r",
            FIRST: "1-3 r, 4 c, 5-8 r",
            ALL: "1-8 r",
        },
    ),
    "11": Case(
        title="all workers are busy: slot 120 is first looked at at 300",
        unwatched=((61, 300),),
        until=350,
        expected={
            NONE: "60 r, 120-240 l, 300 r",
            LATEST: "60 r, 120-240 c, 300 r",
            FIRST: "60-120 r, 180-300 c",
            ALL: "60-300 r",
        },
    ),
    "12": Case(
        title="hourly, a handler of 60 s, and the last run of a tail starts 50 s before "
        "the next slot",
        every=3600,
        handler=60,
        unwatched=((1, 14230),),
        until=14500,
        expected={
            NONE: "3600-10800 l, 14400 r",
            LATEST: "3600-7200 c, 10800-14400 r",
            FIRST: "3600 r, 7200-10800 c, 14400 r",
            ALL: "3600-14400 r",
        },
    ),
    "13": Case(
        title="a handler of 4.9 s, a slot each second, and one look 1.3 s late",
        every=1,
        begin=11.5,
        handler=4.9,
        unwatched=((11.5, 13.3),),
        until=28.95,
        expected={
            NONE: "12 l, 13 r, 14-18 o, 19 r, 20-23 o, 24 r, 25-28 o",
            LATEST: "12 c, 13 r, 14-18 o, 19 r, 20-23 o, 24 r, 25-28 o",
            FIRST: "12 r, 13 c, 14-18 o, 19 r, 20-23 o, 24 r, 25-28 o",
            ALL: "12-13 r, 14-23 o, 24 r, 25-28 o",
        },
    ),
    "14": Case(
        title="a handler of 90 s, a slot each minute, at most 3, and all workers down "
        "from 400 to 800",
        begin=-1,
        handler=90,
        max=3,
        kills=(Kill(400, last_beat=395, taken_over=820),),
        unwatched=((400, 800),),
        until=1295,
        expected={
            NONE: "0 r, 60 o, 120 r, 180 o, 240 r, 300 o, 360#2, 420-840 l, 900 r, "
            "960 o, 1020 r, 1080 o, 1140 r, 1200 o, 1260 running",
            LATEST: "0 r, 60 o, 120 r, 180 o, 240 r, 300 o, 360#2, 420-840 c, 900 r, "
            "960 o, 1020 r, 1080 o, 1140 r, 1200 o, 1260 running",
            FIRST: "0 r, 60 o, 120 r, 180 o, 240 r, 300 o, 360#2, 420 r, 480-900 c, "
            "960 o, 1020 r, 1080 o, 1140 r, 1200 o, 1260 running",
            ALL: "0 r, 60 o, 120 r, 180 o, 240 r, 300 o, 360#2, 420-720 c, 780-900 r, "
            "960-1140 o, 1200 r, 1260 o",
        },
    ),
    "15": Case(
        title="a slot each 30 s, the database away from 63 to 100, and the handler ends at 65",
        every=30,
        begin=31,
        database_away=((63, 100),),
        until=125,
        expected=alike("60-120 r"),
    ),
    "16": Case(
        title="as 15, but away until 400, beyond the lease: the claim is settled under its token",
        every=30,
        begin=31,
        database_away=((63, 400),),
        until=475,
        expected={
            NONE: "60 r, 90-360 l, 390-450 r",
            LATEST: "60 r, 90-360 c, 390-450 r",
            FIRST: "60-90 r, 120-390 c, 420-450 r",
            ALL: "60-450 r",
        },
    ),
    "17": Case(
        title="allow(1), and an outage from 65 to 500 during the run of 60",
        overlap="allow",
        runs={"60": Run(30)},
        unwatched=((65, 500),),
        kills=(Kill(65, last_beat=65, taken_over=500),),
        until=560,
        expected={
            NONE: "60#2, 120-420 l, 480-540 r",
            LATEST: "60#2, 120-420 c, 480-540 r",
            FIRST: "60#2, 120 r, 180-480 c, 540 r",
            ALL: "60#2, 120-540 r",
        },
    ),
    "18": Case(
        title="a queue waits during a pause from 201 to 400, which is ended without a replay",
        overlap="queue_all",
        runs={"60": Run(140)},
        unwatched=((200, 201),),
        paused=(201, 400),
        until=430,
        expected=alike("60 r, 120-360 p, 420 r"),
    ),
    "18a": Case(
        title="as 18, with a replay: the queue runs, and catch-up decides about the "
        "slots of the pause",
        overlap="queue_all",
        runs={"60": Run(140)},
        unwatched=((200, 201),),
        paused=(201, 400),
        replay=True,
        until=470,
        expected={
            NONE: "60-180 r, 240-300 l, 360-420 r",
            LATEST: "60-180 r, 240-300 c, 360-420 r",
            FIRST: "60-240 r, 300-360 c, 420 r",
            ALL: "60-420 r",
        },
    ),
    "19": Case(
        title="a deploy at 150 during a run: the older text's slots up to then, the "
        "newer text's after it",
        runs={"60": Run(200)},
        deploy=(150, 100),
        until=310,
        expected=alike("60 r, 120 o, 200 o, 300 r"),
    ),
    "19, an absence": Case(
        title="killed at 110, a deploy at 150, taken over at 250: instants stand",
        runs={"60": Run(100)},
        kills=(Kill(110, last_beat=110, taken_over=250),),
        deploy=(150, 100),
        until=310,
        expected={
            NONE: "60#2, 120 l, 200 r, 300 r",
            LATEST: "60#2, 120 c, 200 r, 300 r",
            FIRST: "60#2, 120 r, 200 c, 300 r",
            ALL: "60#2, 120 r, 200 r, 300 r",
        },
    ),
    "20": Case(
        title="as 3, but complete_in was committed before the worker died",
        runs={"60": Run(50)},
        kills=(Kill(70, last_beat=70, taken_over=135, has_completed=True),),
        until=190,
        expected=alike("60-180 r"),
    ),
    "1a": Case(
        title="a waiting retry holds the job until it is due plus one poll interval",
        attempts=2,
        retry_pause=54.5,
        runs={"60": Run(5, "fail")},
        unwatched=((119.2, 120.2),),
        until=190,
        expected=alike("60#2, 120 o, 180 r"),
    ),
    "1b": Case(
        title="on_lost give_up, killed 20 s before a slot: the claim held the job to "
        "its last heartbeat",
        gives_up=True,
        runs={"60": Run(100)},
        kills=(Kill(100, last_beat=100, taken_over=165),),
        until=190,
        expected=alike("60 lost, 120-180 r"),
    ),
    "2a": Case(
        title="a retry after a lost attempt does not move the beginning of the absence",
        attempts=2,
        runs={"60": Run(100), "60#2": Run(5, "fail")},
        until=310,
        kills=(Kill(110, last_beat=110, taken_over=250),),
        expected={
            NONE: "60#3, 120-180 l, 240-300 r",
            LATEST: "60#3, 120-180 c, 240-300 r",
            FIRST: "60#3, 120 r, 180-240 c, 300 r",
            ALL: "60#3, 120-300 r",
        },
    ),
    "3a": Case(
        title="queue(2) decides anew at each settlement: a waiting slot gives way to newer ones",
        overlap="queue",
        places=2,
        runs={"60": Run(250), "240": Run(130)},
        until=490,
        expected=alike("60 r, 120-180 o, 240 r, 300 o, 360-480 r"),
    ),
    "3b": Case(
        title="a queue does not lift start_within",
        overlap="queue_all",
        start_within=30,
        runs={"60": Run(200)},
        until=310,
        expected=alike("60 r, 120-180 l, 240-300 r"),
    ),
    "5a": Case(
        title="a second outage during a tail: the tail is bounded as if it had been one",
        max=3,
        unwatched=((61, 400), (405, 1000)),
        until=1030,
        expected={ALL: "60 r, 120-180 c, 240 r, 300-780 c, 840-1020 r"},
    ),
    "5b": Case(
        title="a handler of 90 s, and the last slot of a tail is lost: the absence "
        "extends the tail",
        handler=90,
        max=3,
        unwatched=((1, 200),),
        kills=(Kill(400, last_beat=395, taken_over=700),),
        until=1065,
        expected={ALL: "60-120 r, 180#2, 240-600 c, 660-780 r, 840-1020 o"},
    ),
    "5c": Case(
        title="a handler of 90 s, and the database is away during a tail: its "
        "settlement extends the tail",
        handler=90,
        max=2,
        unwatched=((1, 130),),
        database_away=((200, 500),),
        until=685,
        expected={ALL: "60 r, 120-360 c, 420-480 r, 540-660 o"},
    ),
    "5d": Case(
        title="a handler of 250 s, and a window of 200 s: no slot of the tail may start "
        "after the first one's run",
        handler=250,
        window=200,
        unwatched=((61, 800),),
        until=1075,
        expected={ALL: "60 r, 120-300 o, 360-540 l, 600 r, 660-780 l, 840-1020 o"},
    ),
    "5e": Case(
        title="a tail keeps its pace: 300 starts at 370, and 360 not before 410",
        pace=40,
        unwatched=((61, 250),),
        until=400,
        expected={ALL: "60-300 r"},
    ),
    "5f": Case(
        title="as 13, but the tail's next look is 1 s late, and a slot comes due by "
        "then: within a poll interval",
        every=1,
        begin=11.5,
        handler=4.8,
        unwatched=((11.5, 13.3), (18.05, 19.05)),
        until=28.5,
        expected={ALL: "12-13 r, 14-23 o, 24 running"},
    ),
    "6a": Case(
        title="allow(1), a run of 200 s, and no outage",
        overlap="allow",
        runs={"60": Run(200)},
        until=310,
        expected=alike("60 r, 120-240 o, 300 r"),
    ),
    "6b": Case(
        title="cancel_previous, and a handler that goes on for 200 s: at most one waits",
        overlap="cancel_previous",
        runs={"60": Run(200)},
        until=310,
        expected=alike("60 r, 120-180 o, 240-300 r"),
    ),
    "6c": Case(
        title="cancel_previous, a run of 300 s, and the slots are looked at late",
        overlap="cancel_previous",
        runs={"60": Run(300)},
        unwatched=((61, 200),),
        until=390,
        expected={
            NONE: "60 r, 120-300 l, 360 r",
            LATEST: "60 r, 120-300 c, 360 r",
            FIRST: "60-120 r, 180-360 c",
            ALL: "60-360 r",
        },
    ),
    "7a": Case(
        title="after an outage a retry is made, though later slots have come",
        attempts=2,
        retry_pause=13,
        unwatched=((61, 400),),
        until=470,
        runs={"120": Run(5, "fail"), "360": Run(5, "fail")},
        expected={
            NONE: "60 r, 120-300 l, 360#2, 420 o",
            LATEST: "60 r, 120-300 c, 360#2, 420 o",
            FIRST: "60 r, 120#2, 180-360 c, 420 o",
            ALL: "60 r, 120#2, 180-300 r, 360#2, 420 r",
        },
    ),
    "7b": Case(
        title="a retry is not made if it would fall behind the next slot",
        attempts=2,
        retry_pause=13,
        runs={"60": Run(50, "fail")},
        until=190,
        expected=alike("60 failed, 120-180 r"),
    ),
}


class Side(Protocol):
    """What plays a case: the model, or the product. Slots are named by their seconds."""

    def pass_to(self, at: float) -> None:
        """Let time pass."""

    def look(self) -> list[tuple[float, int]]:
        """Claim and start what is due. Return slot and attempt of each start."""

    def returned(self, slot: float) -> None:
        """The handler has returned; its outcome is not settled yet."""

    def settle(self, slot: float, ends: str, pause: float) -> None:
        """Settle the attempt that has returned: "succeed", "fail", or "snooze" for so many
        seconds.
        """

    def kill(self, slot: float, last_beat: float, *, has_completed: bool) -> None:
        """The worker that runs this slot dies."""

    def take_over(self, slot: float) -> None:
        """A reaper finds the lost claim."""

    def pause(self) -> None:
        """Pause the job."""

    def resume(self, *, replay: bool) -> None:
        """End the pause."""

    def deploy(self, every: int) -> None:
        """Plan the job with another schedule."""

    def fates(self) -> dict[float, str]:
        """What the ledger says of each slot, in the letters of an expectation."""


class Play:
    """Plays one case. At each instant, handlers return first; then settlements, take-overs and
    claims follow.
    """

    def __init__(self, case: Case, side: Side) -> None:
        self.case, self.side = case, side
        #: By slot: when its handler returns, and how.
        self.running: dict[float, tuple[float, Run]] = {}
        #: Handlers that have returned while the database was away.
        self.unsettled: dict[float, Run] = {}
        self.lost: list[tuple[float, float]] = []
        self.attempts: dict[float, int] = {}

    def go(self) -> None:
        """Play it to its end."""
        at = self.case.begin
        while at <= self.case.until:
            self.side.pass_to(at)
            self._do_operations(at)
            has_settled = self._settle(at)
            has_settled |= self._take_over(at)
            is_poll = at % self.case.poll == 0 or at in self._ends_of_spans()
            if (is_poll or has_settled) and not self._within(
                (*self.case.unwatched, *self.case.database_away), at
            ):
                self._look(at)
            at = self._next(at)

    def _look(self, at: float) -> None:
        for slot, attempt in self.side.look():
            run = self.case.run(slot, attempt)
            self.running[slot] = (round(at + run.takes, 3), run)

    def _settle(self, at: float) -> bool:
        for slot, (end, run) in list(self.running.items()):
            if end <= at:
                del self.running[slot]
                self.side.returned(slot)
                self.unsettled[slot] = run
        if self._within(self.case.database_away, at) or not self.unsettled:
            return False
        for slot, run in self.unsettled.items():
            self.side.settle(slot, run.ends, run.pause)
        self.unsettled.clear()
        return True

    def _do_operations(self, at: float) -> None:
        for kill in self.case.kills:
            if kill.at == at:
                self._kill(kill)
        if self.case.paused is not None and at in self.case.paused:
            if at == self.case.paused[0]:
                self.side.pause()
            else:
                self.side.resume(replay=self.case.replay)
        if self.case.deploy is not None and at == self.case.deploy[0]:
            self.side.deploy(self.case.deploy[1])

    def _kill(self, kill: Kill) -> None:
        for slot in list(self.running):
            del self.running[slot]
            self.side.kill(slot, kill.last_beat, has_completed=kill.has_completed)
            self.lost.append((kill.taken_over, slot))

    def _take_over(self, at: float) -> bool:
        found = [one for one in self.lost if one[0] <= at]
        for one in found:
            self.lost.remove(one)
            self.side.take_over(one[1])
        return bool(found)

    def _ends_of_spans(self) -> list[float]:
        paused = [self.case.paused] if self.case.paused else []
        return [
            end for _, end in (*self.case.unwatched, *self.case.database_away, *paused)
        ]

    @staticmethod
    def _within(spans: tuple[Span, ...], at: float) -> bool:
        return any(start <= at < end for start, end in spans)

    def _next(self, at: float) -> float:
        """The next instant at which something happens."""
        instants = [end for end, _ in self.running.values()]
        instants += [over for over, _ in self.lost]
        instants += [kill.at for kill in self.case.kills]
        instants += [
            *self._ends_of_spans(),
            *(self.case.paused or ()),
            *(self.case.deploy or ())[:1],
        ]
        instants.append(at - at % self.case.poll + self.case.poll)
        return min(instant for instant in instants if instant > at)


def parse(expected: str, every: float) -> dict[float, str]:
    """Read an expectation: the letter of each slot, or "#2"."""
    found: dict[float, str] = {}
    for part in expected.split(", "):
        if "#" in part:
            slot, _, attempts = part.partition("#")
            found[float(slot)] = f"#{attempts}"
            continue
        slots, letter = part.split()
        first, _, last = slots.partition("-")
        slot_at = float(first)
        while slot_at <= float(last or first):
            found[slot_at] = letter
            slot_at += every
    return found
