"""Answer operators who ask where the handlers of this worker are."""

from __future__ import annotations

import logging

from slotwise.engine.loops.service import WorkerCommon
from slotwise.engine.run.stacks import stacks
from slotwise.store.connect.database_errors import describe_error
from slotwise.store.operations.stacks import Questions

logger = logging.getLogger(__name__)


class StackAnswers:
    """A question that cannot be read or answered, for lack of a right or of space, stops nothing:
    it is logged at most once an hour.
    """

    def __init__(self, common: WorkerCommon) -> None:
        self._worker = common.worker
        self._active_claims = common.active_claims
        self._warnings = common.store.warnings
        self._questions = Questions(common.store)

    def __call__(self) -> None:
        """Answer the question to this worker, if there is one."""
        try:
            asked = self._questions.asked_of(self._worker)
            if asked is not None:
                found = stacks(self._active_claims)
                self._questions.answer(self._worker, asked, found)
        except Exception as error:
            why = describe_error(error)
            if lost := self._warnings.count("stacks", why):
                logger.warning(
                    "questions for stacks are not answered (%d): %s", lost, why
                )
