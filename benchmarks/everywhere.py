"""One job file, fitted everywhere: the model's bits in each place, over a fit by one process.

    python benchmarks/everywhere.py [--rows 65536] [--without containers] [--out benchmarks/results]

One process, local workers, Slurm's jobs, MPI, MPI in an allocation of Slurm's, pods by a stand-in for Kubernetes'
API server, containers of the image of deploy/image (scheduler, two workers and driver, by TLS), each with its files in
folders; then state in a bucket; then data, state and model there, by local workers, Slurm and MPI. Only `cluster` and
the three paths differ. `digest` is SHA-256 over every array of the model. Exit code 1 where one differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

TESTS: Final = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / name) for name in (".", "slurm", "kubernetes")]

from api_server import api_server  # noqa: E402
from command_line import CURL, DORFF, field, write_job  # noqa: E402
from containers import image, running  # noqa: E402
from gateway import Gateway, credentials, free_port, make_bucket  # noqa: E402
from manifests import KUBERNETES, Document, build, pod_of  # noqa: E402
from slurm_nodes import slurm_nodes  # noqa: E402

from dorff import load_model  # noqa: E402
from dorff.data import ingest  # noqa: E402
from dorff.engine.clusters import credentials as write_credentials  # noqa: E402
from dorff.storage.location import locate  # noqa: E402
from dorff.store import model_arrays  # noqa: E402

COUNT: Final = 2000  # features; leaves are of 16,384 rows then, the first ones
USER: Final = 10001
LOCAL: Final = {"type": "local", "workers": 2, "memory": "1GiB", "small_jobs": "workers"}
SLURM: Final = {"type": "slurm", "workers": 2, "memory": "1GiB", "interface": "lo"}
MPI: Final = {"type": "mpi", "memory": "1GiB", "interface": "lo"}
PODS: Final = {"type": "kubernetes", "image": "dorff", "workers": 2, "memory": "1GiB"}
MPIRUN: Final = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4")
SRUN: Final = ("srun", "--mpi=pmix", "--nodes=1", "--ntasks=3", "--overcommit")
FIT: Final = (DORFF, "fit", "job.yaml", "--json")


class Places:
    """A folder with the rows, and a bucket; each fit in a place of its own name."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.rows: list[dict[str, Any]] = []

    def job(self, name: str, cluster: dict[str, Any], *, bucket: tuple[str, ...] = (), at: str = "") -> Path:
        """The job of a place: `bucket` names which of data, state and model are there, `at` says where the job's
        process sees this folder."""
        here, there = at or str(self.folder), "s3://places"
        paths = {
            "data": {"store": f"{there if 'data' in bucket else here}/sea.zarr"},
            "state": f"{there if 'state' in bucket else here}/{name}/state",
            "model": f"{there if 'model' in bucket else here}/{name}/model",
        }
        (self.folder / name).mkdir()
        write_job(self.folder / name / "job.yaml", kernel=CURL, features={"count": COUNT}, cluster=cluster, **paths)
        return self.folder / name

    def fit(self, name: str, cluster: dict[str, Any], *launcher: str, bucket: tuple[str, ...] = (), **env: str) -> None:
        place = self.job(name, cluster, bucket=bucket)
        self.note(name, lambda: self._run([*launcher, *FIT], place, env), f"{place}/model", bucket)

    def _run(self, words: list[str], place: Path, env: dict[str, str]) -> None:
        done = subprocess.run(words, cwd=place, env=self.environment | env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{place.name}: exit {done.returncode}: {done.stderr[-2000:]}")

    def note(self, name: str, fit: Callable[[], object], model: str, bucket: tuple[str, ...] = ()) -> None:
        """Fit, and write down what came of it."""
        began = time.perf_counter()
        fit()
        took = time.perf_counter() - began
        made = load_model(locate(f"s3://places/{name}/model" if "model" in bucket else model))
        digest = hashlib.sha256()
        for key, array in sorted(model_arrays(made).items()):
            digest.update(key.encode() + np.ascontiguousarray(array).tobytes())
        row = {"place": name, "in_bucket": list(bucket)}
        row |= {key: made.info["report"][key] for key in ("rows_used", "leaves_computed")}
        self.rows.append(row | {"digest": digest.hexdigest(), "seconds": round(took, 1)})
        same = digest.hexdigest() == self.rows[0]["digest"]
        print(f"{name:28} {digest.hexdigest()[:16]} {'same' if same else 'ANOTHER'} {took:6.1f} s", flush=True)


@contextmanager
def a_bucket(folder: Path) -> Iterator[dict[str, str]]:
    gateway = Gateway(folder)
    gateway.home.mkdir()
    try:
        gateway.start()
        make_bucket(gateway, "places")
        yield credentials(gateway.endpoint)
    finally:
        gateway.stop()


def pods(places: Places) -> None:
    """By the stand-in for the API server, which starts what the pods would run."""
    tls = places.folder / "tls"
    write_credentials(tls)
    named = {"CA_FILE": "ca", "CLIENT__CERT": "cert", "CLIENT__KEY": "key"}
    files = {f"DASK_DISTRIBUTED__COMM__TLS__{key}": str(tls / f"{name}.pem") for key, name in named.items()}
    (places.folder / "api").mkdir()
    with api_server(places.folder / "api", tls) as (_, kubeconfig):
        places.fit("pods-by-a-stand-in", PODS, KUBECONFIG=str(kubeconfig), **files)


class Fleet:
    """Scheduler, two workers and driver as overlays/workers has them, in containers that see `folder` as /srv/dorff."""

    def __init__(self, built: str, folder: Path) -> None:
        port = free_port()
        self.cluster = {"address": f"tls://dorff-scheduler:{port}"}
        self._built, self._folder = built, folder
        self._objects = build(KUBERNETES / "overlays" / "workers")
        self._replaced = {"dorff-scheduler:8786": f"dorff-scheduler:{port}", "--port=8786": f"--port={port}"}
        self._replaced |= {":8787": f"127.0.0.1:{free_port()}", "--memory-limit=4GiB": "--memory-limit=640MiB"}
        if not (folder / "tls").exists():
            write_credentials(folder / "tls")

    def _spec(self, kind: str, name: str) -> Document:
        (pod,) = (pod_of(one) for one in self._objects if (one["kind"], one["metadata"]["name"]) == (kind, name))
        assert pod is not None
        return dict(pod["spec"])

    def fit(self, place: Path) -> float:
        """All four are started for this; returns the seconds until the driver's end."""
        for path in (self._folder / "tls", place):
            for one in (path, *path.rglob("*")):
                os.chown(one, USER, USER)
        there = f"/srv/dorff/{place.name}/"
        replaced = self._replaced | {"/etc/dorff/job/job.yaml": f"{there}job.yaml", "/srv/dorff/sea/": there}
        options = [f"--volume={self._folder}/tls:/etc/dorff/tls:ro", f"--volume={self._folder}:/srv/dorff"]
        options += ["--add-host=dorff-scheduler:127.0.0.1"]
        with ExitStack() as stack:

            def start(kind: str, name: str) -> Any:
                spec = self._spec(kind, name)
                return stack.enter_context(running(self._built, spec, "1g", replaced, *options))

            began = time.perf_counter()
            for name in ("dorff-scheduler", "dorff-worker", "dorff-worker"):
                start("Deployment", name)
            driver = start("CronJob", "dorff-fit-sea")
            if code := driver.wait():
                raise SystemExit(f"{place.name}: exit {code}: {driver.log()[-2000:]}")
            return time.perf_counter() - began


def as_in_containers() -> None:
    """A BLAS that the environment tells to take this processor for another has other bits; containers are not told."""
    for name in [name for name in os.environ if name.startswith("OPENBLAS_")]:
        del os.environ[name]


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """Builds the image for it."""
    (folder / "image").mkdir()
    with image(folder / "image") as built:
        yield Fleet(built, folder)


def measure(rows: int, without: list[str]) -> list[dict[str, Any]]:
    everything = ("data", "state", "model")
    with tempfile.TemporaryDirectory() as name, slurm_nodes() as slurm, a_bucket(Path(name) / "rgw") as keys:
        folder = Path(name)
        folder.chmod(0o755)  # containers are another user
        os.environ.update(keys)
        places = Places(folder, os.environ | slurm.environment)
        np.save(folder / "rows.npy", field(rows))
        for store in (folder / "sea.zarr", locate("s3://places/sea.zarr")):
            ingest([folder / "rows.npy"], store, inputs=["c0", "c1"], targets=["c2", "c3"])
        places.fit("one-process", {"type": "serial"})
        places.fit("local", LOCAL)
        places.fit("slurm", SLURM)
        places.fit("mpi", MPI, *MPIRUN)
        places.fit("mpi-in-slurm", MPI, *SRUN)
        pods(places)
        if "containers" not in without:
            with fleet(folder) as containers:
                place = places.job("containers", containers.cluster, at="/srv/dorff")
                places.note("containers", lambda: containers.fit(place), f"{place}/model")
        places.fit("local-state-in-a-bucket", LOCAL, bucket=("state",))
        places.fit("local-all-in-a-bucket", LOCAL, bucket=everything)
        places.fit("slurm-all-in-a-bucket", SLURM, bucket=everything)
        places.fit("mpi-all-in-a-bucket", MPI, *MPIRUN, bucket=everything)
        return places.rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--without", action="append", default=[], choices=["containers"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    as_in_containers()
    places = measure(arguments.rows, arguments.without)
    same = len({row["digest"] for row in places}) == 1
    result = {"rows": arguments.rows, "features": COUNT, "same": same, "places": places}
    (arguments.out / "everywhere.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
