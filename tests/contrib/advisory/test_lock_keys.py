"""The registry of lock keys: collisions, ranges, uses, gaps; and its commands."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from slotwise import ConfigurationError
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.contrib.advisory import KeyRange, read_lock_keys
from slotwise.contrib.advisory.lock_keys import find_uses, problems, unused, uses_in

GUIDELINE = Path(__file__).with_name("guideline.toml")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory without settings."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "CRON_JOBS",
        "CRON_TZ",
        "SLOTWISE_CONFIG",
        "SLOTWISE_APP",
        "DATABASE_URL",
        "SLOTWISE_DATABASE_URL",
    ):
        monkeypatch.delenv(name, raising=False)


def registry(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "lock-keys.toml"
    file.write_text(text)
    return file


# -- the guideline's own table --------------------------------------------------------------------


def test_the_guideline_s_table_has_no_collision() -> None:
    """44 services of 50 keys each, without a gap."""
    found = read_lock_keys(GUIDELINE)
    assert len(found.ranges) == 44
    assert (list(found.collisions()), list(found.gaps())) == ([], [])
    assert found.of("lt-credit-service") == KeyRange(
        start=1301, end=1350, service="lt-credit-service"
    )


def test_the_guideline_s_example_collides_with_its_table(tmp_path: Path) -> None:
    """Its text gives lt-credit-service 1301–1399; its table gives 1351 to another service."""
    text = GUIDELINE.read_text()
    text = text.replace(
        "lt-credit-service = 1301", "lt-credit-service = {start = 1301, size = 99}"
    )
    text = text.replace(
        "lt-invoice-service = 1551", "lt-invoice-service = {start = 1551, size = 49}"
    )
    (collision,) = read_lock_keys(registry(tmp_path, text)).collisions()
    assert collision.startswith(
        "lt-credit-service (1301–1399) collides with lt-customer-sync-service "
        "(1351–1400): both have 1351–1399"
    )


def test_numbers_below_the_first_service_are_no_gap(
    tmp_path: Path, capsys: Capture
) -> None:
    """A registry may begin anywhere: others own what is below."""
    registry(tmp_path, "[services]\na = 1301\nb = 1351\n")
    assert status(["lock-keys", "--strict"]) == exits.OK
    assert capsys.readouterr().err == ""


# -- the file -------------------------------------------------------------------------------------


def test_a_range_inside_of_another_collides_once(tmp_path: Path) -> None:
    """Ranges need not be neighbours to collide."""
    keys = read_lock_keys(
        registry(
            tmp_path,
            "[services]\na = {start = 1, size = 100}\nb = 10\nc = 80\nd = 101\n",
        )
    )
    assert [re.findall(r"both have (\S+);", line) for line in keys.collisions()] == [
        ["10–59"],
        ["80–100"],
        ["101–129"],
    ]
    assert list(keys.gaps()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("size = 0", "size = 0: not a number of keys"),
        ("size = true", "size = True: not a number of keys"),
        ("services = 5", "services: not a table"),
        ("[services]\na = 0", "services.a: start 0 is not a key"),
        ("[services]\na = '1'", "services.a: start '1' is not a key"),
        ("[services]\na = {size = 5}", "services.a: start None is not a key"),
        (
            "[services]\na = {start = 5, size = 1.5}",
            "services.a: size 1.5 is not a number",
        ),
        ("[services]\na = {start = 5, end = 9}", "services.a.end: unknown"),
        ("[services]\na = 9223372036854775800", "services.a: its last key is above"),
        ("[service]\na = 5", "service: unknown"),
        (
            "[services]\na = 5\na = 6",
            "lock-keys.toml:3: 'a' has a name that is there twice; keep one of them",
        ),
        ("[services]\na =", "lock-keys.toml:2: 'a' is not TOML; correct this line"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """With the file, the entry and the remedy."""
    file = registry(tmp_path, text)
    with pytest.raises(ConfigurationError, match=re.escape(words)) as caught:
        read_lock_keys(file)
    assert str(caught.value).startswith(f"{file}:")
    assert "\n" not in str(caught.value)


def test_all_wrong_entries_are_listed(tmp_path: Path) -> None:
    """One error has them all."""
    with pytest.raises(ConfigurationError) as caught:
        read_lock_keys(
            registry(tmp_path, "size = 1.5\n[services]\na = 0\nb = 1\nc = -1\n")
        )
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "size = 1.5",
        "services.a",
        "services.c",
    ]


def test_missing_file() -> None:
    with pytest.raises(
        ConfigurationError, match=r"none\.toml: there is no such registry.*--registry"
    ):
        read_lock_keys("none.toml")


# -- uses -----------------------------------------------------------------------------------------

JAVA = '@DistributedScheduled(cron = "0 */1 * * * *", lockKey = 1301)\nvoid a() {}\n'
PYTHON = "@distributed_scheduled(cron='0 */1 * * * *', lock_key=1_302)\ndef b(): ...\n"
NODE = """CRON_JOBS={
  "tokenCleanup": { "schedule": "0 */1 * * * *", "lockKey": 1303 },
  "prune": {"lockKey": 1304}
}
"""


def test_uses_are_found_in_any_language(tmp_path: Path) -> None:
    """With file and line, and with the job where the text shows it; not in copies of sources."""
    for name, text in (
        ("A.java", JAVA),
        ("b.py", "# one\n" + PYTHON),
        (".env", NODE),
        ("node_modules/x.js", NODE),
    ):
        file = tmp_path / "source" / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
    (tmp_path / "source" / "picture.png").write_bytes(b"\0lockKey = 7")
    found = find_uses(
        [f"lt-credit-service={tmp_path}/source"], read_lock_keys(GUIDELINE)
    ).uses
    assert {(use.key, Path(use.place).name, use.job) for use in found} == {
        (1301, "A.java:1", None),
        (1302, "b.py:2", None),
        (1303, ".env:2", "tokenCleanup"),
        (1304, ".env:3", "prune"),
    }
    assert list(problems(read_lock_keys(GUIDELINE), found)) == []


@pytest.mark.parametrize(
    "name",
    [
        "a.go",
        "A.cs",
        "a.rb",
        "a.groovy",
        "a.sql",
        "a.tf",
        "a.conf",
        "a.ini",
        "a.txt",
        "a.md",
        "a.example",
        "Dockerfile",
        "Procfile",
        ".hidden",
        ".env.local",
        "a.nobody-knows",
    ],
)
def test_every_text_file_is_read(tmp_path: Path, name: str) -> None:
    """A language that nobody thought of has keys, too."""
    (tmp_path / name).write_text("lockKey = 1301\n")
    search = find_uses([str(tmp_path)], read_lock_keys(GUIDELINE))
    assert ([use.key for use in search.uses], search.read, search.skipped) == (
        [1301],
        1,
        [],
    )


def test_what_is_no_text_is_skipped_and_counted(tmp_path: Path) -> None:
    """Binary and large files, and what is no file, by name; hidden directories are not searched at
    all.
    """
    (tmp_path / "a.bin").write_bytes(b"lockKey = 1301\0")
    (tmp_path / "b.sql").write_text("lockKey = 1301\n" + "x" * 1024 * 1024)
    os.mkfifo(tmp_path / "c")
    (tmp_path / "d.sql").write_text("lockKey = 1302\n" + "x" * (1024 * 1024 - 15))
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "e.py").write_text("lockKey = 1301\n")
    search = find_uses([str(tmp_path)], read_lock_keys(GUIDELINE))
    assert ([use.key for use in search.uses], search.read) == ([1302], 1)
    assert search.skipped == [str(tmp_path / name) for name in ("a.bin", "b.sql", "c")]


def test_the_commands_count_files(tmp_path: Path, capsys: Capture) -> None:
    """On stderr, beside the list; and in JSON."""
    registry(tmp_path, "[services]\na = 1\n")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.go").write_text("lockKey = 1\n")
    (tmp_path / "source" / "b").write_bytes(b"\0")
    assert status(["lock-keys", "source"]) == exits.OK
    told = capsys.readouterr().err
    assert told == "1 file read, 1 skipped (binary, or above 1 MiB): source/b\n"
    assert status(["lock-keys", "source", "--json"]) == exits.OK
    found = json.loads(capsys.readouterr().out)
    assert (found["files_read"], found["files_skipped"]) == (1, 1)


def test_a_job_may_be_in_the_files_of_several_environments() -> None:
    """One job with one key is one use; with two keys it is a problem; two jobs with one key are
    another.
    """
    keys = read_lock_keys(GUIDELINE)
    entry = '{"a": {"schedule": "@daily", "lockKey": %d}}'
    same = [
        *uses_in(entry % 1301, "dev.env", "lt-credit-service"),
        *uses_in(entry % 1301, "prod.env", "lt-credit-service"),
    ]
    assert list(problems(keys, same)) == []
    other = uses_in(entry % 1302, "stage.env", "lt-credit-service")
    (line,) = problems(keys, [*same, *other])
    assert line.startswith("a has the keys 1301 (dev.env:1), 1302 (stage.env:1); ")
    twice = uses_in(
        (entry % 1301).replace('"a"', '"b"'), "prod.env", "lt-credit-service"
    )
    (line,) = problems(keys, [*same, *twice])
    assert line.startswith("key 1301 is used 2 times: a (dev.env:1), b (prod.env:1); ")


def test_out_of_range() -> None:
    """A key of another service, a key of no service, and a service that is unknown."""
    keys = read_lock_keys(GUIDELINE)
    uses = [
        *uses_in("lockKey = 1351", "A.java", "lt-credit-service"),
        *uses_in("lock_key=5001", "b.py"),
        *uses_in('{"lt-credit-servise.a": {"lockKey": 1301}}', "c.json"),
    ]
    assert [line.partition(";")[0] for line in problems(keys, uses)] == [
        "A.java:1: key 1351 is out of the range of lt-credit-service, 1301–1350, "
        "it is lt-customer-sync-service's",
        "b.py:1: key 5001 belongs to no service",
        "a (c.json:1): lt-credit-servise has no lock keys",
    ]


def test_unused_keys() -> None:
    """Those below the highest key in use."""
    keys = KeyRange(start=1301, end=1350, service="a")
    assert list(map(str, unused(keys, {1303, 1304, 1306, 9}))) == [
        "1301–1302",
        "1305–1305",
    ]
    assert unused(keys, set()) == []


# -- the commands ---------------------------------------------------------------------------------


def test_check(tmp_path: Path, capsys: Capture) -> None:
    """Success for a registry without problems; failure for pipelines otherwise, with a line for
    each problem.
    """
    registry(tmp_path, GUIDELINE.read_text())
    (tmp_path / "A.java").write_text(JAVA)
    assert status(["lock-keys", "lt-credit-service=A.java"]) == exits.OK
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "44 services, 1 key in use: no problem"
    )
    (tmp_path / "B.java").write_text(JAVA)
    assert status(["lock-keys", "A.java", "B.java"]) == exits.FAILED
    assert capsys.readouterr().err == (
        "2 files read\nerror: key 1301 is used 2 times: A.java:1, B.java:1; take "
        "a free key for each job\n"
    )


def test_check_counts_gaps_if_asked(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gaps are listed; with --strict they fail. CRON_JOBS of the environment counts."""
    registry(tmp_path, "[services]\na = 1\nb = 101\n")
    monkeypatch.setenv("CRON_JOBS", '{"b.x": {"schedule": "@daily", "lockKey": 103}}')
    assert status(["lock-keys"]) == exits.OK
    assert (
        capsys.readouterr().err
        == "gap: 51–100 belong to no service\ngap: 101–102 of b are not used\n"
    )
    assert status(["lock-keys", "--strict", "--json"]) == exits.FAILED
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["problems"], found["keys"], len(found["gaps"])) == (
        False,
        [],
        1,
        2,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{bad", "not JSON"),
        ("", "is empty"),
        (
            '{"a.x": {"schedule": "@daily", "lockKey": "1"}}',
            'a.x.lockKey: "1" is not a whole number',
        ),
        ('{"a.x": {"schedule": "0 0 99 * * *", "lockKey": 1}}', "a.x.schedule: "),
        (
            '{"a.x": {"schedule": "@daily"}, "a.y": {"schedule": "@daily"}}',
            "a.y.lockKey: missing",
        ),
    ],
)
def test_check_reads_cron_jobs(
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    words: str,
) -> None:
    """A variable that no service could read fails with the lines of cron-jobs: its keys were
    not compared.
    """
    registry(tmp_path, "[services]\na = 1\n")
    monkeypatch.setenv("CRON_JOBS", text)
    monkeypatch.setenv("CRON_TZ", "UTC")
    assert status(["cron-jobs"]) == exits.FAILED
    expected = [
        line.removeprefix("error: ") for line in capsys.readouterr().err.splitlines()
    ]
    assert status(["lock-keys"]) == exits.FAILED
    told = capsys.readouterr()
    assert told.err.splitlines() == [f"error: {line}" for line in expected]
    assert words in told.err
    assert "no problem" not in told.out


