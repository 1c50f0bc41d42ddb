"""What is hidden in stored errors and in the log's tracebacks, what is left, and how long an error
may be.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator

import pytest
from tests.kit.loops import error_text
from tests.kit.records import ERROR_LIMIT, bounded, redact_also, storable
from tests.kit.records import error_text as module

from slotwise import InvalidSetting, Settings
from slotwise.contrib.logging import HumanFormatter, JsonFormatter
from slotwise.spi import error_summary, redact

PEM = "-----BEGIN RSA PRIVATE KEY-----\nhu\nsh=\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "postgresql://me:s3@cr/et@host/db is away",
            "postgresql://me:***@host/db is away",
        ),
        ("http://a/x,http://u:hush@h/z", "http://a/x,http://u:***@h/z"),
        ("https://hush@github.com/x", "https://***@github.com/x"),
        ("password=hush x", "password=*** x"),
        ("?a=1&access_token%3Dhush", "?a=1&access_token%3D***"),
        ("passcode=hush", "passcode=***"),
        ("sent with sk-0123456789abcdefghij", "sent with ***"),
        ("npm_0123456789abcdefghijx: denied", "***: denied"),
        ("SG.0123456789abcdef-_.0123456789abcdef", "***"),
        (
            "https://hooks.slack.com/services/T0/B0/hush",
            "https://hooks.slack.com/services/***",
        ),
        ('{"api_key": "hush hush", "user": "me"}', '{"api_key": ***, "user": "me"}'),
        ("{'access_token': b'hush', 'n': 1}", "{'access_token': ***, 'n': 1}"),
        ("f(Secret = 'hu\\'sh', n)", "f(Secret = ***, n)"),
        ("AWS_SECRET_ACCESS_KEY=hush", "AWS_SECRET_ACCESS_KEY=***"),
        ("GET https://x/y?token=hush&n=1 HTTP", "GET https://x/y?token=***&n=1 HTTP"),
        ("url=https://x?token=hush", "url=https://x?token=***"),
        ("Authorization: Bearer hush.hush\nnext", "Authorization: ***\nnext"),
        ("{'Authorization': 'Basic hush', 'x': 1}", "{'Authorization': ***, 'x': 1}"),
        ("('cookie', 'session hush')", "('cookie', ***)"),
        ("with Bearer hushhush, then", "with Bearer ***, then"),
        ("smtp pass=hush", "smtp pass=***"),
        ("password := hush n := 1", "password := *** n := 1"),
        (
            "<a><password>hu sh</password><n>1</n>",
            "<a><password>***</password><n>1</n>",
        ),
        ("<x:apiKey>hush</x:apiKey>", "<x:apiKey>***</x:apiKey>"),
        ("sessionid=hush a=1", "sessionid=*** a=1"),
        ("ghp_hushhushhush is expired", "*** is expired"),
        ("xoxb-hush-hushhush glpat-hushhushhu", "*** ***"),
        ("sk_live_hushhushhush", "***"),
        ("DB_PASS=hush db_pass: hu5h next", "DB_PASS=*** db_pass: *** next"),
        ("run --password hush --user me", "run --password *** --user me"),
        ("['--api-key', 'hush', '-v']", "['--api-key', ***, '-v']"),
        ("--token=hush", "--token=***"),
        ("https://x/b?se=1&sig=hu%2Fsh&sp=r", "https://x/b?se=1&sig=***&sp=r"),
        ("X-Amz-Signature=hush", "X-Amz-Signature=***"),
        ("AccountName=me;AccountKey=hush==", "AccountName=me;AccountKey=***"),
        ("'password' => 'hush', 'a' => 1", "'password' => ***, 'a' => 1"),
        ("jwt eyJhbGciOiJI.eyJzdWIiOiIx.hu-sh", "jwt ***"),
        (f"key:\n{PEM}\nnext", "key:\n***\nnext"),
        (f"private_key={PEM}", "private_key=***"),
        (f"{{'pem': {PEM!r}, 'n': 1}}", "{'pem': '***', 'n': 1}"),
        ("a -----BEGIN PRIVATE KEY-----\nhush", "a ***"),
        (
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\nhush\n-----END PGP PRIVATE KEY BLOCK-----",
            "***",
        ),
        ("{password: hush, user: me}", "{password: *** user: me}"),
        ("password: hush user: me", "password: *** user: me"),
        ("InvalidToken: hu5h", "InvalidToken: ***"),
        ("token: 'hush'", "token: ***"),
        ("auth=hush smtp_auth=hush", "auth=*** smtp_auth=***"),
        ("{'otp': '123456', 'n': 1}", "{'otp': ***, 'n': 1}"),
        ("pin=1234&card=1", "pin=***&card=1"),
        ("f(credentials=b'hush', n=1)", "f(credentials=***, n=1)"),
    ],
)
def test_secrets_are_hidden(text: str, shown: str) -> None:
    """In addresses, headers and values of names."""
    assert redact(text) == shown
    assert redact(shown).count("***") == shown.count("***")


@pytest.mark.parametrize(
    "text",
    [
        "https://medium.com/@me",
        "token 12 is stale; another worker may run this slot",
        "KeyError: 'token'",
        "next_token=None",
        "risk-assessment-of-long-names-is-high",
        "the SG.group.name",
        "a=1, b: 2",
        "postgresql://host:5432/db",
        "a basic idea",
        "mail to me@host",
        'File "/app/tokens.py", line 3, in refresh',
        "jwt.exceptions.InvalidTokenError: Not enough segments",
        "InvalidTokenError: expired",
        "botocore.exceptions.NoCredentialsError: Unable to locate credentials",
        "google.auth.exceptions.DefaultCredentialsError: File adc.json was not found",
        "TokenExpired: Signature has expired",
        "cat: /etc/passwd: Permission denied",
        "/var/run/secrets/kubernetes.io/serviceaccount/token: no such file",
        "max_tokens=4096 prompt_tokens: 12",
        "unexpected token: '}'",
        "PWD=/srv OLDPWD=/",
        "author=ada auth_type=basic spin=1 pins=2 auth=None",
        "credentials: File not found",
        "bypass=1 compass=n signal=9 design: x",
        "secret_file=/run/x password_path: /y",
        "the following arguments are required: --password",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    ],
)
def test_the_rest_is_left(text: str) -> None:
    """What has no secret stays as it is."""
    assert redact(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "token",
        "://a:",
        "://a:@ ",
        "token='",
        'token="\\',
        "token: a ",
        "authorization",
        " ",
        "\\",
        "a=",
        "--token ",
        "eyJ",
        "eyJhbGciOiJI.",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN ",
        "PRIVATE ",
    ],
)
def test_hiding_takes_linear_time(piece: str) -> None:
    """Ten times the text takes about ten times as long, whatever the text is."""

    def took(count: int) -> float:
        begun = time.process_time()
        redact(piece * count)
        return time.process_time() - begun

    assert took(100_000) < 40 * max(took(10_000), took(10_000), 0.002)


@pytest.fixture
def own_patterns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For this test only."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "_own_patterns", dict[str, re.Pattern[str]]())
        yield


@pytest.mark.usefixtures("own_patterns")
def test_own_patterns_are_hidden_too() -> None:
    """All that they match."""
    assert redact("cust-1234 iban=AT12") == "cust-1234 iban=AT12"
    redact_also([r"\bcust-[0-9]+", "(?<=iban=)[A-Z0-9]+"])
    assert redact("cust-1234 iban=AT12") == "*** iban=***"


def test_patterns_are_a_setting() -> None:
    """A list, or one in each line; one that is none is refused with the reason."""
    assert Settings.load(environ={}, redact=["a,b", "c"]).redact == {"a,b", "c"}
    assert Settings.load(environ={"SLOTWISE_REDACT": "a,b\n\nc\n"}).redact == {
        "a,b",
        "c",
    }
    with pytest.raises(
        InvalidSetting,
        match=r"redact must be a list of regular expressions, but was '\('; correct it",
    ):
        Settings.load(environ={}, redact=["("])


def test_stored_errors_and_logged_tracebacks_hide_secrets() -> None:
    """The message of the exception, and the line of source that a traceback shows."""
    try:
        raise ValueError("cannot log in with password=hush")
    except ValueError as error:
        stored = error_text(error)
        record = logging.makeLogRecord(
            {"msg": "failed", "exc_info": (type(error), error, error.__traceback__)}
        )
    for text in (
        stored,
        HumanFormatter().format(record),
        JsonFormatter().format(record),
    ):
        assert "ValueError" in text
        assert "hush" not in text


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\n"
        + "  File x\n    call()\n" * 2000
        + "ValueError: boom",
        "Traceback (most recent call last):\n  File x\nValueError: "
        + "boom " * 20_000,
        "Traceback (most recent call last):\n  File x\nValueError: boom\n"
        + "[SQL: select ü]\n" * 4000
        + "end",
        "x" * 500_000,
    ],
)
def test_a_long_error_keeps_its_newest_lines(text: str) -> None:
    """At most 16 KiB of UTF-8, and the line that names the exception is still found."""
    kept = storable(text)
    assert ERROR_LIMIT - 200 < len(kept.encode()) <= ERROR_LIMIT
    assert kept.endswith(text.strip()[-100:])
    assert error_summary(kept) == error_summary(text)
    assert " left out …" in kept
    assert bounded("ü" * (ERROR_LIMIT // 2)) == "ü" * (ERROR_LIMIT // 2)
