"""The objects: a migration Job, a Deployment for each set of tags, and CronJobs.

Workers offer tags and claim the jobs whose tags they have. A Deployment with tags knows its own
jobs only, so that an expensive node runs nothing else. A job with a CronJob is known to no
Deployment: its pods alone run it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from slotwise import ConfigurationError, Settings
from slotwise.contrib.kubernetes.firing import Firing, firing
from slotwise.contrib.kubernetes.plan import DEFAULT_RESOURCES, Plan, Pods
from slotwise.spi import Definition, format_duration, shortest_interval

#: A Kubernetes object, as plain values.
Manifest: TypeAlias = dict[str, Any]

#: Between the end of the grace time and SIGKILL: handlers are asked to stop, and the last outcomes
#: are written.
_AFTER_GRACE: Final = timedelta(seconds=20)
#: How late a CronJob may fire after an outage of its controller, for jobs that declare no
#: ``start_within``.
_LATE: Final = timedelta(hours=1)
#: Kubernetes checks CronJobs every 10 s: with a shorter deadline, one may never run.
_SHORTEST_DEADLINE: Final = timedelta(seconds=10)
_LONGEST_CRON_JOB: Final = 52
_PREFIX: Final = "slotwise.dev"
#: The name of a worker's port.
_PORT: Final = "http"
#: The root is read-only; a supervisor of several processes, and many a handler, need a directory
#: to write to.
_VOLUME: Final = "tmp"

_SECURITY: Final[Manifest] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_POD_SECURITY: Final[Manifest] = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def manifests(
    plan: Plan, settings: Settings, definitions: Iterable[Definition]
) -> tuple[list[Manifest], list[str]]:
    """Return the objects, and a line for each note: where a CronJob differs from the job's
    schedule.

    Raise ConfigurationError, with a line for each job that cannot have a CronJob, and for each tag
    without a job.
    """
    declared = list(definitions)
    _check_tags(plan, declared)
    known = {
        found.name: found
        for found in declared
        if not settings.only or found.name in settings.only
    }
    cron_jobs, pooled = _apart(plan, known)
    export = _Export(plan, settings)
    firings, notes = _firings(cron_jobs, plan.early)
    sets = sorted({found.runs_on for found in pooled}, key=sorted)
    objects = [export.migration()]
    for tags in sets:
        names = sorted(found.name for found in pooled if found.runs_on == tags)
        objects += export.workers(
            tags, None if len(sets) == 1 and not cron_jobs and not tags else names
        )
    objects += [export.cron_job(found, when) for found, when in firings]
    if not pooled:
        notes.append(
            "no worker is exported: a slot that no pod takes waits for the next pod"
        )
    return objects, notes


def _check_tags(plan: Plan, definitions: Iterable[Definition]) -> None:
    known = {tag for found in definitions for tag in found.runs_on}
    problems = []
    for tag in sorted(plan.tags.keys() - known):
        cure = _meant(tag, known) or f"remove it, or declare runs_on={{{tag!r}}}"
        problems.append(f"tags.{tag}: no job requires the tag {tag!r}; {cure}")
    if problems:
        raise ConfigurationError("\n".join(problems))


def _meant(name: str, known: Iterable[str]) -> str | None:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else None


def _apart(
    plan: Plan, known: Mapping[str, Definition]
) -> tuple[list[Definition], list[Definition]]:
    problems = []
    for name in sorted(plan.cron_jobs):
        if name not in known:
            cure = _meant(name, known) or f"known are {', '.join(sorted(known))}"
            problems.append(f"cron_jobs: there is no job {name!r}; {cure}")
        elif not known[name].is_job:
            problems.append(
                f"cron_jobs: {name!r} is a one-time task, which has no schedule; remove it"
            )
    # SLOTWISE_ONLY lists the names, separated by commas.
    problems += [
        f"job {name!r}: its name has a comma, which SLOTWISE_ONLY splits at; rename it"
        for name in known
        if "," in name
    ]
    if problems:
        raise ConfigurationError("\n".join(problems))
    ordered = [known[name] for name in sorted(known)]
    return (
        [found for found in ordered if found.name in plan.cron_jobs],
        [found for found in ordered if found.name not in plan.cron_jobs],
    )


def _firings(
    jobs: Sequence[Definition], early: timedelta
) -> tuple[list[tuple[Definition, Firing]], list[str]]:
    found = []
    notes = []
    problems = []
    for job in jobs:
        assert job.schedule is not None
        try:
            when = firing(job.name, job.schedule)
        except ConfigurationError as error:
            problems.append(str(error))
            continue
        shortest = shortest_interval(job.schedule, job.name)
        if (
            shortest is not None and early >= shortest
        ):  # each pod would wait for the slot of the next one
            problems.append(
                f"early: {format_duration(early)} is not shorter than the "
                f"{format_duration(shortest)} between slots of "
                f"job {job.name!r}; shorten it"
            )
        found.append((job, when))
        notes += [f"job {job.name!r}: {note}" for note in when.notes]
    if problems:
        raise ConfigurationError("\n".join(problems))
    return found, notes


def object_name(*parts: str, longest: int = _LONGEST_CRON_JOB) -> str:
    """Return a name for Kubernetes. Where it does not tell the parts apart by itself, it ends with
    a hash of them.
    """
    written = "-".join(parts)
    plain = re.sub(r"[^a-z0-9]+", "-", written.lower()).strip("-")
    if plain == written and len(plain) <= longest:
        return plain
    mark = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{plain[: longest - 9].rstrip('-')}-{mark}"


def literal(text: str) -> str:
    """Return an argument in which Kubernetes replaces no $(NAME)."""
    return text.replace("$", "$$")


@dataclass(frozen=True, slots=True)
class _Export:
    plan: Plan
    settings: Settings

    # -- objects ----------------------------------------------------------------------------------

    def migration(self) -> Manifest:
        """A Job's template cannot change, so its name changes with the template."""
        plan = self.plan
        pods = replace(plan.pods(frozenset()), resources=DEFAULT_RESOURCES)
        pod = self._pod(
            ["db", "upgrade"],
            pods,
            component="migration",
            secret=plan.migration_secret,
            restart="OnFailure",
            env={},
        )
        mark = hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()[:8]
        spec = {"backoffLimit": 4, "ttlSecondsAfterFinished": 86_400, "template": pod}
        return self._object(
            "batch/v1", "Job", f"{plan.name}-migrate-{mark}", "migration", spec
        )

    def workers(
        self, tags: frozenset[str], only: Sequence[str] | None
    ) -> list[Manifest]:
        """A Deployment for workers that offer these tags and know these names (None: all), and its
        budget.
        """
        pods = self.plan.pods(tags)
        component = object_name("worker", *sorted(tags))
        env = {
            "SLOTWISE_TAGS": ",".join(sorted(tags)),
            "SLOTWISE_ONLY": ",".join(only or ()),
            "SLOTWISE_HTTP": f"*:{self.plan.port}",
        }
        pod = self._pod(["worker"], pods, component=component, env=env)
        pod["spec"]["containers"][0] |= self._probes()
        selector = {"matchLabels": self._selector(component)}
        name = object_name(self.plan.name, component)
        spec = {"replicas": pods.replicas, "selector": selector, "template": pod}
        return [
            self._object("apps/v1", "Deployment", name, component, spec),
            self._object(
                "policy/v1",
                "PodDisruptionBudget",
                name,
                component,
                {"maxUnavailable": 1, "selector": selector},
            ),
        ]

    def cron_job(self, job: Definition, when: Firing) -> Manifest:
        early = self.plan.early + when.lead
        command = [
            "run",
            "--slot",
            "due",
            "--early",
            format_duration(early),
            "--",
            literal(job.name),
        ]
        env = {"SLOTWISE_TAGS": ",".join(sorted(job.runs_on))}
        template = self._pod(
            command,
            self.plan.pods(job.runs_on),
            component="cron-job",
            env=env,
            restart="OnFailure",
        )
        name = object_name(self.plan.name, job.name)
        labels = {**self._labels("cron-job"), f"{_PREFIX}/cron-job": name}
        template["metadata"]["labels"] = labels
        deadline = max(job.start_within or _LATE, _SHORTEST_DEADLINE)
        spec = {
            "schedule": when.schedule,
            "timeZone": when.zone,
            # Only where a slot that comes during a run is skipped, a pod for it has nothing to do.
            "concurrencyPolicy": "Forbid" if job.overlap.mode == "skip" else "Allow",
            "startingDeadlineSeconds": math.ceil(deadline.total_seconds()),
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {
                "metadata": {"labels": labels},
                "spec": {
                    "backoffLimit": 1 if job.gives_up else job.max_lost,
                    "template": template,
                },
            },
        }
        found = self._object("batch/v1", "CronJob", name, "cron-job", spec)
        notes = {f"{_PREFIX}/job": job.name, f"{_PREFIX}/schedule": str(job.schedule)}
        if when.notes:
            notes[f"{_PREFIX}/notes"] = "; ".join(when.notes)
        found["metadata"]["annotations"] = notes
        return found

    # -- parts ------------------------------------------------------------------------------------

    def _object(
        self, version: str, kind: str, name: str, component: str, spec: Manifest
    ) -> Manifest:
        metadata: Manifest = {"name": name, "labels": self._labels(component)}
        if self.plan.namespace is not None:
            metadata["namespace"] = self.plan.namespace
        return {
            "apiVersion": version,
            "kind": kind,
            "metadata": metadata,
            "spec": spec,
        }

    def _selector(self, component: str) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": self.plan.name,
            "app.kubernetes.io/component": component,
        }

    def _labels(self, component: str) -> dict[str, str]:
        return {
            **self._selector(component),
            "app.kubernetes.io/managed-by": "slotwise",
        }

    def _pod(
        self,
        arguments: Sequence[str],
        pods: Pods,
        *,
        component: str,
        env: Mapping[str, str],
        secret: str | None = None,
        restart: str | None = None,
    ) -> Manifest:
        grace = self.settings.shutdown_grace + _AFTER_GRACE
        container = {
            "name": "slotwise",
            "image": self.plan.image,
            "command": ["slotwise"],
            "args": list(arguments),
            "env": self._env(env, secret),
            "resources": {name: dict(found) for name, found in pods.resources.items()},
            "securityContext": _SECURITY,
            "volumeMounts": [{"name": _VOLUME, "mountPath": "/tmp"}],
        }
        spec: Manifest = {
            "terminationGracePeriodSeconds": math.ceil(grace.total_seconds())
        }
        if restart is not None:
            spec["restartPolicy"] = restart
        if self.plan.service_account is not None:
            spec["serviceAccountName"] = self.plan.service_account
        # An account is named for its rights, which its token proves.
        has_token = self.plan.service_account is not None
        spec |= {
            "automountServiceAccountToken": has_token,
            "securityContext": _POD_SECURITY,
        }
        if pods.node_selector:
            spec["nodeSelector"] = dict(pods.node_selector)
        if pods.tolerations:
            spec["tolerations"] = [dict(one) for one in pods.tolerations]
        spec |= {
            "containers": [container],
            "volumes": [{"name": _VOLUME, "emptyDir": {}}],
        }
        return {"metadata": {"labels": self._labels(component)}, "spec": spec}

    def _env(self, env: Mapping[str, str], secret: str | None) -> list[Manifest]:
        settings = self.settings
        values = {
            "SLOTWISE_APP": settings.app or "",
            "SLOTWISE_SHUTDOWN_GRACE": format_duration(settings.shutdown_grace),
            "SLOTWISE_REVISION": settings.revision or "",
            "SLOTWISE_SCHEMA": settings.schema or "",
            "SLOTWISE_TABLE_PREFIX": ""
            if settings.table_prefix == "scheduled_"
            else settings.table_prefix,
            "SLOTWISE_LOG_FORMAT": "json",
            **env,
            **self.plan.env,
        }
        reference = {
            "name": secret or self.plan.secret or f"{self.plan.name}-database",
            "key": self.plan.secret_key,
        }
        url = {
            "name": "SLOTWISE_DATABASE_URL",
            "valueFrom": {"secretKeyRef": reference},
        }
        return [
            url,
            *(
                {"name": name, "value": literal(value)}
                for name, value in values.items()
                if value
            ),
        ]

    def _probes(self) -> Manifest:
        """A worker that waits for its database is alive and not ready: only one that hangs is
        started again.
        """
        return {
            "ports": [{"name": _PORT, "containerPort": self.plan.port}],
            "startupProbe": _probe("/livez", period=5, failures=60),
            "readinessProbe": _probe("/readyz", period=10, failures=3),
            "livenessProbe": _probe("/livez", period=20, failures=3),
        }


