"""The account that a command runs as."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from typing import Any

from slotwise.errors import CommandFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user of this host."""

    name: str
    uid: int
    gid: int
    home: str

    @property
    def is_ours(self) -> bool:
        """Whether this process runs as it already."""
        return self.uid == os.geteuid()

    def switch(self) -> dict[str, Any]:
        """What ``Popen`` needs in order to become it, with all its groups; nothing where we are it already."""
        if self.is_ours:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": os.getgrouplist(self.name, self.gid)}


def account_of(user: str | None) -> Account:
    """The account of this name; None is the worker's own. Raises CommandFailed if we cannot become it."""
    if user is None:
        return _our_own()
    try:
        found = _account(pwd.getpwnam(user))
    except KeyError:
        raise CommandFailed(f"there is no user {user!r} on this host; create it, or name another one") from None
    if not found.is_ours and os.geteuid() != 0:
        raise CommandFailed(
            f"only root can run a command as {user!r}, and this process runs as {_our_own().name!r}; "
            f"run it as root or as {user!r}"
        )
    return found


def _our_own() -> Account:
    """A container may run under a number that has no entry; then the environment says where its home is."""
    try:
        return _account(pwd.getpwuid(os.geteuid()))
    except KeyError:
        uid = os.geteuid()
        return Account(name=str(uid), uid=uid, gid=os.getegid(), home=os.environ.get("HOME", "/"))


def _account(entry: pwd.struct_passwd) -> Account:
    return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, home=entry.pw_dir)
