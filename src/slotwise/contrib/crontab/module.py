"""A crontab as a Python module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slotwise.contrib.crontab.entry import Entry
from slotwise.model.durations import format_duration

_HEAD = '''"""Jobs made from {files}.

Each keeps the name that it has under `slotwise worker --crontab`, and so its history. Change what you like here,
names last: another name is another job.
"""

from slotwise import CommandJob, Cron, JobRegistry

jobs = [
'''
_FOOT = """]

registry = JobRegistry(jobs=jobs)
"""


def module_text(entries: Sequence[Entry], inherit_env: Sequence[str] = ()) -> str:
    """The source of a module whose registry runs these lines."""
    files = ", ".join(dict.fromkeys(entry.file for entry in entries))
    return _HEAD.format(files=files.replace("\\", "/")) + "".join(_job(entry, inherit_env) for entry in entries) + _FOOT


def _job(entry: Entry, inherit_env: Sequence[str]) -> str:
    lines = [f"# {entry.place}", *entry.comment, "CommandJob("]
    lines += [f"    {name}={value}," for name, value in _arguments(entry, inherit_env).items()]
    return "".join(f"    {line}\n" for line in [*lines, "),"])


def _arguments(entry: Entry, inherit_env: Sequence[str]) -> dict[str, str]:
    optional = {
        "shell": _text(entry.shell) if "SHELL" in entry.env else None,
        "env": _mapping(entry.env) if entry.env else None,
        "user": None if entry.user is None else _text(entry.user),
        "stdin": None if entry.stdin is None else _text(entry.stdin),
        "timeout": None if entry.timeout is None else _text(format_duration(entry.timeout)),
        "on_lost": None if entry.on_lost == "rerun" else _text(entry.on_lost),
    }
    return {
        "name": _text(entry.name),
        "schedule": f'Cron({_text(entry.time)}, tz={_text(entry.schedule.zone.key)}, day_rule="vixie")',
        "command": _text(entry.command),
        "cwd": _text("~"),
        "inherit_env": f"[{', '.join(map(_text, inherit_env))}]" if inherit_env else "False",
        **{name: value for name, value in optional.items() if value is not None},
    }


def _mapping(env: Mapping[str, str]) -> str:
    inner = "".join(f"            {_text(name)}: {_text(value)},\n" for name, value in env.items())
    return f"{{\n{inner}        }}"


def _text(value: str) -> str:
    """As Python writes it, in double quotes where it can."""
    plain = repr(value)
    return f'"{plain[1:-1]}"' if plain.startswith("'") and '"' not in plain else plain