def _probe(path: str, *, period: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": _PORT},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


#: Strings that no reader takes for a number, a time, a boolean or null. All others are quoted: Go
#: reads 1e3 as a number, and PyYAML would leave it bare.
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9./_-]*")
_WORDS: Final = frozenset(
    {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}
)


def as_yaml(manifests: Iterable[Manifest]) -> str:
    """Return the manifests as YAML documents. Raise ConfigurationError without PyYAML."""
    try:
        import yaml
    except ImportError:
        raise ConfigurationError(
            "manifests in YAML need PyYAML; run: pip install 'slotwise[yaml]', or "
            "print JSON: --json"
        ) from None

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no annotations
        """Quotes every string that is not a plain word, and writes no aliases."""

        def ignore_aliases(self, data: object) -> bool:
            return True

        def text(self, value: str) -> Any:
            is_plain = (
                _PLAIN.fullmatch(value) is not None and value.lower() not in _WORDS
            )
            return self.represent_scalar(
                "tag:yaml.org,2002:str", value, style=None if is_plain else '"'
            )

    Dumper.add_representer(str, Dumper.text)
    return str(
        yaml.dump_all(
            manifests,
            Dumper=Dumper,
            sort_keys=False,
            explicit_start=True,
            width=1_000_000,
        )
    )
