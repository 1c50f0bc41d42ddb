"""A runner that waits to be told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slotwise.engine.run.active_claims import Holding
from slotwise.engine.run.runner import Runner
from slotwise.model.records import AttemptOutcome


class HeldRunner(Runner):
    """Keeps what was claimed; a handler runs when the test says so, and the test waits for its end."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        #: Claimed, and neither run nor ended by hand.
        self.waiting: list[Holding] = []

    def start(self, held: Iterable[Holding], *, first: bool = False) -> None:
        if self._draining:
            super().start(held)  # which hands them back
        else:
            self.waiting.extend(held)

    def run(self, holding: Holding) -> None:
        """Run the handler to its end: in this thread, or on the loop if it is ``async def``."""
        self.waiting.remove(holding)
        definition = self._definitions[holding.claim.row.task_name]
        if definition.is_async and self._loop is not None:
            self._loop.submit(self._run_async(holding, definition)).result()
        else:
            self._run(holding, definition)

    def begin(self, holding: Holding) -> bool:
        """All that happens before a handler is entered. False: it may not start any more, and goes back."""
        definition = self._definitions[holding.claim.row.task_name]
        refused = self._refusal(holding, definition)
        if refused is not None:
            self.end(holding, refused)
        return refused is None

    def end(self, holding: Holding, outcome: AttemptOutcome) -> None:
        """The attempt has ended so, without its handler."""
        if holding in self.waiting:
            self.waiting.remove(holding)
        self._on_end(holding, outcome)
