"""The loops of a worker, and where handlers run.

Tests import inner names from here: a module that moves is named in one place.
"""

from __future__ import annotations

from slotwise.engine import sign_in
from slotwise.engine.loops import held_claims
from slotwise.engine.loops.claim_planner import (
    DUE_NOW,
    ClaimPlanner,
    Look,
    Memory,
    Plan,
    Rate,
    Report,
    Rest,
    Situation,
    SlotClaim,
    Starts,
    TaskClaim,
    TasksFound,
    Terms,
    Turns,
)
from slotwise.engine.loops.counting import Counting
from slotwise.engine.loops.held_claims import LeaseWatch, Tally
from slotwise.engine.loops.housekeeping import WakeUp, Watch
from slotwise.engine.loops.poller import Peers, Poller
from slotwise.engine.loops.service import AT_ONCE, Common, WorkerCommon
from slotwise.engine.run import event_loop, outcomes
from slotwise.engine.run.active_claims import ActiveClaims, Holding
from slotwise.engine.run.event_loop import EventLoop
from slotwise.engine.run.outcomes import error_text
from slotwise.engine.run.runner import Runner
from slotwise.engine.run.threads import Standby, Threads
from slotwise.engine.sign_in import Membership, keep_trying

__all__ = [
    "AT_ONCE",
    "DUE_NOW",
    "ActiveClaims",
    "ClaimPlanner",
    "Common",
    "Counting",
    "EventLoop",
    "Holding",
    "LeaseWatch",
    "Look",
    "Membership",
    "Memory",
    "Peers",
    "Plan",
    "Poller",
    "Rate",
    "Report",
    "Rest",
    "Runner",
    "Situation",
    "SlotClaim",
    "Standby",
    "Starts",
    "Tally",
    "TaskClaim",
    "TasksFound",
    "Terms",
    "Threads",
    "Turns",
    "WakeUp",
    "Watch",
    "WorkerCommon",
    "error_text",
    "event_loop",
    "held_claims",
    "keep_trying",
    "outcomes",
    "sign_in",
]
