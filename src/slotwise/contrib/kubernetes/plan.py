"""The mapping file: which image, where the pods of a set of tags run, and which jobs get a
CronJob.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias

from slotwise import ConfigurationError
from slotwise.spi import parse_duration, read_document

#: A label of DNS, by RFC 1123; and names of several labels.
_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME: Final = re.compile(_LABEL)
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST_LABEL: Final = 63
_LONGEST_SUBDOMAIN: Final = 253
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_PART: Final = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
#: ``host:port/path:tag@digest``, as runtimes of containers read it.
_IMAGE: Final = re.compile(
    rf"([A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?/|\[[0-9a-fA-F:]+\](:[0-9]+)?/)?{_PART}(/{_PART})*"
    r"(:[A-Za-z0-9_][-.A-Za-z0-9_]{0,127})?(@[A-Za-z][-+._A-Za-z0-9]*:[0-9a-fA-F]{32,})?"
)
_LONGEST_IMAGE: Final = 500
#: A name that every version of Kubernetes takes for a variable.
_VARIABLE: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
#: A quantity: digits, and a suffix of tens or of 1,024, or an exponent.
_QUANTITY: Final = re.compile(
    r"(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][-+]?\d{1,2})?"
)
_SUFFIXES: Final = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    **{letter: 1000**power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)},
}
#: A label's name behind its domain, and a label's value that is not empty.
_WORD: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_OPERATORS: Final = ("Exists", "Equal")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
#: What the export itself sets in each container.
_ADDRESSES: Final = frozenset({"SLOTWISE_DATABASE_URL", "DATABASE_URL"})
_OURS: Final = frozenset(
    {
        "SLOTWISE_APP",
        "SLOTWISE_HTTP",
        "SLOTWISE_ONLY",
        "SLOTWISE_REVISION",
        "SLOTWISE_SCHEMA",
        "SLOTWISE_SHUTDOWN_GRACE",
        "SLOTWISE_TABLE_PREFIX",
        "SLOTWISE_TAGS",
    }
)
#: The longest name: a CronJob's has at most 52 characters, and a Deployment's adds its tags.
_LONGEST_NAME: Final = 30
DEFAULT_RESOURCES: Final = {
    "requests": {"cpu": "100m", "memory": "128Mi"},
    "limits": {"memory": "256Mi"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Where pods run, and with what. ``replicas`` counts for a Deployment only."""

    replicas: int = 2
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, object]] = ()
    #: Over those of all workers, which are over ``DEFAULT_RESOURCES``: each quantity by itself.
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an export needs besides the application.

    ``secret`` has the database's address under ``secret_key``; ``migration_secret``, if given, one
    of a role that may create tables. ``tags`` says where the pods that offer a tag run;
    ``cron_jobs`` are the jobs that run in CronJobs.
    """

    image: str
    name: str = "slotwise"
    namespace: str | None = None
    service_account: str | None = None
    secret: str | None = None
    secret_key: str = "url"
    migration_secret: str | None = None
    #: Where a worker serves ``/livez``, ``/readyz`` and ``/metrics``.
    port: int = 8081
    early: timedelta = timedelta(seconds=30)
    env: Mapping[str, str] = field(default_factory=dict)
    cron_jobs: frozenset[str] = frozenset()
    workers: Pods = field(default_factory=Pods)
    tags: Mapping[str, Pods] = field(default_factory=dict)

    def pods(self, tags: frozenset[str]) -> Pods:
        """Return where pods run that offer these tags: what their tables say, over that of all
        workers.

        Raise ConfigurationError if two of the tags need different nodes, or if Kubernetes would
        refuse the resources.
        """
        found = self.workers
        place = f"tags {', '.join(sorted(tags))}" if tags else "workers"
        resources = _over(DEFAULT_RESOURCES, self.workers.resources)
        for tag in sorted(tags & self.tags.keys()):
            mine = self.tags[tag]
            both = (
                found.node_selector.keys() & mine.node_selector.keys()
                if found is not self.workers
                else set()
            )
            for key in sorted(both):
                if found.node_selector[key] != mine.node_selector[key]:
                    raise ConfigurationError(
                        f"{place}: node_selector {key} is {found.node_selector[key]!r} and "
                        f"{mine.node_selector[key]!r}; no node has both: correct [tags.{tag}]"
                    )
            resources = _over(resources, mine.resources)
            found = replace(
                mine,
                node_selector={**found.node_selector, **mine.node_selector},
                tolerations=[
                    *found.tolerations,
                    *(one for one in mine.tolerations if one not in found.tolerations),
                ],
            )
        if problems := [f"{place}: {problem}" for problem in _refused(resources)]:
            raise ConfigurationError("\n".join(problems))
        return replace(found, resources=resources)


def _over(
    below: Mapping[str, Mapping[str, str]], above: Mapping[str, Mapping[str, str]]
) -> dict[str, Mapping[str, str]]:
    kinds = [*below, *(kind for kind in above if kind not in below)]
    return {kind: {**below.get(kind, {}), **above.get(kind, {})} for kind in kinds}


def _refused(resources: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    limits = resources.get("limits", {})
    for key, wanted in resources.get("requests", {}).items():
        limit = limits.get(key)
        if key not in _RESOURCES and (limit is None or _size(limit) != _size(wanted)):
            yield (
                f"requests.{key} is {wanted} and its limit {limit or 'missing'}; write "
                f"limits.{key} = {wanted!r}"
            )
        elif limit is not None and _size(wanted) > _size(limit):
            yield (
                f"requests.{key} is {wanted}, above its limit {limit}; raise "
                f"limits.{key}, or lower the request"
            )


def read_plan(path: str | Path | None = None, **options: object) -> Plan:
    """Read a mapping file, TOML or YAML; ``options`` that are not None outrank it.

    Raise ConfigurationError with a line for each problem: place, value and cure.
    """
    content = {} if path is None else _content(Path(path))
    given = {name: value for name, value in options.items() if value is not None}
    reading = _Reading("" if path is None else f"{path}: ", [])
    found = reading.table("", {**content, **given}, _PLAN)
    if "image" not in found and not reading.problems:
        reading.problems.append(
            f"{reading.file}image is missing; name it: --image registry.example/shop:1.4"
        )
    if reading.problems:
        raise ConfigurationError("\n".join(reading.problems))
    workers: Pods = found.get("workers", Pods())
    tags = {
        tag: replace(workers, **{"resources": {}, **given})
        for tag, given in found.pop("tags", {}).items()
    }
    return Plan(**found, tags=tags)


def _content(path: Path) -> Mapping[str, object]:
    content = read_document(path, "mapping file", "name a mapping file, TOML or YAML")
    if not isinstance(content, Mapping):
        raise ConfigurationError(
            f"{path}: expected a table of settings; write e.g. image: registry.example/shop:1.4"
        )
    return content


class _Wrong(Exception):
    """A value cannot be used; the text continues a line that shows it."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads tables, and notes each problem with its place."""

    file: str
    problems: list[str]

    def table(
        self, place: str, content: object, known: Mapping[str, _Read]
    ) -> dict[str, Any]:
        found: dict[str, object] = {}
        if not isinstance(content, Mapping):
            self.wrong(place, content, f"is not a table; write [{place}]")
            return found
        for key, value in content.items():
            where = f"{place}.{key}" if place else str(key)
            try:
                found[key] = self._known(key, known)(self, where, value)
            except _Wrong as error:
                self.wrong(where, value, str(error))
        return found

    def wrong(self, place: str, value: object, cure: str) -> None:
        self.problems.append(f"{self.file}{place}: {value!r:.60} {cure}")

    def _known(self, key: object, known: Mapping[str, _Read]) -> _Read:
        if isinstance(key, str) and key in known:
            return known[key]
        near = get_close_matches(str(key), known, n=1)
        raise _Wrong(
            f"is under an unknown key; {f'did you mean {near[0]}?' if near else 'remove it'}"
        )


