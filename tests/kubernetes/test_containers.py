"""The image of deploy/image is built, and scheduler, workers and driver of deploy/kubernetes/overlays/workers run in
containers: under their memory limits, on a read-only root, as nobody, by TLS."""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from containers import LIMITS, Container, image, left, need_podman, podman, running
from manifests import KUBERNETES, Document, build, pod_of
from places import ROOT
from processes import until
from table import Trial

from dorff import load_model
from dorff.data import ingest
from dorff.engine.clusters import credentials

pytestmark = pytest.mark.slow
USER = 10001
ROWS = 100_000
LEAVE = 60  # seconds; terminationGracePeriodSeconds


def test_the_image_and_a_fit_in_its_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: Trial) -> None:
    """One test, because the image takes two minutes to build: each worker of pytest would build its own."""
    need_podman()
    monkeypatch.chdir(tmp_path)  # where podman's monitor leaves a note when the kernel kills for memory
    (tmp_path / "image").mkdir()
    with image(tmp_path / "image") as built:
        has_what_the_lock_says_and_nobody_can_add_to_it(built)
        is_as_small_as_the_readme_says(built)
        fit_survives_evictions_and_a_memory_limit(built, tmp_path / "fit", trial)


def inside(built: str, *command: str) -> str:
    return podman("run", "--rm", "--read-only", "--cap-drop=all", "--network=none", *LIMITS, built, *command)


def has_what_the_lock_says_and_nobody_can_add_to_it(built: str) -> None:
    code = """
import importlib.metadata as m, json, os
try:
    open("/opt/dorff/x", "w")
except OSError as error:
    refused = error.strerror
there = {d.name.lower().replace("_", "-").replace(".", "-"): d.version for d in m.distributions()}
print(json.dumps([os.getuid(), refused, there]))
"""
    user, refused, there = json.loads(inside(built, "python", "-c", code))
    lock = (ROOT / "deploy" / "image" / "requirements.lock").read_text()
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", lock, re.MULTILINE))
    assert user == USER and refused == "Read-only file system"
    assert set(there) - set(pinned) == {"dorff"}
    assert all(pinned[name] == version for name, version in there.items() if name != "dorff")


def is_as_small_as_the_readme_says(built: str) -> None:
    size = int(podman("image", "inspect", "--format", "{{.Size}}", built))
    (says,) = re.findall(r"the image has ([\d.]+) GB", (ROOT / "deploy" / "README.md").read_text())
    assert 0.9 * float(says) < size / 1e9 < 1.1 * float(says)


def spec(kind: str, name: str) -> Document:
    """The pod's spec of an object of overlays/workers."""
    objects = build(KUBERNETES / "overlays" / "workers")
    (pod,) = (pod_of(one) for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))
    assert pod is not None
    found: Document = pod["spec"]
    return found


def job() -> str:
    objects = build(KUBERNETES / "overlays" / "workers")
    (text,) = (one["data"]["job.yaml"] for one in objects if one["kind"] == "ConfigMap")
    assert isinstance(text, str)
    few, random = "features: {count: 2048}", "features: {count: 2048, sampler: {type: orthogonal}}"
    assert few in text
    return text.replace(few, random)  # whose leaves are small enough to be many


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def write_rows(folder: Path) -> None:
    """A curl-free field at many places, on what the pods see as their claim."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (ROWS, 2))
    x, y = 3 * X.T
    np.savez(folder / "sea.npz", x=X, y=np.column_stack([np.cos(x) * np.sin(y), np.sin(x) * np.cos(y)]))
    ingest([folder / "sea.npz"], folder / "sea.zarr", inputs=["x"], targets=["y"], shard_rows=8192)


WORKER = """
import os
pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
lines = {pid: open(f"/proc/{pid}/cmdline").read() for pid in pids if os.path.exists(f"/proc/{pid}/cmdline")}
worker = next((pid for pid, line in lines.items() if "spawn_main" in line), "")
"""
#: Fills the container's memory until the kernel kills the worker, which is made its first choice.
FILL = f"""{WORKER}
open(f"/proc/{{worker}}/oom_score_adj", "w").write("1000")
held = []
while os.path.exists(f"/proc/{{worker}}"):
    held.append(os.urandom(2**20))
