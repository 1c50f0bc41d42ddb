"""Operations on many recurring instances, which --scope, --tag and --prefix choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slotwise.cli.shared.options import Given
from slotwise.cli.shared.output import print_result
from slotwise.cli.shared.terminal import say
from slotwise.contrib.wording import counted
from slotwise.inspect import RECURRING
from slotwise.operations import InstanceFilter

#: Ids that a preview names.
SHOWN = 5


#: An operation on the instances of a filter; it returns their ids.
Act = Callable[..., Sequence[str]]


def chosen(given: Given, id: str = RECURRING) -> InstanceFilter | None:
    """Return the filter that the options say; None if they name no scope, tag or prefix."""
    if not given.chosen:
        return None
    return InstanceFilter(**given.chosen, id=None if id == RECURRING else id)


def for_each(
    given: Given, name: str, where: InstanceFilter, act: Act, done: str
) -> None:
    """Preview the instances, ask, and carry the operation out."""
    found = act(name, where, dry_run=True)
    if not given.json:
        say(_preview(name, found), err=True)
    if found and not given.dry_run:
        given.confirm(f"{counted(len(found), 'instance')} of {name} will be {done}.")
        found = act(name, where, **given.how)
    print_result(
        given,
        f"{name}: {counted(len(found), 'instance')} {done}",
        job=name,
        ids=list(found),
    )


def _preview(name: str, ids: Sequence[str]) -> str:
    if not ids:
        return f"{name}: no instance is chosen, or none would change"
    more = f", … {len(ids) - SHOWN:,} more" if len(ids) > SHOWN else ""
    return f"{name}: {', '.join(ids[:SHOWN])}{more}"
