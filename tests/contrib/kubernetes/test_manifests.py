"""Manifests for Kubernetes: valid for the oldest and newest API that the validator knows, and safe
for any name.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions
from tests.docs.markdown import ROOT, blocks, table

from slotwise import ConfigurationError, Cron, Every, JobRegistry, Overlap, job, task
from slotwise.cli.entry import status
from slotwise.cli.shared import exits
from slotwise.contrib.kubernetes import (
    Manifest,
    Plan,
    Pods,
    as_yaml,
    manifests,
    read_plan,
)
from slotwise.contrib.kubernetes.manifests import literal, object_name
from slotwise.contrib.kubernetes.plan import _PLAN, _PODS

VERSIONS = all_versions()[0], all_versions()[-1]

#: Names that a reader of YAML, or Kubernetes, could take for something else.
HOSTILE = [
    "on",
    "no",
    "null",
    "~",
    "1e3",
    "0x1F",
    "012",
    "1_000",
    "12:30:45",
    "2026-01-31",
    ".inf",
    "- a",
    "a: b",
    "a #b",
    "{a}",
    "[a]",
    "*a",
    "&a",
    "!a",
    "%a",
    "@a",
    "`a",
    "'a'",
    '"a"',
    "a\\b",
    "--help",
    "$(SLOTWISE_DATABASE_URL)",
    "$$(A)",
    "Ünï çødé",
    "日本語",
    "x" * 100,
    "a" * 52,
    "UPPER",
    "upper",
    "a.b",
    "a-b",
    "=",
    "<<",
    "|",
    ">",
]


def registry(*names: str, **settings: Any) -> JobRegistry:
    """Jobs of these names, each hour; and some with policies."""

    @job(
        name="train",
        schedule=Cron("0 3 * * *"),
        runs_on={"gpu"},
        overlap=Overlap.allow(max=2),
        start_within="5s",
    )
    def train(ctx: object) -> None: ...

    @job(
        name="report",
        schedule=Cron("30 2 * * *", tz="Europe/Vienna"),
        on_lost="give_up",
        start_within="10m",
    )
    def report(ctx: object) -> None: ...

    @task(name="mail")
    def mail(ctx: object) -> None: ...

    hourly = [job(name=name, schedule=Every("1h"))(lambda ctx: None) for name in names]
    return JobRegistry(
        jobs=[train, report, *hourly],
        tasks=[mail],
        app="shop.jobs:registry",
        **settings,
    )


def exported(made: JobRegistry, plan: Plan) -> list[Manifest]:
    return manifests(plan, made.settings, made.definitions.values())[0]


def validate(objects: list[Manifest]) -> None:
    for version in VERSIONS:
        for one in objects:
            kubernetes_validate.validate(one, version, strict=True)


def of_kind(objects: list[Manifest], kind: str) -> Iterator[Manifest]:
    return (one for one in objects if one["kind"] == kind)


def pod_of(one: Manifest) -> Manifest:
    spec = (
        one["spec"]["jobTemplate"]["spec"] if one["kind"] == "CronJob" else one["spec"]
    )
    found: Manifest = spec["template"]["spec"]
    return found


def env_of(one: Manifest) -> dict[str, str]:
    (container,) = pod_of(one)["containers"]
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


FULL = Plan(
    image="registry.example/shop:1.4",
    name="shop",
    namespace="jobs",
    service_account="shop",
    cron_jobs=frozenset({"report", "train"}),
    env={"TZ": "UTC"},
    tags={
        "gpu": Pods(
            replicas=1,
            node_selector={"hardware-type": "gpu-accelerated"},
            tolerations=[
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
            ],
            resources={"limits": {"nvidia.com/gpu": "1", "memory": "4Gi"}},
        )
    },
)


@pytest.mark.parametrize(
    "plan", [FULL, Plan(image="a"), Plan(image="a", cron_jobs=frozenset({"train"}))]
)
def test_valid(plan: Plan) -> None:
    """Each object fits the API's schema, strictly, for the oldest and the newest version known."""
    objects = exported(registry("hourly"), plan)
    validate(objects)
    assert list(yaml.safe_load_all(as_yaml(objects))) == objects


