"""Two pods of a CronJob for one slot, as Kubernetes starts them; and the manifest that starts
them.

    python examples/cron_job_pods.py

prints, on a new database:

    the schedule of the CronJob: 0 * * * *
    its pod runs: slotwise run --slot due --early 30s -- example-totals
    pod 1 ended with 0
    pod 2 ended with 0
    the handler ran 1 time

Both pods claim the slot of the last full hour. One of them runs it; the other finds that it has
ended, or waits for it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from _database import database_url, make_tables

from slotwise import Cron, JobContext, JobRegistry, job
from slotwise.contrib.kubernetes import Plan, manifests


@job(name="example-totals", schedule=Cron("0 * * * *"))
def totals(ctx: JobContext) -> None:
    """The handler; each run leaves a line."""
    with Path(os.environ["EXAMPLE_LOG"]).open("a") as log:
        log.write(f"{ctx.slot.isoformat()}\n")


registry = JobRegistry(jobs=[totals], database_url=database_url(), app="cron_job_pods")


def main() -> None:
    plan = Plan(image="registry.example/shop:1.4", cron_jobs=frozenset({totals.name}))
    objects, _ = manifests(plan, registry.settings, registry.definitions.values())
    spec = next(one["spec"] for one in objects if one["kind"] == "CronJob")
    (container,) = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    command = [*container["command"], *container["args"]]
    print("the schedule of the CronJob:", spec["schedule"])
    print("its pod runs:", shlex.join(command))

    make_tables(registry)
    log = Path(tempfile.mkdtemp(), "log")
    environment = {
        **os.environ,
        "EXAMPLE_LOG": str(log),
        "DATABASE_URL": database_url(),
    }
    here = Path(__file__).parent
    # Without --early, so that the example ends soon even in the last seconds of an hour.
    words = [
        sys.executable,
        "-m",
        "slotwise",
        "run",
        totals.name,
        "--slot",
        "due",
        "--app",
        "cron_job_pods",
    ]
    pods = [
        subprocess.Popen(words, cwd=here, env=environment, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    for number, pod in enumerate(pods, 1):
        print("pod", number, "ended with", pod.wait(60))
    runs = log.read_text().splitlines()
    print("the handler ran", len(runs), "time" if len(runs) == 1 else "times")


if __name__ == "__main__":
    main()
