"""What a test leaves in its process is undone, or blamed on it."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.kit.leftovers import Process

from slotwise.contrib.logging import configure


def test_logging_of_a_command_ends_with_its_test() -> None:
    """Also of handlers whose stream is closed by then, such as a captured stderr."""
    root = logging.getLogger()
    before, handlers = Process(), list(root.handlers)
    configure("json", "DEBUG")
    logging.getLogger("slotwise").propagate = False
    before.restore_logging()
    assert root.handlers == handlers
    assert root.level != logging.DEBUG
    assert logging.getLogger("slotwise").propagate


def test_an_application_is_imported_anew_by_the_next_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tests may have applications of one name."""
    before = Process()
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "left_behind.py").write_text("")
    importlib.import_module("left_behind")
    before.forget_modules_in(tmp_path.parent)
    assert "left_behind" not in sys.modules


def test_what_else_is_left_is_blamed_and_undone(tmp_path: Path) -> None:
    folder, handler = Path.cwd(), signal.getsignal(signal.SIGTERM)
    module = sys.modules["slotwise.contrib.logging"]
    before = Process()
    os.environ["LEFT_BEHIND"] = "here"
    os.chdir(tmp_path)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    del sys.modules["slotwise.contrib.logging"]
    before.restore_signals()
    assert before.blame() == [
        "$LEFT_BEHIND as 'here'",
        f"{tmp_path} as the current folder",
        "another module slotwise.contrib.logging",
    ]
    assert "LEFT_BEHIND" not in os.environ
    assert Path.cwd() == folder
    assert signal.getsignal(signal.SIGTERM) is handler
    assert sys.modules["slotwise.contrib.logging"] is module
    assert before.blame() == []