def test_the_validator_sees_mistakes() -> None:
    """A field that the API does not know fails."""
    objects = exported(registry(), FULL)
    objects[0]["spec"]["backofLimit"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(objects)


@pytest.mark.extended
def test_hostile_names() -> None:
    """Each name arrives in the pod as it is, and makes an object name of its own that Kubernetes
    accepts.
    """
    made = registry(*HOSTILE)
    plan = Plan(image="shop:1e3", name="shop", cron_jobs=frozenset(HOSTILE))
    objects = exported(made, plan)
    validate(objects)
    found = list(of_kind(objects, "CronJob"))
    names = [one["metadata"]["name"] for one in found]
    assert len(set(names)) == len(HOSTILE)
    assert all(
        len(name) <= 52 and name.strip("abcdefghijklmnopqrstuvwxyz0123456789-") == ""
        for name in names
    )
    arguments = [pod_of(one)["containers"][0]["args"] for one in found]
    assert {expanded(words[-1]) for words in arguments} == set(HOSTILE)
    assert all(words[-2] == "--" for words in arguments)
    read = [
        one for one in yaml.safe_load_all(as_yaml(objects)) if one["kind"] == "CronJob"
    ]
    assert read == found


def expanded(argument: str) -> str:
    """The argument as Kubernetes passes it on: ``$$`` is a dollar, and ``$(NAME)`` would be
    replaced.
    """
    parts = argument.split("$$")
    assert not any("$(" in part for part in parts)
    return "$".join(parts)


@pytest.mark.parametrize("word", HOSTILE)
def test_quoting(word: str) -> None:
    """A string that any reader could take for something else is quoted, as a value and as a
    key.
    """
    text = as_yaml([{"key": word, word: 1}])
    assert yaml.safe_load(text) == {"key": word, word: 1}
    value = text.splitlines()[1].removeprefix("key: ")
    assert value.startswith('"') or (value.isascii() and value[0].isalpha())
    assert value not in {"on", "no", "null"}


def test_object_names_differ() -> None:
    """Names that read alike in lower case get a hash; a plain name stays as it is."""
    assert object_name("shop", "nightly-report") == "shop-nightly-report"
    assert (
        len({object_name("shop", name) for name in ("a.b", "a_b", "a-b", "A-b")}) == 4
    )
    assert literal("$(A)") == "$$(A)"


def test_workers() -> None:
    """A Deployment for each set of tags, with its own names only, and a budget that permits one
    pod at a time to go.
    """
    objects = exported(
        registry("hourly"), Plan(image="a", name="shop", tags=FULL.tags)
    )
    plain, gpu = of_kind(objects, "Deployment")
    assert (plain["metadata"]["name"], gpu["metadata"]["name"]) == (
        "shop-worker",
        "shop-worker-gpu",
    )
    assert env_of(plain)["SLOTWISE_ONLY"] == "hourly,mail,report"
    assert (env_of(gpu)["SLOTWISE_ONLY"], env_of(gpu)["SLOTWISE_TAGS"]) == (
        "train",
        "gpu",
    )
    assert pod_of(gpu)["nodeSelector"] == {"hardware-type": "gpu-accelerated"}
    assert pod_of(gpu)["tolerations"] == FULL.tags["gpu"].tolerations
    assert "nodeSelector" not in pod_of(plain)
    assert (plain["spec"]["replicas"], gpu["spec"]["replicas"]) == (2, 1)
    for deployment, budget in zip(
        (plain, gpu), of_kind(objects, "PodDisruptionBudget"), strict=True
    ):
        assert budget["spec"] == {
            "maxUnavailable": 1,
            "selector": deployment["spec"]["selector"],
        }
        (container,) = pod_of(deployment)["containers"]
        assert env_of(deployment)["SLOTWISE_HTTP"] == "*:8081"
        assert container["ports"] == [{"name": "http", "containerPort": 8081}]
        paths = {
            "startupProbe": "/livez",
            "readinessProbe": "/readyz",
            "livenessProbe": "/livez",
        }
        assert {name: container[name]["httpGet"] for name in paths} == {
            name: {"path": path, "port": "http"} for name, path in paths.items()
        }
    (other,) = of_kind(
        exported(
            registry(), Plan(image="a", port=9000, cron_jobs=frozenset({"train"}))
        ),
        "Deployment",
    )
    assert env_of(other)["SLOTWISE_HTTP"] == "*:9000"


def test_resources_are_merged_by_quantity() -> None:
    """A tag's quantity is over that of all workers, which is over the default: no other one is
    lost.
    """
    plan = read_plan(
        image="a",
        workers={"resources": {"limits": {"memory": "512Mi"}}},
        tags={
            "a": {"resources": {"limits": {"nvidia.com/gpu": 1}}},
            "b": {"resources": {"requests": {"cpu": "2"}}},
            "c": {},
        },
    )
    default = {"cpu": "100m", "memory": "128Mi"}
    assert plan.pods(frozenset()).resources == {
        "requests": default,
        "limits": {"memory": "512Mi"},
    }
    assert plan.pods(frozenset("abc")).resources == {
        "requests": {"cpu": "2", "memory": "128Mi"},
        "limits": {"memory": "512Mi", "nvidia.com/gpu": "1"},
    }


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        (
            {"requests": {"memory": "1Gi"}},
            "workers: requests.memory is 1Gi, above its limit 256Mi; raise "
            "limits.memory, or lower the request",
        ),
        (
            {"requests": {"nvidia.com/gpu": 2}},
            "workers: requests.nvidia.com/gpu is 2 and its limit missing; write "
            "limits.nvidia.com/gpu = '2'",
        ),
        (
            {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}},
            "workers: requests.nvidia.com/gpu is 1 and its limit 2; write "
            "limits.nvidia.com/gpu = '1'",
        ),
    ],
    ids=str,
)
def test_merged_resources_that_kubernetes_refuses(
    resources: dict[str, Any], problem: str
) -> None:
    """A request above an inherited limit, and a request of devices that is not its limit."""
    with pytest.raises(ConfigurationError) as caught:
        exported(registry(), read_plan(image="a", workers={"resources": resources}))
    assert str(caught.value) == problem


