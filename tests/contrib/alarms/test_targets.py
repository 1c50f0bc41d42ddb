"""What targets send, to real receivers on the loopback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.contrib.alarms.receivers import Receiver, mail_server, receiving

from slotwise import ConfigurationError, InvalidSetting
from slotwise.contrib.alarms import (
    Email,
    Healthchecks,
    Message,
    SentryCrons,
    Slack,
    Target,
    Webhook,
    verify,
)
from slotwise.contrib.alarms.targets import post

OPENED = datetime(2026, 11, 29, 2, tzinfo=UTC)
BEGAN = Message(
    id="failed:report:1:20261129T020000.000000Z:opened",
    event="opened",
    kind="failed",
    name="report",
    summary="report: the slot ended as failed: <oh> & no",
    opened=OPENED,
)
OVER = Message(
    id="failed:report:1:20261129T020000.000000Z:closed",
    event="closed",
    kind="failed",
    name="report",
    summary="report: the slot ended as failed: <oh> & no",
    opened=OPENED,
    closed=OPENED + timedelta(minutes=90, microseconds=5),
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def test_a_webhook_is_signed(receiver: Receiver) -> None:
    """The receiver checks body and time; a changed body, another secret, an old message fail."""
    Webhook(receiver.url, secret="s3cret").send(BEGAN)
    (request,) = receiver.requests
    assert request.json == BEGAN.as_json()
    assert request.headers["idempotency-key"] == BEGAN.id
    now = datetime.now(UTC)
    verify("s3cret", request.headers, request.body, now=now)
    with pytest.raises(ConfigurationError, match="signature"):
        verify("s3cret", request.headers, request.body + b" ", now=now)
    with pytest.raises(ConfigurationError, match="signature"):
        verify("other", request.headers, request.body, now=now)
    with pytest.raises(ConfigurationError, match="repetition"):
        verify("s3cret", request.headers, request.body, now=now + timedelta(minutes=6))
    with pytest.raises(ConfigurationError, match="signature"):
        verify("s3cret", {}, request.body, now=now)


def test_a_name_beyond_ascii_is_in_a_header(receiver: Receiver) -> None:
    """A header carries ASCII alone; what has been sent so far is sent as before."""
    Webhook(receiver.url).send(replace(BEGAN, id="failed:größe %:1:opened"))
    (request,) = receiver.requests
    assert (
        request.headers["idempotency-key"] == "failed:gr%C3%B6%C3%9Fe%20%25:1:opened"
    )


def test_a_webhook_without_a_secret_is_not_signed(receiver: Receiver) -> None:
    Webhook(receiver.url).send(BEGAN)
    assert "x-slotwise-signature" not in receiver.requests[0].headers


def test_slack_gets_text(receiver: Receiver) -> None:
    """What a row contains is no link and no mention."""
    Slack(receiver.url).send(BEGAN)
    Slack(receiver.url).send(OVER)
    first, second = (one.json["text"] for one in receiver.requests)
    assert first == (
        ":red_circle: *slotwise: failed of report*\n"
        "report: the slot ended as failed: &lt;oh&gt; &amp; no"
    )
    assert second.startswith(":large_green_circle: *slotwise: over: failed of report*")
    assert "Over after 90m" in second


@pytest.mark.parametrize("status", [302, 400, 404, 500, 503])
def test_other_answers_are_failures(receiver: Receiver, status: int) -> None:
    """A redirect is not followed."""
    receiver.statuses = [status]
    with pytest.raises(OSError, match=f"HTTP status {status}"):
        Webhook(receiver.url).send(BEGAN)
    assert len(receiver.requests) == 1


def test_letters_arrive() -> None:
    """The end refers to the begin; a repetition has the same id."""
    with mail_server() as (mailbox, port):
        target: Target = Email(
            "127.0.0.1",
            port=port,
            security="plain",
            sender="slotwise@example.org",
            to=["ann@example.org", "bob@example.org"],
        )
        for message in (BEGAN, OVER, OVER):
            target.send(message)
    began, over, again = mailbox.letters
    assert began["Subject"] == "slotwise: failed of report"
    assert began["To"] == "ann@example.org, bob@example.org"
    assert BEGAN.summary in str(began.get_payload())
    assert over["References"] == began["Message-ID"]
    assert over["Message-ID"] == again["Message-ID"] != began["Message-ID"]


def test_a_refused_letter_is_a_failure() -> None:
    with mail_server() as (mailbox, port):
        mailbox.refuses = True
        target = Email(
            "127.0.0.1", port=port, security="plain", sender="a@b.c", to=["a@b.c"]
        )
        with pytest.raises(Exception, match="451"):
            target.send(BEGAN)


def test_a_name_with_a_line_break_is_no_header() -> None:
    """A job's name comes from a row."""
    hostile = Message(
        id="dead:a\nBcc: x@y.z:1:opened",
        event="opened",
        kind="dead",
        name="a\nBcc: x@y.z",
        summary="s",
        opened=OPENED,
    )
    with mail_server() as (mailbox, port):
        Email(
            "127.0.0.1", port=port, security="plain", sender="a@b.c", to=["a@b.c"]
        ).send(hostile)
    assert mailbox.letters[0]["Bcc"] is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Webhook("ftp://x"), "http"),
        (lambda: Slack("hooks.slack.com/x"), "http"),
        (lambda: Webhook("http://[::1"), "http"),
        (lambda: Email("h", sender="a@b", to=[]), "to must be a list"),
        (lambda: Email("h", sender="a@b", to=["a@b"], security="ssl"), "starttls"),
    ],
)
def test_a_wrong_target_is_refused(make: object, words: str) -> None:
    assert callable(make)
    with pytest.raises(InvalidSetting, match=words):
        make()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://ann:s3cret@example.org/x", "user or password"),
        ("https://s3cret@example.org/x", "user or password"),
        ("https://example.org/s3cret x", "percent-encode"),
        ("https://example.org/s3cret\n", "percent-encode"),
        ("https://example.org/s3cret\x7f", "percent-encode"),
        ("https://example.org/s3cretß", "percent-encode"),
        ("https://example.org:s3cret/", "http://"),
        ("https://example.org:99999/s3cret", "http://"),
    ],
)
def test_a_url_that_cannot_be_sent_to_is_refused(url: str, words: str) -> None:
    """With place and cure, and without the secret in it."""
    makers = [lambda: Webhook(url, name="ops"), lambda: Slack(url, name="ops")]
    if "@" not in url:
        makers.append(lambda: SentryCrons(url.replace("://", "://key@") + "/42"))
    for make in [*makers, lambda: Healthchecks(url)]:
        with pytest.raises(InvalidSetting, match=words) as refused:
            make()
        assert str(refused.value).startswith(("target ops: ", "check-ins: "))
        assert "s3cret" not in str(refused.value)


def test_what_the_library_says_of_an_address_is_not_told() -> None:
    with pytest.raises(OSError, match="InvalidURL") as failed:
        post("http://127.0.0.1:9/s3cret x", b"", {})
    assert "s3cret" not in str(failed.value)


def test_an_absent_receiver_fails_soon() -> None:
    began = time.monotonic()
    with pytest.raises(OSError, match="refused"):
        Webhook("http://127.0.0.1:9/").send(BEGAN)
    assert time.monotonic() - began < 60
