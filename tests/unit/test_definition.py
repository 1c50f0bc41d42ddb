"""Reading a job once, at registration: what is taken, and what is refused with the cure."""

from __future__ import annotations

import functools
from queue import Queue
from typing import Any

import pytest

from slotwise import (
    CatchUp,
    Cron,
    Disabled,
    DistributedJob,
    Every,
    FixedDelay,
    InvalidJob,
    JobContext,
    Once,
    OneTimeTask,
    Overlap,
    Retry,
    job,
    task,
)
from slotwise.jobs.definition import POLICIES, Policy, policy_of
from slotwise.jobs.policies import TASK_RETRY
from slotwise.spi import Definition, define

HOURLY = Every("1h")


class Report(DistributedJob):
    name = "report"
    schedule = HOURLY

    def execute(self, ctx: JobContext) -> None:
        pass


class Mail(OneTimeTask):
    name = "mail"

    def execute(self, ctx: JobContext) -> None:
        pass


def a_job(**attributes: Any) -> DistributedJob:
    """An instance of a class with these class attributes."""
    return type("Report", (Report,), attributes)()


def a_task(**attributes: Any) -> OneTimeTask:
    return type("Mail", (Mail,), attributes)()


def refusal(subject: object) -> str:
    with pytest.raises(InvalidJob) as refused:
        define(subject)
    return str(refused.value)


# -- what is taken --------------------------------------------------------------------------------


class InConstructor(DistributedJob):
    def __init__(
        self, name: str
    ) -> None:  # without super().__init__(), as users write it
        self.name = name
        self.schedule = HOURLY
        self.max_lost = 5

    def execute(self, ctx: JobContext) -> None:
        pass


class ByProperty(Report):
    @property
    def name(self) -> str:  # type: ignore[override]
        return "report"

    @property
    def max_lost(self) -> int:  # type: ignore[override]
        return 5


class ByMethod(Report):
    def name(self) -> str:  # type: ignore[override]
        return "report"

    def max_lost(self) -> int:  # type: ignore[override]
        return 5


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(a_job(max_lost=5), id="class attributes"),
        pytest.param(InConstructor("report"), id="set in the constructor"),
        pytest.param(ByProperty(), id="properties"),
        pytest.param(ByMethod(), id="methods"),
        pytest.param(ByMethod, id="a class without arguments"),
        pytest.param(
            job(name="report", schedule=HOURLY, max_lost=5)(print), id="a function"
        ),
    ],
)
def test_every_way_of_saying_it(subject: object) -> None:
    """Attributes, constructor, properties, methods, keywords of the decorator: all the same."""
    found = define(subject)
    assert (found.name, found.schedule, found.max_lost) == ("report", HOURLY, 5)
    assert found.is_job


def test_each_is_read_once() -> None:
    """A name that changes later is not a job that changes later."""
    read: list[str] = []

    class Counting(Report):
        @property
        def name(self) -> str:  # type: ignore[override]
            read.append("name")
            return f"report-{len(read)}"

    assert define(Counting()).name == "report-1"
    assert read == ["name"]


def test_what_a_job_is_without_saying_so() -> None:
    """The defaults of the contract."""
    found = define(Report())
    assert (found.catch_up, found.overlap) == (CatchUp.latest(), Overlap.skip())
    assert (found.on_lost, found.max_lost, found.retry) == ("rerun", 3, None)
    assert not found.gives_up


def test_a_task_is_tried_ten_times_without_saying_so() -> None:
    """One-time tasks have no next slot that would be the next try."""
    found = define(Mail())
    assert found.retry == TASK_RETRY
    assert found.schedule is None
    assert not found.is_job


@pytest.mark.parametrize(
    ("subject", "is_async"),
    [
        pytest.param(Report(), False, id="def"),
        pytest.param(
            type("Later", (Report,), {"execute": lambda self, ctx: None})(),
            False,
            id="lambda",
        ),
    ],
)
def test_def_runs_on_a_thread(subject: object, is_async: bool) -> None:
    """The colour of the handler says where it runs."""
    assert define(subject).is_async is is_async