#: Reads a value at a place. Raises _Wrong.
_Read: TypeAlias = Callable[[_Reading, str, object], object]


def _name(at: _Reading, place: str, value: object) -> str:
    if (
        isinstance(value, str)
        and len(value) <= _LONGEST_NAME
        and _NAME.fullmatch(value)
    ):
        return value
    raise _Wrong(
        f"is not a name for Kubernetes; write up to {_LONGEST_NAME} of a-z, 0-9 "
        "and, between them, -"
    )


def _namespace(at: _Reading, place: str, value: object) -> str:
    if (
        isinstance(value, str)
        and len(value) <= _LONGEST_LABEL
        and _NAME.fullmatch(value)
    ):
        return value
    raise _Wrong(
        f"is not a namespace's name; write up to {_LONGEST_LABEL} of a-z, 0-9 and, between them, -"
    )


def _object_name(at: _Reading, place: str, value: object) -> str:
    if (
        isinstance(value, str)
        and len(value) <= _LONGEST_SUBDOMAIN
        and _SUBDOMAIN.fullmatch(value)
    ):
        return value
    raise _Wrong(
        f"is not a name of Kubernetes; write up to {_LONGEST_SUBDOMAIN} of a-z, "
        "0-9 and, between them, - or ."
    )


def _key(at: _Reading, place: str, value: object) -> str:
    if isinstance(value, str) and _KEY.fullmatch(value):
        return value
    raise _Wrong("is not a key of a Secret; write letters, digits, -, _ and .")