"""

KILLS = """
import os
places = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
lines = [line.split() for place in places if os.path.exists(place) for line in open(place)]
print(next(number for key, number in lines if key == "oom_kill"))
"""


def worker_of(container: Container) -> str:
    """The process of the worker below its nanny; empty while there is none."""
    return container.execute(f"{WORKER}print(worker)")


def fit_survives_evictions_and_a_memory_limit(built: str, tmp_path: Path, trial: Trial) -> None:
    """The driver is evicted and runs again; then a worker is, and the kernel kills the other for its memory. The model
    is that of a local cluster to the last bit, and no container is left."""
    sea = tmp_path / "claim" / "sea"
    sea.mkdir(parents=True)
    write_rows(sea)
    credentials(tmp_path / "tls")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.yaml").write_text(job())
    local = re.sub(r"cluster: .*", "cluster: {type: local, workers: 2, memory: 1GiB}", job())
    (sea / "local.yaml").write_text(local.replace("/sea/runs", "/sea/runs-local").replace("/models", "/models-local"))
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, USER, USER)

    port = free_port()
    replaced = {"dorff-scheduler:8786": f"dorff-scheduler:{port}", "--port=8786": f"--port={port}"}
    replaced |= {":8787": f"127.0.0.1:{free_port()}", "--memory-limit=4GiB": "--memory-limit=640MiB"}
    (tmp_path / "job" / "job.yaml").write_text(job().replace("8786", str(port)))
    options = [f"--volume={tmp_path}/{name}:/etc/dorff/{name}:ro" for name in ("tls", "job")]
    options += [f"--volume={tmp_path}/claim:/srv/dorff", "--add-host=dorff-scheduler:127.0.0.1"]

    def receipts() -> int:
        return len(list((sea / "runs").rglob("receipts/*")))

    with ExitStack() as stack:

        def start(kind: str, name: str, memory: str) -> Container:
            return stack.enter_context(running(built, spec(kind, name), memory, replaced, *options))

        scheduler = start("Deployment", "dorff-scheduler", "512m")
        evicted, filled = (start("Deployment", "dorff-worker", "800m") for _ in range(2))
        first = start("CronJob", "dorff-fit-sea", "1g")
        until(lambda: receipts() >= 1)
        assert first.stop(LEAVE) == 5, first.log()

        again = start("CronJob", "dorff-fit-sea", "1g")
        before = receipts()
        until(lambda: receipts() > before)
        assert evicted.stop(LEAVE) == 0, evicted.log()
        before_it = worker_of(filled)
        filled.execute(FILL, check=False)  # the kernel may kill it too
        until(lambda: worker_of(filled) not in ("", before_it))
        assert int(filled.execute(KILLS)) > 0
        assert again.wait() == 0, again.log()
        assert filled.stop(LEAVE) == scheduler.stop(LEAVE) == 0
        assert "sea.prom" in {path.name for path in sea.iterdir()}
        here = {"/etc/dorff/job/job.yaml": "/srv/dorff/sea/local.yaml"}
        alone = stack.enter_context(running(built, spec("CronJob", "dorff-fit-sea"), "2g", here, *options))
        assert alone.wait() == 0, alone.log()
    ours, theirs = (load_model(sea / name) for name in ("models", "models-local"))
    rows, same = (ROWS, ours.info["report"]["rows_used"]), np.array_equal(ours.coefficients, theirs.coefficients)
    for fault in (
        "driver evicted (SIGTERM), run again",
        "worker evicted (SIGTERM)",
        "worker killed by its memory limit",
    ):
        trial.settle(fault, rows=rows, same=same, left=left)
