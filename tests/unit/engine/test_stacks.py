"""What a worker says of where its handlers are."""

from __future__ import annotations

import threading

from tests.unit.engine.conftest import Bench

from slotwise.engine.run.stacks import stack_of, stacks
from slotwise.engine.run.tuning import LONGEST_STACK


def test_only_what_runs_has_a_stack(bench: Bench) -> None:
    """Neither what waits for a thread, nor what has ended."""
    waits, runs, ended = bench.hold(3)
    for one in (runs, ended):
        assert one.begin()
        one.runs_in = threading.get_ident()
    assert ended.end()
    (found,) = stacks([waits, runs, ended])
    assert (found["task"], found["id"]) == ("mail", runs.claim.row.task_instance)
    assert "test_only_what_runs_has_a_stack" in str(found["stack"])
    assert len(str(found["stack"])) <= LONGEST_STACK


def test_a_handler_in_a_process_of_its_own_is_named(bench: Bench) -> None:
    """This worker cannot look into it; it says which process, and how to."""
    (holding,) = bench.hold()
    assert holding.begin()
    holding.process = 4711
    assert "py-spy dump --pid 4711" in stack_of(holding)


def test_a_thread_that_has_ended_has_none(bench: Bench) -> None:
    """Race: between the look at what runs and at its thread."""
    (holding,) = bench.hold()
    assert holding.begin()
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    holding.runs_in = thread.ident
    assert stack_of(holding) == ""
    holding.runs_in = None
    assert stack_of(holding) == ""
