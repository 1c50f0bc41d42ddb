"""Run what is due, and end: for functions, pods and external clocks."""

from slotwise.contrib.tick.asgi import TickASGI
from slotwise.contrib.tick.tick import Tick, TickResult, TickState
from slotwise.contrib.tick.wsgi import TickWSGI

__all__ = ["Tick", "TickASGI", "TickResult", "TickState", "TickWSGI"]