async def _later(ctx: JobContext) -> None:
    pass


async def _later_with(word: str, ctx: JobContext) -> None:
    pass


@pytest.mark.parametrize(
    "function",
    [_later, functools.partial(_later_with, "hello")],
    ids=["function", "partial"],
)
def test_async_def_runs_on_the_loop(function: Any) -> None:
    """Also where it is wrapped in a partial."""
    assert define(job(name="report", schedule=HOURLY)(function)).is_async


def test_the_decorated_function_can_still_be_called() -> None:
    """What is under @job or @task is a job and a function."""

    @task(name="double", retry=None)
    def double(ctx: Any) -> int:
        """Twice."""
        return 2 * int(ctx)

    assert double(21) == 42  # type: ignore[arg-type]
    assert double.__doc__ == "Twice."
    assert define(double).retry is None


def test_attributes_of_the_users_own_are_none_of_our_business() -> None:
    """Any name that is not nearly one of ours."""
    assert (
        define(
            a_job(template="x", database=object(), repository=1, _retries=3, items=[])
        ).name
        == "report"
    )


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        pytest.param(None, "cannot be None", id="None"),
        pytest.param("report", "'report' is not a job", id="a text"),
        pytest.param(print, "is not a job", id="a bare function"),
        pytest.param(
            InConstructor,
            "InConstructor is a class and cannot be made without arguments",
            id="a class",
        ),
        pytest.param(
            DistributedJob,
            "DistributedJob is a class and cannot be made",
            id="the base itself",
        ),
    ],
)
def test_what_is_no_job(subject: object, words: str) -> None:
    """Anything but a job, a task, or a class of one that takes no arguments."""
    assert words in refusal(subject)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param(None, "name is None", id="none"),
        pytest.param(7, "name is 7; expected a string", id="a number"),
        pytest.param("", "cannot be blank", id="empty"),
        pytest.param(" \t", "cannot be blank", id="blank"),
        pytest.param(" report", "begin or end with a blank", id="a blank in front"),
        pytest.param("re\nport", "control characters", id="a line break"),
        pytest.param("re\x00port", "control characters", id="NUL"),
        pytest.param("r" * 101, "has 101 characters; at most 100", id="too long"),
    ],
)
def test_names_that_cannot_work(name: Any, words: str) -> None:
    """A name is a text for people and logs, unique in the cluster, of at most 100 characters."""
    message = refusal(a_job(name=name))
    assert words in message
    assert message.startswith("Report.name")


def test_a_name_of_a_hundred_characters_is_taken() -> None:
    """The limit is included, and counts characters."""
    assert len(define(a_job(name="ü" * 100)).name) == 100


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(None, id="none"),
        pytest.param(b"0 2 * * *", id="bytes"),
        pytest.param(Every, id="a class"),
        pytest.param(3600, id="a number"),
    ],
)
def test_schedules_that_are_none(schedule: Any) -> None:
    """A job says when: with a schedule, or its text."""
    message = refusal(a_job(schedule=schedule))
    assert message.startswith("Report.schedule is")
    assert "expected a schedule such as" in message


@pytest.mark.parametrize(
    ("attribute", "meant"),
    [
        ("catchup", "catch_up"),
        ("prio", "priority"),
        ("isolated", "isolation"),
        ("catchUp", "catch_up"),
        ("misfire", "catch_up"),
        ("coalesce", "catch_up"),
        ("on_loss", "on_lost"),
        ("on_dead", "on_lost"),
        ("onlost", "on_lost"),
        ("retries", "retry"),
        ("max_retries", "retry"),
        ("overlaps", "overlap"),
        ("max_instances", "overlap"),
        ("max_loss", "max_lost"),
    ],
)
def test_a_near_miss_is_refused(attribute: str, meant: str) -> None:
    """`catchup = …` would silently change nothing: the error names the word that was meant."""
    assert f"did you mean {meant}?" in refusal(a_job(**{attribute: 1}))


