"""What a test leaves in the process it shares with others, so that none depends on who ran before.

What commands and workers do to their process by design is undone: they send all log records to
stderr, import the application, append its folder to ``sys.path``, and handle signals. A test that
leaves another environment or folder fails, and so does one that leaves modules of slotwise imported
anew.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import TypeAlias

import pytest

LOGGERS = ("", "slotwise")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
#: As ``signal.getsignal`` returns it.
Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None
#: Set by pytest itself, for each phase of a test.
OF_PYTEST = "PYTEST_CURRENT_TEST"


@pytest.fixture(autouse=True)
def _process_as_it_was(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Undo or blame on the test what it leaves behind. Fixtures with a larger scope are set up
    before.
    """
    before = Process()
    yield
    before.restore_logging()
    before.forget_modules_in(tmp_path_factory.getbasetemp())
    sys.path[:] = before.path
    before.restore_signals()
    if left := before.blame():
        pytest.fail(f"the test leaves {'; '.join(left)}")


@dataclass(frozen=True, slots=True)
class LoggerState:
    """How one logger is configured."""

    handlers: tuple[logging.Handler, ...]
    level: int
    propagate: bool

    @staticmethod
    def of(logger: logging.Logger) -> LoggerState:
        return LoggerState(tuple(logger.handlers), logger.level, logger.propagate)

    def restore(self, logger: logging.Logger) -> None:
        logger.handlers[:] = self.handlers
        logger.setLevel(self.level)
        logger.propagate = self.propagate


def environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name != OF_PYTEST}


def signal_handlers() -> Mapping[signal.Signals, Handler]:
    return {number: signal.getsignal(number) for number in SIGNALS}


@dataclass(frozen=True, slots=True)
class Process:
    """The state of this process when it was made."""

    loggers: Mapping[str, LoggerState] = field(
        default_factory=lambda: {
            name: LoggerState.of(logging.getLogger(name)) for name in LOGGERS
        }
    )
    modules: Mapping[str, ModuleType] = field(
        default_factory=lambda: dict(sys.modules)
    )
    path: list[str] = field(default_factory=lambda: list(sys.path))
    environment: Mapping[str, str] = field(default_factory=environment)
    folder: Path = field(default_factory=Path.cwd)
    signals: Mapping[signal.Signals, Handler] = field(default_factory=signal_handlers)

    def restore_logging(self) -> None:
        for name, state in self.loggers.items():
            state.restore(logging.getLogger(name))
        logging.captureWarnings(False)

    def forget_modules_in(self, folder: Path) -> None:
        """Forget applications of this test: another test's may have the same name."""
        for name in sys.modules.keys() - self.modules.keys():
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).is_relative_to(folder):
                del sys.modules[name]

    def blame(self) -> list[str]:
        """Restore the rest, so that no later test is blamed for it; say what was changed."""
        return [
            *self._restore_environment(),
            *self._restore_folder(),
            *self._restore_modules(),
        ]

    def _restore_environment(self) -> Iterator[str]:
        now = environment()
        for name in sorted(now.keys() | self.environment.keys()):
            if now.get(name) == self.environment.get(name):
                continue
            yield f"${name} as {now.get(name)!r}"
            os.environ.pop(name, None)
            if name in self.environment:
                os.environ[name] = self.environment[name]

    def _restore_folder(self) -> Iterator[str]:
        if (now := Path.cwd()) != self.folder:
            yield f"{now} as the current folder"
            os.chdir(self.folder)

    def restore_signals(self) -> None:
        """Workers of one process that stop in another order than they started leave their own."""
        for number, handler in self.signals.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)

    def _restore_modules(self) -> Iterator[str]:
        for name, module in self.modules.items():
            is_ours = name.partition(".")[0] == "slotwise"
            if is_ours and sys.modules.get(name) is not module:
                yield f"another module {name}"
                sys.modules[name] = module