def test_all_pods_run_where_workers_say() -> None:
    """The migration's pod, too: without the toleration it would wait forever. It keeps resources
    of its own.
    """
    workers = Pods(
        node_selector={"pool": "batch"},
        tolerations=[{"key": "batch", "operator": "Exists"}],
        resources={"limits": {"memory": "4Gi"}},
    )
    objects = exported(registry("hourly"), replace(FULL, workers=workers))
    pods = [pod_of(one) for one in objects if one["kind"] != "PodDisruptionBudget"]
    assert len(pods) == 4
    for pod in pods:
        assert pod["nodeSelector"]["pool"] == "batch"
        assert workers.tolerations[0] in pod["tolerations"]
    assert pods[0]["containers"][0]["resources"]["limits"] == {"memory": "256Mi"}


def test_an_untagged_application_needs_no_list() -> None:
    """With one set of tags and no CronJob, workers run whatever the image registers."""

    @job(name="hourly", schedule=Every("1h"))
    def hourly(ctx: object) -> None: ...

    made = JobRegistry(jobs=[hourly], app="shop")
    (deployment,) = of_kind(exported(made, Plan(image="a")), "Deployment")
    assert "SLOTWISE_ONLY" not in env_of(deployment)


def test_cron_jobs() -> None:
    """Policies become fields; no worker knows such a job; its pods go where its tags say."""
    objects = exported(registry("hourly"), FULL)
    report, train = of_kind(objects, "CronJob")
    spec = report["spec"]
    assert (spec["schedule"], spec["timeZone"]) == ("30 2 * * *", "Europe/Vienna")
    assert (spec["concurrencyPolicy"], spec["startingDeadlineSeconds"]) == (
        "Forbid",
        600,
    )
    assert (
        spec["jobTemplate"]["spec"]["backoffLimit"],
        pod_of(report)["restartPolicy"],
    ) == (1, "OnFailure")
    assert pod_of(report)["containers"][0]["args"] == [
        "run",
        "--slot",
        "due",
        "--early",
        "30s",
        "--",
        "report",
    ]
    notes = report["metadata"]["annotations"]
    assert notes["slotwise.dev/schedule"] == "CRON|30 2 * * *|Europe/Vienna"
    assert "the clocks go forward" in notes["slotwise.dev/notes"]
    assert (
        train["spec"]["concurrencyPolicy"],
        train["spec"]["startingDeadlineSeconds"],
    ) == ("Allow", 10)
    assert pod_of(train)["nodeSelector"] == {"hardware-type": "gpu-accelerated"}
    assert env_of(train)["SLOTWISE_TAGS"] == "gpu"
    labels = report["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert (
        labels["slotwise.dev/cron-job"] == report["metadata"]["name"] == "shop-report"
    )
    (deployment,) = of_kind(objects, "Deployment")
    assert env_of(deployment)["SLOTWISE_ONLY"] == "hourly,mail"


