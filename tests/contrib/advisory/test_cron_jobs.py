"""``CRON_JOBS`` as the guideline defines it: read, or refused with every problem at once."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from slotwise import InvalidCronJobs
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.contrib.advisory import (
    cron_jobs_schema,
    parse_cron_jobs,
    read_cron_jobs,
    read_lock_keys,
)
from slotwise.contrib.advisory.cron_jobs import fixed_fields

GUIDELINE = Path(__file__).with_name("guideline.toml")
#: The guideline's example.
EXAMPLE = """{
  "tokenCleanup": { "schedule": "0 */1 * * * *", "lockKey": 5101 },
  "sessionPrune": { "schedule": "0 */5 * * * *", "lockKey": 5102 }
}"""


def problems(text: str, **options: Any) -> list[str]:
    """All problems, each up to its remedy."""
    with pytest.raises(InvalidCronJobs) as caught:
        parse_cron_jobs(text, **options)
    assert str(caught.value) == "\n".join(
        f"CRON_JOBS: {line}" for line in caught.value.problems
    )
    return [line.rpartition("; ")[0] or line for line in caught.value.problems]


def entry(schedule: object = "* * * * *", key: object = 1301, name: str = "a") -> str:
    return json.dumps({name: {"schedule": schedule, "lockKey": key}})


def test_the_guideline_s_example() -> None:
    """Names, keys, and six fields with the seconds first."""
    jobs = parse_cron_jobs(EXAMPLE, handlers={"tokenCleanup", "sessionPrune"})
    assert [(job.name, job.lock_key, job.schedule.expression) for job in jobs] == [
        ("tokenCleanup", 5101, "0 */1 * * * *"),
        ("sessionPrune", 5102, "0 */5 * * * *"),
    ]


def test_names_have_their_service() -> None:
    """``<service>.<job>``, whether the entry has the service in its name or not."""
    text = (
        '{"a": {"schedule": "* * * * *", "lockKey": 1301}, "s.b": {"schedule": "* * * '
        '* *", "lockKey": 1302}}'
    )
    assert [
        (job.name, job.job)
        for job in parse_cron_jobs(text, service="s", handlers=["a", "b"])
    ] == [
        ("s.a", "a"),
        ("s.b", "b"),
    ]
    assert problems(text, service="t") == [
        "s.b: the job is of s, and this service is t"
    ]


def test_every_problem_is_listed_with_job_and_field() -> None:
    """One error for all of them."""
    text = """{
        "a": {"schedule": "61 * * * *", "lockKey": "5101"},
        "b": {"schedul": "* * * * *", "lockKey": true},
        "c": {"schedule": "* * * * *", "lockKey": 7, "lock_key": 8},
        "d": {"schedule": "* * * * *", "lockKey": 7},
        "e": 5,
        "d": {"schedule": 5, "lockKey": 9.0, "lockKey": 10}
    }"""
    assert problems(text, handlers=["a", "b", "c", "d"]) == [
        "d: the job is there twice",
        'a.schedule: minute must be 0–59, got "61"',
        'a.lockKey: "5101" is not a whole number',
        "b.schedul: unknown field",
        "b.schedule: missing",
        "b.lockKey: true is not a whole number",
        "c.lock_key: unknown field",
        "d.lockKey: 7 is the key of c, too",
        "e: no handler has this name",
        "e: 5 is not an object",
        "d.lockKey: the field is there twice",
        "d.schedule: 5 is not a string",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON at line 1, column 1: ''"),
        ('{"a":\n {"schedule" 5}}', "not JSON at line 2, column 14: '5}}'"),
        ("[" * 100_000, "not JSON at line 1, column 1: '[[["),
        ("[]", "[] is not an object"),
        ('"x"', '"x" is not an object'),
        (entry(key=None), "a.lockKey: null is not a whole number"),
        (
            entry(key=2**63),
            "a.lockKey: 9223372036854775808 is not from 1 to 9223372036854775807",
        ),
        (entry(key=0), "a.lockKey: 0 is not from 1 to"),
        (entry(key=-1301), "a.lockKey: -1301 is not from 1 to"),
        (entry(name=" "), "' ': a job's name has 1 to 100 printable characters"),
        (
            entry(name="x" * 101),
            f"'{'x' * 40}': a job's name has 1 to 100 printable characters",
        ),
    ],
    ids=lambda text: str(text)[:20],
)
def test_what_is_refused(text: str, problem: str) -> None:
    assert problems(text)[0].startswith(problem)


def test_a_missing_handler_has_a_hint() -> None:
    with pytest.raises(
        InvalidCronJobs,
        match=r"CRON_JOBS: tokenCleanUp: no handler.*did you mean tokenCleanup\?",
    ):
        parse_cron_jobs(entry(name="tokenCleanUp"), handlers=["tokenCleanup"])


def test_keys_are_compared_with_the_registry_only_if_it_is_configured() -> None:
    """The guideline's examples 5001 and 5101 are outside of its own table."""
    keys = read_lock_keys(GUIDELINE)
    assert parse_cron_jobs(EXAMPLE, lock_keys=keys)
    assert parse_cron_jobs(EXAMPLE, service="lt-credit-service")
    assert problems(entry(key=5101), service="lt-credit-service", lock_keys=keys) == [
        "a.lockKey: 5101 is out of the range of lt-credit-service, 1301–1350"
    ]
    assert parse_cron_jobs(
        entry(key=1350), service="lt-credit-service", lock_keys=keys
    )
    assert problems(entry(), service="lt-credit", lock_keys=keys)[0].startswith(
        "lt-credit has no lock keys"
    )