def test_check_with_strict_names_what_it_refuses(
    tmp_path: Path, capsys: Capture
) -> None:
    """A failure is not called no problem."""
    registry(tmp_path, "[services]\na = 1\nb = 101\n")
    assert status(["lock-keys", "--strict"]) == exits.FAILED
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "2 services, 0 keys in use: 1 unused gap, which --strict refuses"
    )


def test_the_next_key_of_a_service(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lowest free key; with --service an error if there is none, or no such service."""
    registry(
        tmp_path, "size = 2\n[services]\na = 1\nb = 3\nc = {start = 4, size = 2}\n"
    )
    monkeypatch.setenv("CRON_JOBS", '{"a.x": {"schedule": "@daily", "lockKey": 1}}')
    status(["lock-keys", "--json"])
    services = json.loads(capsys.readouterr().out)["services"]
    assert {one["service"]: one["next"] for one in services} == {
        "a": 2,
        "b": 3,
        "c": 5,  # 4 is b's, too
    }
    status(["lock-keys", "--service", "c", "--json"])
    services = json.loads(capsys.readouterr().out)["services"]
    assert [one["service"] for one in services] == ["c"]
    assert status(["lock-keys", "--service", "d"]) == exits.FAILED
    assert "a new service may start at 6" in capsys.readouterr().err
    monkeypatch.setenv("CRON_JOBS", '{"a.x": {"lockKey": 1}, "a.y": {"lockKey": 2}}')
    status(["lock-keys"])
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "a",
        "1–2",
        "2",
        "–",
        "–",
    ]
    assert status(["lock-keys", "--service", "a"]) == exits.FAILED
    assert "has used all its keys, 1–2" in capsys.readouterr().err


def test_list(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each service with its range, how many keys are in use, and the gaps."""
    registry(tmp_path, "size = 5\n[services]\na = 1\nb = 6\n")
    monkeypatch.setenv("CRON_JOBS", '{"b.x": {"lockKey": 8}}')
    assert status(["lock-keys"]) == exits.FAILED, "the variable has no schedule"
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:3]] == [
        ["a", "1–5", "0", "1", "–"],
        ["b", "6–10", "1", "6", "6–7"],
    ]
    assert status(["lock-keys", "--json"]) == exits.FAILED
    assert json.loads(capsys.readouterr().out)["services"][1] == {
        "service": "b",
        "start": 6,
        "end": 10,
        "used": [8],
        "next": 6,
        "gaps": [[6, 7]],
    }