@pytest.mark.parametrize(
    ("attribute", "meant"),
    [
        ("payload_versoin", "payload_version"),
        ("paylaod", "payload"),
        ("upgrade", "upgrades"),
        ("codecs", "codec"),
    ],
)
def test_a_near_miss_of_what_is_said_of_the_data(attribute: str, meant: str) -> None:
    """As of any other word: on a class, and as a keyword."""
    source = type(
        "Ship",
        (OneTimeTask,),
        {"name": "ship", "execute": lambda self, ctx: None, attribute: 1},
    )
    for subject in (source(), task(name="ship", **{attribute: 1})(print)):
        with pytest.raises(InvalidJob, match=rf"did you mean {meant}\?"):
            define(subject)


@pytest.mark.parametrize(
    ("make", "absent", "present"),
    [
        (task(name="a", lane=1), "catch_up", "payload_version"),
        (job(name="a", schedule="-", lane=1), "codec", "payload_version"),
    ],
    ids=["task", "job"],
)
def test_a_keyword_that_nobody_knows(make: Any, absent: str, present: str) -> None:
    """Those that are known are named: a task's, or a job's."""
    with pytest.raises(
        InvalidJob, match="unknown keyword lane; known are "
    ) as refused:
        define(make(print))
    assert absent not in str(refused.value)
    assert present in str(refused.value)


def test_near_misses_count_where_they_are_set() -> None:
    """On the instance, and on any class of the user's own."""

    class Careful(Report):
        def __init__(self) -> None:
            self.catchup = "none"

    assert "did you mean catch_up?" in refusal(Careful())


class RetryService:
    """A user's own object under a word of ours."""


LOOKS_LIKE_OURS: list[tuple[str, Any, str]] = [
    ("queue", "emails", "runs_on"),
    ("tags", ["gpu", "big"], "runs_on"),
    ("tags", {"gpu"}, "runs_on"),
    ("rate", "5/m", "rate_limit"),
    ("retries", 3, "retry"),
    ("retries", Retry(), "retry"),
    ("tag", "gpu", "runs_on"),
    ("max_attempts", 3, "retry"),
    ("failure_policy", Retry(), "retry"),
]


@pytest.mark.parametrize("make", [a_job, a_task])
@pytest.mark.parametrize(("name", "value", "meant"), LOOKS_LIKE_OURS)
def test_a_setting_under_another_librarys_name(
    make: Any, name: str, value: Any, meant: str
) -> None:
    """Would change nothing: refused with the right name, as a class attribute, on self and as a
    keyword.
    """
    if make is a_job and meant == "rate_limit":
        meant = "min_interval"  # there is no rate_limit for jobs
    assert refusal(make(**{name: value})).endswith(
        f".{name}: did you mean {meant}? otherwise rename your own attribute"
    )
    subject = make()
    vars(subject)[name] = value
    assert f".{name}: did you mean {meant}?" in refusal(subject)
    keyword = (
        job(name="t", schedule=HOURLY, **{name: value})
        if make is a_job
        else task(name="t", **{name: value})
    )
    assert refusal(keyword(print)).endswith(f".{name}: did you mean {meant}?")


def test_a_policy_under_any_name() -> None:
    """Is one of ours by its type: refused unless the job has the right name for it, too."""
    assert "Report.if_missed: did you mean catch_up?" in refusal(
        a_job(if_missed=CatchUp.none())
    )
    assert "Report.parallel: did you mean overlap?" in refusal(
        a_job(parallel=Overlap.allow(2))
    )
    assert define(a_job(usual=Retry(), retry=Retry())).retry is not None