def _image(at: _Reading, place: str, value: object) -> str:
    if (
        isinstance(value, str)
        and len(value) <= _LONGEST_IMAGE
        and _IMAGE.fullmatch(value)
    ):
        return value
    raise _Wrong("is not an image; write e.g. registry.example/shop:1.4")


def _env(at: _Reading, place: str, value: object) -> dict[str, str]:
    found = _texts(at, place, value)
    for name in found:  # their values may hold a password, and are not shown
        why = None
        if name in _ADDRESSES:
            why = "comes from the Secret; put the address there, and name it: secret"
        elif name in _OURS:
            why = "is set by the export, from the application and options; remove it"
        elif not _VARIABLE.fullmatch(name):
            why = (
                "is not the name of a variable; write letters, digits, -, _ and ., "
                "with no digit first"
            )
        if why is not None:
            shown = name if _VARIABLE.fullmatch(name) else f"{name!r:.60}"
            at.problems.append(f"{at.file}{place}.{shown} {why}")
    return found


def _count(at: _Reading, place: str, value: object) -> int:
    if type(value) is int and 0 <= value <= 10_000:
        return value
    raise _Wrong("is not a number of pods; write a whole number from 0")


def _port(at: _Reading, place: str, value: object) -> int:
    if type(value) is int and 1024 <= value <= 65_535:
        return value
    raise _Wrong(
        "is not a port that a pod without root can open; write a whole number from 1024 to 65535"
    )


def _duration(at: _Reading, place: str, value: object) -> timedelta:
    try:
        return parse_duration(value)
    except (ConfigurationError, ValueError, TypeError):
        raise _Wrong("is no duration; write e.g. 30s") from None


def _names(at: _Reading, place: str, value: object) -> frozenset[str]:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        if twice := [
            one for one in dict.fromkeys(value) if list(value).count(one) > 1
        ]:
            raise _Wrong(f"has {twice[0]!r} twice; remove one")
        return frozenset(value)
    raise _Wrong('is not a list of names; write e.g. ["nightly-report"]')


def _texts(at: _Reading, place: str, value: object) -> dict[str, str]:
    if isinstance(value, Mapping) and all(
        isinstance(one, str) for pair in value.items() for one in pair
    ):
        return dict(value)
    raise _Wrong('is not a table of strings; write e.g. { disk = "ssd" }')


def _is_label(key: str) -> bool:
    domain, slash, word = key.rpartition("/")
    is_domain = (
        len(domain) <= _LONGEST_SUBDOMAIN and _SUBDOMAIN.fullmatch(domain) is not None
    )
    return _WORD.fullmatch(word) is not None and (is_domain or not slash)


def _node_selector(at: _Reading, place: str, value: object) -> dict[str, str]:
    found = _texts(at, place, value)
    for key, wanted in found.items():
        if not _is_label(key):
            at.wrong(
                place, key, "is not a label of nodes; write e.g. example.com/disk"
            )
        elif wanted and not _WORD.fullmatch(wanted):
            at.wrong(
                f"{place}.{key}",
                wanted,
                "is not a label's value; write up to 63 letters, digits, -, _ and .",
            )
    return found