def test_pods_without_an_account_have_no_token() -> None:
    objects = exported(registry("hourly"), replace(FULL, service_account=None))
    pods = [pod_of(one) for one in objects if one["kind"] != "PodDisruptionBudget"]
    assert {pod["automountServiceAccountToken"] for pod in pods} == {False}


def test_every_pod_is_confined() -> None:
    """Not root, nothing to write to, no capabilities; the address comes from a Secret; the grace
    fits.
    """
    objects = exported(registry("hourly", shutdown_grace="90s", revision="7"), FULL)
    pods = [one for one in objects if one["kind"] != "PodDisruptionBudget"]
    assert len(pods) == 4
    for one in pods:
        pod, (container,) = pod_of(one), pod_of(one)["containers"]
        assert pod["terminationGracePeriodSeconds"] == 110
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is True  # an account is named
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        (address,) = [
            entry
            for entry in container["env"]
            if entry["name"] == "SLOTWISE_DATABASE_URL"
        ]
        assert address["valueFrom"] == {
            "secretKeyRef": {"name": "shop-database", "key": "url"}
        }
        assert env_of(one) | {
            "SLOTWISE_REVISION": "7",
            "SLOTWISE_SHUTDOWN_GRACE": "90s",
        } == env_of(one)
        assert one["metadata"]["namespace"] == "jobs"
        assert container["resources"]
        assert container["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
        assert pod["volumes"] == [{"name": "tmp", "emptyDir": {}}]


def test_migration() -> None:
    """A Job cannot be changed, so another image or revision makes another one. Its role may have
    its own Secret.
    """
    first, again, other = (
        next(
            of_kind(
                exported(registry(), Plan(image=image, migration_secret="owner")),
                "Job",
            )
        )
        for image in ("a:1", "a:1", "a:2")
    )
    assert first == again
    assert first["metadata"]["name"] != other["metadata"]["name"]
    assert (
        pod_of(first)["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"]["name"]
        == "owner"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"env": {"A": "1"}},
        {"service_account": "b"},
        {"secret": "b"},
        {"secret_key": "b"},
        {"namespace": None},
    ],
    ids=str,
)
def test_migration_has_its_template_s_name(changed: dict[str, Any]) -> None:
    """Whatever is in the template: applied under the old name, Kubernetes would refuse the change
    as immutable.
    """
    jobs = [
        next(of_kind(exported(registry(), plan), "Job"))
        for plan in (FULL, replace(FULL, **changed))
    ]
    names = [one["metadata"]["name"] for one in jobs]
    assert (names[0] == names[1]) is (jobs[0]["spec"] == jobs[1]["spec"])
    assert (names[0] == names[1]) is ("namespace" in changed)