@pytest.mark.parametrize("make", [a_job, a_task])
@pytest.mark.parametrize(
    "value",
    [
        RetryService(),
        Queue(),
        [RetryService()],
        [],
        None,
        print,
        property(lambda self: 1 / 0),
    ],
)
def test_an_injected_object_under_such_a_name(make: Any, value: Any) -> None:
    """Is the user's own, and left alone; what a property gives is not asked."""
    for name in ("queue", "tags", "rate", "retries"):
        define(make(**{name: value}))


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        (
            "retry",
            RetryService(),
            "Report.retry is a RetryService, expected Retry or None; write "
            "Retry.exponential(max_attempts=3), or rename your own attribute",
        ),
        (
            "catch_up",
            "latest",
            "Report.catch_up is 'latest', expected CatchUp; write CatchUp.latest(), .none(), ",
        ),
        (
            "catch_up",
            "newest",
            "write CatchUp.latest(), .none(), .first() or .all(), or rename your own attribute",
        ),
        (
            "overlap",
            "skip",
            "Report.overlap is 'skip', expected Overlap; write Overlap.skip(), .queue() or",
        ),
        ("overlap", None, "Report.overlap is None, expected Overlap"),
        (
            "retry",
            3,
            "Report.retry is 3, expected Retry or None; write "
            "Retry.exponential(max_attempts=3), or rename",
        ),
        (
            "on_lost",
            3,
            'Report.on_lost is 3, expected str; write "rerun" or "give_up"',
        ),
        ("on_lost", "retry", 'expected "rerun" or "give_up"'),
        (
            "max_lost",
            "3",
            "Report.max_lost is '3', expected int; write a whole number such as 3",
        ),
        (
            "max_lost",
            True,
            "Report.max_lost is True, expected int; write a whole number such as 3",
        ),
        ("max_lost", 0, "expected a whole number, 1 or more"),
        (
            "min_interval",
            60,
            "Report.min_interval is 60, expected timedelta or str or None; write "
            '"5m" or a timedelta',
        ),
        (
            "timeout",
            2.5,
            'Report.timeout is 2.5, expected timedelta or str or None; write "5m" or a timedelta',
        ),
        (
            "start_within",
            [5],
            "Report.start_within is [5], expected timedelta or str or None; write "
            '"5m" or a timedelta',
        ),
        (
            "min_interval",
            "0s",
            "Report.min_interval is '0s'; expected more than zero, or None",
        ),
        ("spread", "soon", "Report.spread: 'soon' is not a duration"),
        (
            "priority",
            "high",
            "Report.priority is 'high', expected int; write a whole number such as 50",
        ),
        (
            "priority",
            40_000,
            "Report.priority is 40000; expected a whole number, -32767 to 32767, "
            "for instance 10 to 90",
        ),
        (
            "runs_on",
            "gpu",
            "Report.runs_on is 'gpu'; expected a set of tags: write {'gpu'}",
        ),
        ("runs_on", ["gpu", ""], "Report.runs_on has ''; expected tags such as 'gpu'"),
        (
            "runs_on",
            ["gpu big"],
            "Report.runs_on has 'gpu big'; expected tags such as 'gpu'",
        ),
        (
            "runs_on",
            ["gpu,big"],
            "Report.runs_on has 'gpu,big'; expected tags such as 'gpu'",
        ),
    ],
)
def test_a_policy_of_the_wrong_type_is_refused(
    attribute: str, value: Any, words: str
) -> None:
    """The error names the attribute, what it is and what is expected."""
    assert words in refusal(a_job(**{attribute: value}))