def _tolerations(at: _Reading, place: str, value: object) -> list[dict[str, object]]:
    keys = {"key", "operator", "value", "effect", "tolerationSeconds"}
    if not isinstance(value, list | tuple) or not all(
        isinstance(one, Mapping) and one.keys() <= keys for one in value
    ):
        raise _Wrong(
            f"is not a list of tolerations, tables with {', '.join(sorted(keys))}; "
            "write them as in a pod"
        )
    for number, one in enumerate(value):
        for part, said, cure in _wrong_in_toleration(one):
            at.wrong(f"{place}[{number}]{part}", said, cure)
    return [dict(one) for one in value]


def _wrong_in_toleration(
    one: Mapping[str, object],
) -> Iterator[tuple[str, object, str]]:
    """Yield each part that is wrong: where, its value, and what is wrong."""
    for name, allowed in (("operator", _OPERATORS), ("effect", _EFFECTS)):
        if name in one and one[name] not in allowed:
            yield f".{name}", one[name], f"is unknown; write {', '.join(allowed)}"
    key = one.get("key")
    exists = one.get("operator") == "Exists"
    if "key" in one and not (isinstance(key, str) and _is_label(key)):
        yield ".key", key, "is not the key of a taint; write e.g. nvidia.com/gpu"
    if exists and one.get("value"):
        yield (
            ".value",
            one["value"],
            'is not compared; remove it, or write operator = "Equal"',
        )
    if "key" not in one and not exists:
        yield "", dict(one), 'has no key; name it, or write operator = "Exists"'


def _quantities(at: _Reading, place: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _Wrong('is not a table of quantities; write e.g. { memory = "256Mi" }')
    found = {}
    for key, one in value.items():
        near = get_close_matches(str(key), _RESOURCES, n=1)
        if (
            key not in _RESOURCES
            and "/" not in str(key)
            and not str(key).startswith("hugepages-")
        ):
            cure = (
                f"did you mean {near[0]}?"
                if near
                else f"known are {', '.join(_RESOURCES)}, and names with a domain"
            )
            at.wrong(f"{place}.{key}", one, f"is for an unknown resource; {cure}")
        elif (
            isinstance(one, bool)
            or not isinstance(one, str | int | float)
            or not _QUANTITY.fullmatch(str(one))
        ):
            at.wrong(
                f"{place}.{key}",
                one,
                f"is not a quantity; write e.g. {'500m' if key == 'cpu' else '256Mi'}",
            )
        elif "/" in key and not _size(str(one)).is_integer():
            at.wrong(
                f"{place}.{key}", one, "is a part of a device; write a whole number"
            )
        else:
            found[str(key)] = str(one)
    return found


def _resources(at: _Reading, place: str, value: object) -> dict[str, dict[str, str]]:
    found = at.table(place, value, {"requests": _quantities, "limits": _quantities})
    limits = found.get("limits", {})
    for key, wanted in found.get("requests", {}).items():
        if key in limits and _size(wanted) > _size(limits[key]):
            at.wrong(
                f"{place}.requests.{key}",
                wanted,
                f"is above its limit {limits[key]}; lower it",
            )
    return found


def _size(quantity: str) -> float:
    """The number that a quantity means."""
    match = _QUANTITY.fullmatch(quantity)
    assert match is not None
    suffix = match[2] or ""
    return float(
        float(match[1] + suffix)
        if suffix[:1] in ("e", "E") and suffix[1:]
        else (float(match[1]) * _SUFFIXES.get(suffix, 1))
    )


_PODS: Final[Mapping[str, _Read]] = {
    "replicas": _count,
    "node_selector": _node_selector,
    "tolerations": _tolerations,
    "resources": _resources,
}


def _workers(at: _Reading, place: str, value: object) -> Pods:
    return Pods(**at.table(place, value, _PODS))


def _tags(at: _Reading, place: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise _Wrong("is not a table of tags; write [tags.gpu]")
    return {
        str(tag): at.table(f"{place}.{tag}", pods, _PODS)
        for tag, pods in value.items()
    }


_PLAN: Final[Mapping[str, _Read]] = {
    "image": _image,
    "name": _name,
    "namespace": _namespace,
    "service_account": _object_name,
    "secret": _object_name,
    "secret_key": _key,
    "migration_secret": _object_name,
    "port": _port,
    "early": _duration,
    "env": _env,
    "cron_jobs": _names,
    "workers": _workers,
    "tags": _tags,
}