def test_a_tag_without_a_job() -> None:
    """A table that would have no effect is refused, with the tag that was meant."""
    for tag, cure in (
        ("gpuu", "did you mean gpu?"),
        ("fpga", "remove it, or declare runs_on={'fpga'}"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            exported(registry(), Plan(image="a", tags={tag: Pods()}))
        assert (
            str(caught.value) == f"tags.{tag}: no job requires the tag {tag!r}; {cure}"
        )


def test_refusals() -> None:
    """Each job that cannot have a CronJob is a line."""

    @job(name="tick", schedule=Every("1s"))
    def tick(ctx: object) -> None: ...

    @job(name="tock", schedule=Every("7m"))
    def tock(ctx: object) -> None: ...

    made = JobRegistry(jobs=[tick, tock])
    with pytest.raises(ConfigurationError) as caught:
        exported(made, Plan(image="a", cron_jobs=frozenset({"tick", "tock"})))
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "job 'tick'",
        "job 'tock'",
    ]
    for name, cure in (
        ("tack", "known are mail, report, train"),
        ("reports", "did you mean report?"),
    ):
        with pytest.raises(
            ConfigurationError, match=f"there is no job '{name}'; {re.escape(cure)}$"
        ):
            exported(registry(), Plan(image="a", cron_jobs=frozenset({name})))
    with pytest.raises(ConfigurationError, match="'mail' is a one-time task"):
        exported(registry(), Plan(image="a", cron_jobs=frozenset({"mail"})))
    with pytest.raises(ConfigurationError, match="its name has a comma"):
        exported(registry("a,b"), Plan(image="a"))


def test_nodes_that_no_node_is() -> None:
    """Two tags of one job that need different nodes are refused."""
    plan = Plan(
        image="a",
        tags={
            "a": Pods(node_selector={"disk": "ssd"}),
            "b": Pods(node_selector={"disk": "hdd"}),
        },
    )
    with pytest.raises(
        ConfigurationError, match=r"tags a, b: node_selector disk is 'ssd' and 'hdd'"
    ):
        plan.pods(frozenset({"a", "b"}))


# -- the mapping file -----------------------------------------------------------------------------

MAPPING = """
image = "registry.example/shop:1.4"
name = "shop"
cron_jobs = ["report"]
early = "1m"

[workers]
replicas = 3
resources.requests = { cpu = "200m", memory = "256Mi" }

[tags.gpu]
replicas = 1
node_selector = { hardware-type = "gpu-accelerated" }
tolerations = [{ key = "nvidia.com/gpu", operator = "Exists", effect = "NoSchedule" }]
resources.limits = { "nvidia.com/gpu" = 1 }
"""


def test_mapping(tmp_path: Path) -> None:
    """TOML and YAML say the same; options outrank the file; a tag's table is over that of all
    workers.
    """
    toml, other = tmp_path / "kubernetes.toml", tmp_path / "kubernetes.yaml"
    toml.write_text(MAPPING)
    plan = read_plan(toml)
    other.write_text(yaml.safe_dump(tomllib.loads(MAPPING)))
    assert read_plan(other) == plan
    assert (plan.early, plan.workers.replicas, plan.tags["gpu"].replicas) == (
        timedelta(minutes=1),
        3,
        1,
    )
    assert plan.tags["gpu"].resources == {"limits": {"nvidia.com/gpu": "1"}}
    assert plan.pods(frozenset({"gpu"})).resources["limits"] == {
        "memory": "256Mi",
        "nvidia.com/gpu": "1",
    }
    assert read_plan(toml, name="other", image=None).name == "other"
    validate(exported(registry(), plan))


def test_the_mapping_of_the_page(tmp_path: Path) -> None:
    """The mapping file of the documentation is read, and its export is valid."""
    (example,) = blocks(ROOT / "docs" / "kubernetes.md", "toml")
    file = tmp_path / "kubernetes.toml"
    file.write_text(example.code)
    plan = replace(read_plan(file), cron_jobs=frozenset({"report"}))
    assert plan.tags["gpu"].node_selector == {"hardware-type": "gpu-accelerated"}
    validate(exported(registry(), plan))


def test_the_page_lists_the_keys_of_the_mapping() -> None:
    """Those of the file, then those of its tables of pods."""
    listed = [
        row[0]
        for row in table(
            ROOT / "docs" / "kubernetes.md", "### Keys of the mapping file"
        )
    ]
    assert listed == [*_PLAN, *_PODS]


def test_mapping_problems(tmp_path: Path) -> None:
    """All problems at once, each with its place, its value and its cure."""
    file = tmp_path / "k.toml"
    file.write_text(
        'imag = "a"\nname = "Shop!"\nearly = "soon"\ncron_jobs = "report"\n'
        "[workers]\nreplicas = -1\n[tags.gpu]\nnode_selector = { a = 1 "
        '}\ntolerations = [{ keys = "a" }]\n'
    )
    with pytest.raises(ConfigurationError) as caught:
        read_plan(file)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[1].split(":")[0] for line in lines] == [
        "imag",
        "name",
        "early",
        "cron_jobs",
        "workers.replicas",
        "tags.gpu.node_selector",
        "tags.gpu.tolerations",
    ]
    assert "did you mean image?" in lines[0]
    assert all(";" in line for line in lines)
    for name, text, words in (
        ("k.toml", "image = [", r"k\.toml:1: 'image' is not TOML; correct this line"),
        ("k.toml", "", "image is missing"),
        (
            "k.yaml",
            "image: a\n  name: b",
            r"k\.yaml:2: 'name' is not YAML; correct this line",
        ),
        (
            "k.yaml",
            "image: a\nworkers: {replicas: 1, replicas: 2}",
            "replicas is there twice; keep one of them",
        ),
        ("k.yaml", "- image", "expected a table of settings; write"),
        ("k.yaml", "", "image is missing"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigurationError, match=words) as caught:
            read_plan(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(
        ConfigurationError,
        match="there is no such mapping file; name a mapping file, TOML or YAML",
    ):
        read_plan(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("setting", "value", "cure"),
    [
        ("namespace", "Jobs", "up to 63"),
        ("namespace", "a.b", "up to 63"),
        ("namespace", "a" * 64, "up to 63"),
        ("service_account", "my account", "up to 253"),
        ("secret", "Shop", "up to 253"),
        ("secret", "a..b", "up to 253"),
        ("migration_secret", "a" * 254, "up to 253"),
        ("secret_key", "a/b", "letters, digits"),
        ("image", "shop:1 ", "registry.example"),
        ("image", "Shop", "registry.example"),
        ("image", "a::b", "write"),
        ("image", "https://a/b", "write"),
        ("image", "", "write"),
        ("port", 80, "from 1024"),
        ("port", True, "from 1024"),
        ("port", 65_536, "to 65535"),
        ("port", "8081", "whole"),
        ("cron_jobs", ["report", "train", "report"], "has 'report' twice; remove one"),
    ],
    ids=str,
)
def test_what_kubernetes_would_refuse(setting: str, value: object, cure: str) -> None:
    """One line with place, value and cure, before anything is applied."""
    with pytest.raises(ConfigurationError) as caught:
        read_plan(**{"image": "a", setting: value})
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{setting}: {value!r:.60} ")
    assert cure in line


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        (
            {"requests": {"cpu": "lots"}},
            "requests.cpu: 'lots' is not a quantity; write e.g. 500m",
        ),
        ({"requests": {"cpu": "100 m"}}, "requests.cpu: '100 m' is not a quantity"),
        ({"requests": {"cpu": "-1"}}, "requests.cpu: '-1' is not a quantity"),
        ({"requests": {"cpu": True}}, "requests.cpu: True is not a quantity"),
        ({"requests": {"cpu": float("nan")}}, "requests.cpu: nan is not a quantity"),
        (
            {"limits": {"memory": "256MB"}},
            "limits.memory: '256MB' is not a quantity; write e.g. 256Mi",
        ),
        ({"limits": {"memory": ""}}, "limits.memory: '' is not a quantity"),
        (
            {"limits": {"cpus": "1"}},
            "limits.cpus: '1' is for an unknown resource; did you mean cpu?",
        ),
        (
            {"limits": {"x": "1"}},
            "limits.x: '1' is for an unknown resource; known are cpu, memory, ephemeral-storage",
        ),
        (
            {"limits": {"nvidia.com/gpu": 0.5}},
            "limits.nvidia.com/gpu: 0.5 is a part of a device; write a whole number",
        ),
        (
            {"limits": {"nvidia.com/gpu": "500m"}},
            "limits.nvidia.com/gpu: '500m' is a part of a device",
        ),
        ({"limits": "1"}, "limits: '1' is not a table of quantities"),
        (
            {"requests": {"cpu": "1"}, "limits": {"cpu": "900m"}},
            "requests.cpu: '1' is above its limit 900m; lower it",
        ),
        (
            {"requests": {"memory": "1Gi"}, "limits": {"memory": "1e9"}},
            "requests.memory: '1Gi' is above its limit 1e9; lower it",
        ),
    ],
    ids=str,
)
def test_quantities_that_kubernetes_refuses(
    resources: dict[str, Any], problem: str
) -> None:
    """One line with place, value and cure."""
    with pytest.raises(ConfigurationError) as caught:
        read_plan(image="a", workers={"resources": resources})
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"workers.resources.{problem}")
    assert ";" in line