# -- the zone -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "fixed"),
    [
        ("0 */1 * * * *", []),
        ("*/5 * * * *", []),
        ("0 30 * ? * ?", []),
        ("@hourly", []),
        ("0 0 */1 * * *", []),
        ("@daily", ["hour"]),
        ("0 2 * * *", ["hour"]),
        ("0 0 */2 * * *", ["hour"]),
        ("0 0 1 1 *", ["hour", "day", "month"]),
        ("0 * * * * MON", ["weekday"]),
    ],
)
def test_which_schedules_depend_on_the_zone(expression: str, fixed: list[str]) -> None:
    """Those that fix an hour, day, month or weekday need a zone: Node and Spring use their
    process's.
    """
    assert fixed_fields(expression) == fixed
    if fixed:
        assert problems(entry(expression)) == [
            f"a.schedule: {expression!r} fixes its {fixed[0]}, and no zone is named"
        ]
    (job,) = parse_cron_jobs(entry(expression), tz="Europe/Vienna")
    assert job.schedule.zone.key == "Europe/Vienna"


def test_the_zone_of_a_node_fleet() -> None:
    """With CRON_TZ, two o'clock is Vienna's, in summer and in winter."""
    environ = {"CRON_JOBS": entry("0 0 2 * * *"), "CRON_TZ": "Europe/Vienna"}
    (job,) = read_cron_jobs(environ)
    summer, winter = (
        job.schedule.next_after(datetime(2026, month, 1, tzinfo=UTC))
        for month in (7, 1)
    )
    assert (summer.hour if summer else None, winter.hour if winter else None) == (0, 1)
    assert problems(environ["CRON_JOBS"], tz="Europe/Wien")[0].startswith("CRON_TZ: ")
    for environ, lack in (({}, "not set"), ({"CRON_JOBS": " "}, "empty")):
        with pytest.raises(InvalidCronJobs, match=rf"^CRON_JOBS is {lack}; write "):
            read_cron_jobs(environ)


def test_days_of_month_and_week_must_both_match() -> None:
    """As in node-cron and Spring, not as in cron: Friday the 13th."""
    (job,) = parse_cron_jobs(entry("0 0 0 13 * FRI"), tz="UTC")
    first = job.schedule.next_after(datetime(2026, 1, 1, tzinfo=UTC))
    assert first == datetime(2026, 2, 13, tzinfo=UTC)