def test_a_policy_may_be_true_or_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where it is declared so: elsewhere True is no number, and 1 is not True here."""
    monkeypatch.setitem(
        POLICIES,
        "quiet",
        Policy("True or False", types=(bool,)),
    )
    assert [
        policy_of(a_job(quiet=value), "Report", "quiet") for value in (True, False)
    ] == [True, False]
    with pytest.raises(
        InvalidJob, match=r"Report\.quiet is 1, expected bool; write True or False"
    ):
        policy_of(a_job(quiet=1), "Report", "quiet")


def test_where_it_runs_and_what_goes_first() -> None:
    """Jobs and tasks alike; a worker carries all the tags that are asked for, or it may not run
    it.
    """
    for found in (
        define(a_job(runs_on=["gpu", "big"], priority=90)),
        define(a_task(runs_on={"gpu", "big"})),
    ):
        assert found.may_run_on({"gpu", "big", "fast"})
        assert not found.may_run_on({"gpu"})
    assert define(a_job(priority=90)).priority == 90
    assert define(Report()).may_run_on(frozenset())


def test_a_spread_is_the_schedules() -> None:
    """It stands in the text, so that the row says all; a job that is disabled has nothing to
    spread.
    """
    assert str(define(a_job(spread="1h")).schedule).startswith("SPREAD(EVERY|1h")
    assert str(define(a_job(schedule=Disabled(), spread="1h")).schedule) == "-"
    assert "there is nothing to spread" in refusal(
        a_job(schedule=FixedDelay("1h"), spread="1h")
    )


def test_a_catch_up_must_come_to_an_end() -> None:
    """As a pace does, starts that are far apart keep it from ever catching up."""
    words = (
        "(min_interval=1h) never catches up with a schedule that comes every 1h; make "
        "it shorter"
    )
    assert words in refusal(a_job(catch_up=CatchUp.all(), min_interval="1h"))
    once = a_job(schedule=Once("2026-01-01T00:00:00Z"), catch_up=CatchUp.all())
    assert "misses one slot at most: CatchUp.all() means nothing" in refusal(once)


@pytest.mark.parametrize(
    "overlap", [Overlap.allow(2), Overlap.cancel_previous()], ids=lambda one: one.mode
)
def test_slots_side_by_side_keep_no_distance(overlap: Overlap) -> None:
    """Two starts at once, or far apart: one of them."""
    words = f"min_interval contradicts Overlap.{overlap.mode}; drop one of them"
    assert words in refusal(a_job(overlap=overlap, min_interval="1m"))


@pytest.mark.parametrize("word", ["spread", "min_interval", "start_within", "overlap"])
def test_a_task_has_no_slots(word: str) -> None:
    """What is said about slots says nothing about a one-time task."""
    assert f"{word}: a one-time task has no slots" in refusal(a_task(**{word: "1m"}))


def test_a_retry_contradicts_giving_up() -> None:
    """At most one start, or further attempts: one of them."""
    assert "retry contradicts" in refusal(
        a_job(on_lost="give_up", retry=Retry(max_attempts=2))
    )
    assert "retry contradicts" in refusal(
        a_task(on_lost="give_up", retry=Retry(max_attempts=2))
    )
    assert define(a_task(on_lost="give_up")).retry is None


def test_a_function_is_named_in_the_error() -> None:
    """Not the class that wraps it."""

    @job(name="", schedule=HOURLY)
    def nightly(ctx: JobContext) -> None:
        pass

    assert refusal(nightly).startswith("nightly.name")


# -- the fingerprint ------------------------------------------------------------------------------


def test_the_fingerprint_tells_definitions_apart() -> None:
    """Equal where all that decides is equal; different where any of it differs."""

    def fingerprint(**attributes: Any) -> str:
        return define(a_job(**attributes)).fingerprint

    same = {
        fingerprint(),
        fingerprint(),
        fingerprint(schedule=Every("60m")),
        fingerprint(template="x"),
    }
    others = [
        fingerprint(schedule=Every("2h")),
        fingerprint(schedule=Cron("0 2 * * *")),
        fingerprint(schedule=Disabled()),
        fingerprint(on_lost="give_up"),
        fingerprint(max_lost=4),
    ]
    assert len(same) == 1
    assert len({*same, *others}) == 1 + len(others)


def test_a_definition_is_frozen() -> None:
    """It is the same for everybody after."""
    found = define(Report())
    assert isinstance(found, Definition)
    with pytest.raises(AttributeError):
        found.name = "other"  # type: ignore[misc]