@pytest.mark.parametrize(
    ("pods", "problem"),
    [
        (
            {"node_selector": {"a b": "c"}},
            "node_selector: 'a b' is not a label of nodes; write e.g.",
        ),
        (
            {"node_selector": {"a/b/c": "c"}},
            "node_selector: 'a/b/c' is not a label of nodes",
        ),
        (
            {"node_selector": {"/a": "c"}},
            "node_selector: '/a' is not a label of nodes",
        ),
        (
            {"node_selector": {"a": "x y"}},
            "node_selector.a: 'x y' is not a label's value; write up to 63",
        ),
        (
            {"node_selector": {"a": "x" * 64}},
            f"node_selector.a: '{'x' * 59} is not a label's value",
        ),
        (
            {"tolerations": [{"key": "a", "operator": "Equals"}]},
            "tolerations[0].operator: 'Equals' is unknown; write",
        ),
        (
            {"tolerations": [{"key": "a", "effect": "NoRun"}]},
            "tolerations[0].effect: 'NoRun' is unknown; write",
        ),
        (
            {"tolerations": [{"key": "a b"}]},
            "tolerations[0].key: 'a b' is not the key of a taint; write",
        ),
        (
            {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
            "tolerations[0].value: 'b' is not compared; remove it",
        ),
        (
            {"tolerations": [{"value": "b"}]},
            "tolerations[0]: {'value': 'b'} has no key; name it",
        ),
    ],
    ids=str,
)
def test_places_that_kubernetes_refuses(pods: dict[str, Any], problem: str) -> None:
    """Labels of nodes, and tolerations."""
    with pytest.raises(ConfigurationError) as caught:
        read_plan(image="a", tags={"gpu": pods})
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"tags.gpu.{problem}")
    assert ";" in line