def test_a_missing_path_is_refused(tmp_path: Path, capsys: Capture) -> None:
    registry(tmp_path, "[services]\na = 1\n")
    assert status(["lock-keys", "a=none"]) == exits.FAILED
    assert "none does not exist" in capsys.readouterr().err
    (tmp_path / "x.py").touch()
    assert status(["lock-keys", "b=x.py"]) == exits.FAILED
    assert "b has no lock keys" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("dcron.schedule('0 * * * * *', 1305, job)", [1305]),
        ('cron.scheduleJob("0 */5 * * * *", 1306, () => run());', [1306]),
        ("schedule(`@daily`,1307, f)", [1307]),
        ("SELECT pg_try_advisory_lock(1310)", [1310]),
        ("select PG_ADVISORY_XACT_LOCK( 1311::bigint );", [1311]),
        ("SELECT pg_advisory_lock_shared(1312)", [1312]),
        (
            r'value: "{\"esc\": {\"schedule\": \"0 * * * * *\", \"lockKey\": 1313}}"',
            [1313],
        ),
        (r'"{\\\"a\\\": {\\\"lockKey\\\": 1314}}"', [1314]),
        ("<v>{&quot;a&quot;: {&quot;lockKey&quot;: 1315}}</v>", [1315]),
        ("lockKey: 0x51c", [1308]),
        ("lockKey = 1301L;", [1301]),
        ("const lockKey = 1302n", [1302]),
        ("private static final long TOKEN_LOCK_KEY = 1303L;", [1303]),
        ("tokenLockKey: number = 1304;", [1304]),
        ("lock_key: int = 1309", [1309]),
        ("lock_key='1316'", [1316]),
        # two places of one key in a file
        ("pg_advisory_lock(1317) … pg_advisory_lock(1317)", [1317]),
        # no keys
        ("pg_advisory_unlock(1310)", []),
        ("pg_try_advisory_lock(1, 2)", []),
        ("lockKey: 13ab", []),
        ("lockKey = 1.5", []),
        ("lockKey = 5e3", []),
        ("blockKey = 5", []),
        ("scheduler.schedule(task, 10, SECONDS)", []),
        ("lockKey = KEYS.A", []),
    ],
)
def test_forms_of_keys(text: str, keys: list[int]) -> None:
    """As applications write them; a number is read whole or not at all."""
    assert [use.key for use in uses_in(text, "file")] == keys


def test_next_passes_keys_of_every_form(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.js").write_text("dcron.schedule('0 * * * * *', 1301, job)\n")
    (source / "b.sql").write_text("SELECT pg_try_advisory_lock(1302);\n")
    (source / "c.yaml").write_text(r'value: "{\"x\": {\"lockKey\": 1303}}"')
    (source / "d.java").write_text("lockKey = 0x518;\n")
    keys = read_lock_keys(GUIDELINE)
    used = {use.key for use in find_uses([str(source)], keys).uses}
    assert keys.next("lt-credit-service", used) == 1305
