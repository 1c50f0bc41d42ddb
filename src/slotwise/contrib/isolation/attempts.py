"""Attempts in child processes, which can be killed for certain: the parent's part.

A child imports the same application and reads the claim from the database, under its fence.
Heartbeats, timeouts and the settlement stay with the parent; both exchange lines of JSON over one
socket.

Races: the child sends "starting" before it enters the handler, and the message arrives even if the
child is killed then. So a child that ends without a message has not started its handler. A child
whose socket breaks kills its group.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias, get_args

from slotwise.contrib.processes.signals import signal_name
from slotwise.spi import (
    Aborted,
    AttemptOutcome,
    Failed,
    FollowUps,
    HandedBack,
    Holding,
    Reason,
    Snoozed,
    Succeeded,
    elapsed,
    error_summary,
)

#: Seconds within which the child must import the application and start the handler. This and the
#: next are reasoned, not measured.
START_LIMIT: Final = 120.0
#: Seconds. How often its parent checks whether the claim was renewed or the attempt must stop.
CHILD_LOOK: Final = 0.1
#: The module that the child runs.
MODULE = "slotwise.cli.isolated"

#: A line of JSON between a worker and the child process of an attempt.
Message: TypeAlias = dict[str, Any]

#: What a child reports, by the names of the types.
_OUTCOMES = {kind.__name__: kind for kind in get_args(AttemptOutcome)}
_FOLLOWS = 'isolation="process" has no follow-up tasks; schedule them with ctx.client'


class Channel:
    """Lines of JSON over a socket."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._rest = b""

    def send(self, **said: object) -> None:
        """Send a message; one to a process that is gone is dropped."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(said).encode() + b"\n")

    def lines(self, timeout: float | None) -> Iterator[Message] | None:
        """Return the messages of at most ``timeout`` seconds, perhaps none; None if the other side
        is gone.
        """
        self._socket.settimeout(timeout)
        try:
            received = self._socket.recv(65_536)
        except TimeoutError:
            return iter(())
        except OSError:
            return None
        if not received:
            return None
        *complete, self._rest = (self._rest + received).split(b"\n")
        return iter([json.loads(line) for line in complete])

    def close(self) -> None:
        self._socket.close()


class Isolation:
    """Run attempts in child processes, each in a process group of its own."""

    def __init__(
        self, settings: Mapping[str, object], app: str, *, patience: timedelta
    ) -> None:
        """``patience``: how long a handler may take to stop when asked."""
        self._source = {"app": app, "settings": settings}
        self._patience = patience.total_seconds()

    def __call__(
        self, holding: Holding, begun: Callable[[], None], draining: Callable[[], bool]
    ) -> AttemptOutcome:
        """Run one attempt to its end; ``begun`` is called when its handler starts."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                child = _spawn(theirs.fileno())
            attempt = _Attempt(Channel(ours), child, holding, self._patience)
            return attempt.run(self._request_for(holding), begun, draining)

    def _request_for(self, holding: Holding) -> Message:
        claim = holding.claim
        return {
            **self._source,
            "path": sys.path,
            "claim": [*claim.key, claim.token, claim.holder],
            "renewed": holding.renewed,
        }


def _spawn(end: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(end)],
        stdin=subprocess.DEVNULL,
        pass_fds=[end],
        start_new_session=True,
    )


class _Attempt:
    """One child process, from its start to its end."""

    def __init__(
        self,
        channel: Channel,
        child: subprocess.Popen[bytes],
        holding: Holding,
        patience: float,
    ) -> None:
        self._channel = channel
        self._child = child
        holding.process = child.pid
        self._holding = holding
        self._patience = patience
        self._born = elapsed()
        self._told: float | None = None
        self._outcome: AttemptOutcome | None = None
        self._started = False

    def run(
        self, request: Message, begun: Callable[[], None], draining: Callable[[], bool]
    ) -> AttemptOutcome:
        self._channel.send(**request)
        sent: Message = {"renewed": self._holding.renewed, "draining": False}
        try:
            while (said := self._channel.lines(CHILD_LOOK)) is not None:
                for word in said:
                    self._hear(word, begun)
                news = {"renewed": self._holding.renewed, "draining": draining()}
                if news != sent:
                    self._channel.send(**news)
                    sent = news
                self._stop_if_told()
        finally:
            self._kill()
            status = self._child.wait()
        return self._outcome or self._end(status)

    def _hear(self, word: Message, begun: Callable[[], None]) -> None:
        match word["say"]:
            case "starting":
                self._started = True
                # Race: from here on complete_in may have committed, and the child be killed before
                # it reports that.
                self._holding.promised = True
                begun()
            case "ended":
                self._outcome = outcome_of(word)
                self._told = (
                    self._told or elapsed()
                )  # leftovers get the same time as a stopped handler

    def _stop_if_told(self) -> None:
        """Ask the handler to stop, then kill it after the patience. On a lost claim, kill at
        once.
        """
        reason = self._holding.stop_reason
        if reason is None and self._told is None:
            if not self._started and elapsed() - self._born > START_LIMIT:
                self._outcome = Failed(
                    "its process did not start the handler in time; an import of "
                    "the application must not block"
                )
                self._kill()
            return
        if self._told is None:
            self._told = elapsed()
            self._channel.send(stop=reason)
        if reason == Reason.LOST or elapsed() - self._told > self._patience:
            self._kill()

    def _kill(self) -> None:
        """Kill the child and all its processes, before it is reaped: until then no other process
        has its number.
        """
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _end(self, status: int) -> AttemptOutcome:
        """Return the outcome of a child that ended without a report."""
        if (reason := self._holding.stop_reason) is not None:
            return Aborted(reason) if self._started else HandedBack(reason)
        how = (
            f"by {signal_name(-status)}"
            if status < 0
            else f"with exit status {status}"
        )
        when = "" if self._started else " before its handler started"
        return Failed(f"its process ended {how}{when}", promised=self._started)


def say_outcome(outcome: AttemptOutcome) -> Message:
    """Return an outcome as JSON data: its type and its fields, without the exception."""
    said = {
        one.name: getattr(outcome, one.name)
        for one in fields(outcome)
        if one.name != "exception"
    }
    match outcome:
        case Succeeded(follow_ups=FollowUps(follows=follows, arrivals=arrivals)) if (
            follows or arrivals
        ):
            return say_outcome(Failed(_FOLLOWS, final=True, promised=outcome.promised))
        case Succeeded(follow_ups=FollowUps() as left):
            said["follow_ups"] = {
                "result": None if left.result is None else left.result.decode(),
                "problem": left.problem,
                "checkpointed": left.checkpointed,
            }
        case Snoozed(duration=duration):
            said["duration"] = duration // timedelta(microseconds=1)
    return {"say": "ended", "outcome": type(outcome).__name__, "fields": said}


def outcome_of(said: Message) -> AttemptOutcome:
    found = said["fields"]
    if "duration" in found:
        found["duration"] = timedelta(microseconds=found["duration"])
    if found.get("follow_ups"):
        others = found["follow_ups"]
        result = others.pop("result")
        left = FollowUps(**others, result=None if result is None else result.encode())
        found["follow_ups"] = left
    outcome: AttemptOutcome = _OUTCOMES[said["outcome"]](**found)
    if isinstance(outcome, Failed) and "\n" in outcome.error:
        return replace(
            outcome, exception=RemoteError(error_summary(outcome.error), outcome.error)
        )
    return outcome


class RemoteError(Exception):
    """What the handler raised in a child process: its traceback as text."""

    def __init__(self, summary: str, traceback: str) -> None:
        super().__init__(summary)
        self.add_note(traceback)