def test_places_that_kubernetes_takes() -> None:
    """A label may have a domain, and an empty value; a toleration of everything has no key."""
    selector = {"node-role.kubernetes.io/batch": "", "A.b_c": "1"}
    tolerations = [
        {"operator": "Exists"},
        {"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5},
    ]
    validate(
        exported(
            registry(),
            read_plan(
                image="a",
                workers={"node_selector": selector, "tolerations": tolerations},
            ),
        )
    )


def test_quantities_that_kubernetes_takes() -> None:
    """As TOML and YAML write them: strings, whole numbers, fractions."""
    limits = {
        "cpu": 0.5,
        "memory": "1Gi",
        "ephemeral-storage": "1E",
        "nvidia.com/gpu": 1,
        "hugepages-2Mi": "4Mi",
    }
    requests = {"cpu": "500m", "memory": ".5e9", "ephemeral-storage": "1k"}
    plan = read_plan(
        image="a", workers={"resources": {"requests": requests, "limits": limits}}
    )
    assert plan.workers.resources["limits"]["cpu"] == "0.5"
    validate(exported(registry(), plan))


@pytest.mark.parametrize("name", ["A=B", "", "1A", "A B", "Ä", "A\n"], ids=repr)
def test_names_of_variables(name: str) -> None:
    """What Kubernetes refuses, or splits elsewhere, is one line; the value is not shown."""
    with pytest.raises(ConfigurationError) as caught:
        read_plan(image="a", env={name: "hush"})
    assert str(caught.value).startswith(
        f"env.{name!r} is not the name of a variable; write letters, "
    )
    assert "hush" not in str(caught.value)
    assert read_plan(image="a", env={"a.b-C_1": "x"}).env == {"a.b-C_1": "x"}


def test_early_is_shorter_than_the_interval() -> None:
    """Else each pod would wait for the slot of the next one."""
    made, hourly = registry("hourly"), frozenset({"hourly"})
    exported(made, Plan(image="a", cron_jobs=hourly, early=timedelta(minutes=59)))
    with pytest.raises(ConfigurationError) as caught:
        exported(made, Plan(image="a", cron_jobs=hourly, early=timedelta(hours=1)))
    assert str(caught.value) == (
        "early: 1h is not shorter than the 1h between slots of job 'hourly'; shorten it"
    )


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("namespace", "a" * 63),
        ("service_account", "a.b-c"),
        ("secret", "a" * 253),
        ("secret_key", "DB_URL.txt"),
        ("image", "localhost:5000/a/b-c__d:1.4_X@sha256:" + "a" * 64),
        ("image", "[::1]:5000/a"),
        ("image", "shop"),
        ("port", 1024),
        ("image", "Registry.example/shop:latest"),
        ("env", {"TZ": "UTC", "SLOTWISE_LOG_FORMAT": "text"}),
    ],
    ids=str,
)
def test_what_kubernetes_takes(setting: str, value: object) -> None:
    """The limits themselves."""
    assert getattr(read_plan(**{"image": "a", setting: value}), setting) == value