# -- the schema -----------------------------------------------------------------------------------


def fits(value: object, schema: dict[str, Any]) -> bool:
    """A validator for the words of JSON Schema that ours uses."""
    kinds: dict[str, Any] = {"object": dict, "string": str, "integer": int}
    if not isinstance(value, kinds[schema["type"]]) or isinstance(value, bool):
        return False
    if isinstance(value, dict):
        known, rest = (
            schema.get("properties", {}),
            schema.get("additionalProperties", True),
        )
        names = schema.get("propertyNames", {})
        return (
            set(schema.get("required", [])) <= value.keys()
            and all(
                names.get("minLength", 0) <= len(name) <= names.get("maxLength", 999)
                for name in value
            )
            and all(
                fits(one, known[name])
                if name in known
                else rest is not False and fits(one, rest)
                for name, one in value.items()
            )
        )
    if isinstance(value, int):
        return bool(schema["minimum"] <= value <= schema["maximum"])
    return schema["minLength"] <= len(str(value)) <= schema["maxLength"]


@pytest.mark.parametrize(
    "text",
    [
        EXAMPLE,
        "{}",
        "[]",
        '{"a": 5}',
        entry(key="1"),
        entry(key=True),
        entry(key=2**63),
        entry(key=0),
        entry(key=2**63 - 1),
        entry(key=1.5),
        entry(5),
        entry(""),
        entry(name=""),
        entry(name="x" * 101),
        '{"a": {"lockKey": 5}}',
        '{"a": {"schedule": "* * * * *"}}',
        '{"a": {"schedule": "* * * * *", "lockKey": 5, "more": 1}}',
    ],
    ids=lambda text: text[:40],
)
def test_the_schema_agrees_with_the_reader(text: str) -> None:
    """What the schema rejects, the reader rejects, and the other way round where a schema can
    tell.
    """
    try:
        parse_cron_jobs(text)
    except InvalidCronJobs:
        assert not fits(json.loads(text), cron_jobs_schema())
    else:
        assert fits(json.loads(text), cron_jobs_schema())


# -- the commands ---------------------------------------------------------------------------------


def test_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists the jobs or the problems, fails for pipelines, and prints the schema."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CRON_JOBS", EXAMPLE)
    monkeypatch.delenv("CRON_TZ", raising=False)
    assert status(["cron-jobs"]) == exits.OK
    assert "5101" in capsys.readouterr().out
    assert (
        status(
            [
                "cron-jobs",
                "--service",
                "lt-credit-service",
                "--registry",
                str(GUIDELINE),
            ]
        )
        == exits.FAILED
    )
    told = capsys.readouterr().err.splitlines()
    assert [
        line.split(" is out of the range of lt-credit-service, 1301–1350; ")[0]
        for line in told
    ] == [
        "error: CRON_JOBS: tokenCleanup.lockKey: 5101",
        "error: CRON_JOBS: sessionPrune.lockKey: 5102",
    ]
    monkeypatch.delenv("CRON_JOBS")
    assert status(["cron-jobs"]) == exits.FAILED
    assert capsys.readouterr().err.startswith("error: CRON_JOBS is not set; write ")
    monkeypatch.setenv("CRON_JOBS", entry("@daily"))
    assert status(["cron-jobs", "--json"]) == exits.FAILED
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["jobs"], len(found["problems"])) == (False, [], 1)
    monkeypatch.setenv("CRON_TZ", "Europe/Vienna")
    assert status(["cron-jobs", "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out)["jobs"][0]["zone"] == "Europe/Vienna"
    assert status(["cron-jobs", "--registry", str(GUIDELINE)]) == exits.USAGE
    capsys.readouterr()
    assert status(["cron-jobs", "--print-schema"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == cron_jobs_schema()
