"""The page on policies lists what may be declared, and why slots are skipped; the types of
keywords agree with it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from tests.docs.markdown import ROOT, table

import slotwise
from slotwise import DistributedJob, OneTimeTask
from slotwise.jobs.definition import POLICIES
from slotwise.jobs.job import TaskPolicies
from slotwise.spi import REASONS, JobPolicies, Reason

PAGE = ROOT / "docs" / "policies.md"
SOURCE = Path(slotwise.__file__).parent
OF_JOBS = set(JobPolicies.__annotations__)
OF_TASKS = set(TaskPolicies.__annotations__)


def _registered() -> Iterator[str]:
    """The reasons that integrations register, each by a constant of its module."""
    for file in sorted(SOURCE.glob("contrib/**/*.py")):
        if "register_reason(" in (text := file.read_text()):
            module = import_module(
                ".".join(("slotwise", *file.relative_to(SOURCE).with_suffix("").parts))
            )
            for node in ast.walk(ast.parse(text)):
                if (
                    isinstance(node, ast.Call)
                    and ast.unparse(node.func) == "register_reason"
                ):
                    reason = node.args[0]
                    yield str(
                        ast.literal_eval(reason)
                        if isinstance(reason, ast.Constant)
                        else getattr(module, ast.unparse(reason))
                    )


def test_every_reason_of_a_skipped_slot_is_listed() -> None:
    """Of the core and of the integrations, and no other."""
    cells = next(
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("| reason of a skipped slot")
    )
    rows = PAGE.read_text().partition(cells)[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `(\w[\w ]*)` \|", rows, re.MULTILINE)
    skipped = {
        str(reason) for reason in {*Reason, *_registered()} if REASONS[reason].skipped
    }
    assert sorted(listed) == sorted(skipped), (
        "add a row to the table of reasons in docs/policies.md, or remove one"
    )


def test_every_policy_of_jobs_is_listed() -> None:
    """In the table, and of tasks in the paragraph below it."""
    listed = {name for name, *_ in table(PAGE, "## What a job declares")}
    assert listed == OF_JOBS | {"name", "schedule", "execute(ctx)"}, (
        "add a row to the first table of docs/policies.md"
    )
    below = (
        PAGE.read_text().partition("A one-time task declares ")[2].partition("\n\n")[0]
    )
    named = set(re.findall(r"`(\w+)`", below))
    assert named == OF_TASKS | {"name", "execute"}, (
        "add it to the paragraph on one-time tasks in docs/policies.md"
    )


def test_every_policy_is_read() -> None:
    """What the decorators take besides the payload is a field of Definition."""
    assert set(POLICIES) == (OF_JOBS | OF_TASKS) - {
        "payload",
        "payload_version",
        "upgrades",
        "codec",
    }


@pytest.mark.parametrize(
    ("kind", "policies"),
    [(DistributedJob, OF_JOBS), (OneTimeTask, OF_TASKS)],
    ids=["jobs", "tasks"],
)
def test_every_policy_has_a_type(kind: type, policies: set[str]) -> None:
    """For type checkers, as an attribute of the class as well."""
    attributes = {
        name for owner in kind.__mro__ for name in inspect.get_annotations(owner)
    }
    assert attributes - {"name", "schedule"} == policies, (
        f"add it to {kind.__name__} in jobs/job.py"
    )