def test_the_export_sets_no_other_name() -> None:
    """Each variable of the export, except the format of the log, is one that the mapping must not
    set.
    """
    made = registry(
        revision="7", schema="s", table_prefix="p_", only=["report", "train"]
    )
    for one in exported(made, FULL):
        if one["kind"] != "PodDisruptionBudget":
            for name in env_of(one).keys() - {"TZ", "SLOTWISE_LOG_FORMAT"}:
                with pytest.raises(ConfigurationError, match=rf"^env\.{name} .*; "):
                    read_plan(image="a", env={name: "x"})
    with pytest.raises(ConfigurationError) as caught:
        read_plan(
            image="a",
            env={
                "DATABASE_URL": "postgresql://me:hush@db/shop",
                "SLOTWISE_TAGS": "gpu",
            },
        )
    assert str(caught.value).splitlines() == [
        "env.DATABASE_URL comes from the Secret; put the address there, and name it: secret",
        "env.SLOTWISE_TAGS is set by the export, from the application and options; remove it",
    ]


# -- the command ----------------------------------------------------------------------------------

APP = """
from slotwise import Cron, JobRegistry, job

@job(name="nightly-report", schedule=Cron("0 2 L * *"))
def report(ctx): ...

registry = JobRegistry(jobs=[report])
"""


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """YAML, or JSON as a List; notes on stderr, which --strict takes for a failure."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLOTWISE_APP", raising=False)
    (tmp_path / "exported_jobs.py").write_text(APP)
    command = [
        "export",
        "kubernetes",
        "--app",
        "exported_jobs",
        "--image",
        "shop:1",
        "--mapping",
        "kubernetes.toml",
    ]
    (tmp_path / "kubernetes.toml").write_text('cron_jobs = ["nightly-report"]\n')
    assert status(command) == exits.OK
    told = capsys.readouterr()
    objects = list(yaml.safe_load_all(told.out))
    validate(objects)
    assert {one["kind"] for one in objects} == {"Job", "CronJob"}
    assert "note: job 'nightly-report': L, W and # became every day" in told.err
    assert "no worker is exported" in told.err
    assert status([*command, "--json"]) == exits.OK
    assert json.loads(capsys.readouterr().out) == {
        "apiVersion": "v1",
        "kind": "List",
        "items": objects,
    }
    assert status([*command, "--strict"]) == exits.FAILED
    capsys.readouterr()
    assert status(["export", "kubernetes", "--app", "exported_jobs"]) == exits.FAILED
    assert capsys.readouterr().err.startswith(
        "error: image is missing; name it: --image"
    )
    several = [
        "export",
        "kubernetes",
        "--app",
        "exported_jobs",
        "--image",
        "Shop",
        "--name",
        "Jobs",
    ]
    assert status(several) == exits.FAILED
    told = capsys.readouterr()
    assert [line.split("'")[0] for line in told.err.splitlines()] == [
        "error: image: ",
        "error: name: ",
    ]
    assert "\\n" not in told.err
