"""Importing slotwise does nothing but define names."""

from __future__ import annotations

import json
import subprocess
import sys

PROBE = """
import json, logging, signal, socket, sys, threading

def snapshot():
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    return {
        "threads": threading.active_count(),
        "handlers": sum(len(logger.handlers) for logger in loggers if type(logger.handlers) is list
                        and not all(isinstance(handler, logging.NullHandler) for handler in logger.handlers)),
        "level": logging.root.level,
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    }

sockets = []
make = socket.socket.__init__
socket.socket.__init__ = lambda self, *given, **named: (sockets.append(given), make(self, *given, **named))[1]
before = snapshot()
import slotwise
drivers = sorted(name for name in sys.modules if name.partition(".")[0] in ("psycopg", "psycopg_binary", "psycopg2"))
print(json.dumps({"changed": before != snapshot(), "sockets": len(sockets), "drivers": drivers}))
"""


def test_import_has_no_side_effect() -> None:
    """`import slotwise` starts no thread, opens no connection, touches neither logging nor
    signals, loads no driver.
    """
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROBE],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stderr == ""
    assert json.loads(run.stdout) == {"changed": False, "sockets": 0, "drivers": []}


def test_registry_touches_no_database() -> None:
    """Building a registry neither connects nor loads a driver, whatever its address."""
    code = (
        "import sys, slotwise\n"
        "@slotwise.job(name='tick', schedule=slotwise.Every('1m'))\n"
        "def tick(ctx): pass\n"
        "slotwise.JobRegistry(jobs=[tick], database_url='postgresql://nobody@192.0.2.1/nothing')\n"
        "print('psycopg' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (run.stdout, run.stderr) == ("False\n", "")
