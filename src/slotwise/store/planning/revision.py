"""What a row says of its code and deploy; which of two deploys is newer, as the older one's
proposals do not count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from slotwise.jobs.finish_by import FinishBy

_HASH = re.compile(r"(?=.*[a-f])[0-9a-f]{7,64}", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_TRAILING_ZEROS = re.compile(r"(?:\.0+)+$")
_DESCRIBED = re.compile(r"-g[0-9a-f]{4,40}(-dirty)?$")  # what `git describe` appends


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a job's row says of its code and of the deploy that planned it: the document
    ``plan``.
    """

    fingerprint: str | None = None
    runs_on: tuple[str, ...] = ()
    revision: str | None = None
    deployed: datetime | None = None
    finish_by: FinishBy | None = None

    @classmethod
    def load(cls, plan: Mapping[str, Any] | None) -> Declared:
        """Read the document. A key of another release is not read. Raises ValueError for a
        malformed one.
        """
        found = {} if plan is None else plan
        if not isinstance(found, Mapping):
            raise ValueError(f"plan is {found!r:.60}, which is not an object")
        tags = found.get("runs_on") or []
        deployed = found.get("deployed")
        if not _is_list_of_strings(tags) or not isinstance(deployed, str | None):
            raise ValueError(
                f"plan is {found!r:.60}, whose runs_on and deployed are not strings"
            )
        return cls(
            fingerprint=found.get("fingerprint"),
            runs_on=tuple(tags),
            revision=found.get("revision"),
            deployed=datetime.fromisoformat(deployed) if deployed else None,
            finish_by=FinishBy.read(found.get("finish_by")),
        )

    @classmethod
    def readable(cls, plan: Mapping[str, object] | None) -> Declared:
        """As ``load``; nothing is declared by a malformed document."""
        try:
            return cls.load(plan)
        except ValueError:
            return cls()

    @property
    def by(self) -> Revision:
        return Revision(text=self.revision, started=self.deployed)

    def document(self) -> dict[str, object]:
        """Return what is stored: the values that are there."""
        found = {
            "fingerprint": self.fingerprint,
            "runs_on": list(self.runs_on),
            "revision": self.revision,
            "deployed": self.deployed and self.deployed.isoformat(),
            "finish_by": self.finish_by and self.finish_by.document(),
        }
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A deploy. ``text``: its id, if somebody gave one; ``started``: when it started, by the
    database's clock.
    """

    text: str | None = None
    started: datetime | None = None

    def is_older(self, than: Revision) -> bool:
        """Whether this is the older deploy: one without an id is older than one with an id.

        Numbers, versions (v9 < v10) and ISO times are compared; for hashes and unlike ids, the
        later start is newer.
        """
        if self.text == than.text and self.text is not None:
            return False
        if self.text is None or than.text is None:
            return than.text is not None or (
                self.text is None and self._started_before(than)
            )
        (ours, place), (theirs, their_place) = _ranked(self.text), _ranked(than.text)
        return (
            bool(place < their_place) if ours == theirs else self._started_before(than)
        )

    def replaces(self, other: Revision) -> bool:
        """Whether a row that ``other`` has planned, and that needs nothing else, is to name this
        deploy instead.
        """
        return not self.is_older(other) and (
            self.text is None or self.text != other.text
        )

    def _started_before(self, other: Revision) -> bool:
        return (
            self.started is not None
            and other.started is not None
            and self.started < other.started
        )

    def __str__(self) -> str:
        if self.text is not None:
            return self.text
        return (
            "none"
            if self.started is None
            else f"none (started {self.started.isoformat(' ', 'seconds')})"
        )

    def cure(self, newer: Revision) -> str:
        """What helps if this one, which was refused for ``newer``, is the right one after all."""
        cure = "start its workers again"
        if newer.text is not None and (
            self.text is None or _ranked(self.text)[0] == _ranked(newer.text)[0]
        ):
            above = f"above {newer.text}" if _ranked(newer.text)[1] else "of its own"
            cure = f"start its workers with a --revision {above}"
        return f"if this code is newer: {cure}"


def _ranked(text: str) -> tuple[str, Any]:
    """Its form, and its place among those of the same form. A hash is a form of its own."""
    if not text.isdigit():
        if (instant := _instant(text)) is not None:
            return "time", instant
        if _HASH.fullmatch(text):
            return text, ()
    text = _DESCRIBED.sub("", text).casefold()
    numbers = (
        _TRAILING_ZEROS.sub("", found).split(".") for found in _NUMBER.findall(text)
    )  # 1.0 is 1
    return _NUMBER.sub("#", text), tuple(tuple(map(int, parts)) for parts in numbers)


def _is_list_of_strings(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(one, str) for one in value
    )


def _instant(text: str) -> datetime | None:
    """ISO 8601, in UTC unless it says otherwise; also as `git log` spells it, with spaces."""
    try:
        found = datetime.fromisoformat(re.sub(r" (?=[+-]\d)", "", text))
    except ValueError:
        return None
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
