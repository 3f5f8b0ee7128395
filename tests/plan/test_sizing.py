"""`dorff plan --for`: a cluster that would do, which a job takes as it is; and workers that end before a leaf does."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import INDEPENDENT, call
from places import ROOT

from dorff.data import ArrayLayout, ShardWriter, write_metadata
from dorff.plan import make_plan
from dorff.spec.reader import load_job


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A job on 4 10^7 rows of which the first shard alone is written: nothing more is read to plan it."""
    store, layouts = tmp_path / "rows.zarr", {"x": ArrayLayout(2, 16384, 1024), "y": ArrayLayout(1, 16384, 1024)}
    for name, layout in layouts.items():
        with ShardWriter(store / name, layout) as writer:
            writer.write(np.random.default_rng(0).standard_normal((16384, layout.columns)))
    write_metadata(store, layouts, rows=4 * 10**7, columns={"x": ("a", "b"), "y": ("c",)})
    body = {
        "data": {"store": "rows.zarr"}, "kernel": INDEPENDENT,
        "features": {"count": 2048, "sampler": {"type": "orthogonal"}}, "solve": {"ridge": 1e-6},
        "state": "runs", "model": "models",
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(json.dumps(body))
    return tmp_path / "job.yaml"


def with_cluster(job: Path, cluster: dict[str, Any]) -> Path:
    job.write_text(json.dumps(json.loads(job.read_text()) | {"cluster": cluster}))
    return job


def planned(job: Path, *words: str) -> dict[str, Any]:
    done = call("plan", job, "--json", *words)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("word", ["slurm", "kubernetes"])
def test_the_cluster_that_is_printed_holds_the_job(large: Path, word: str) -> None:
    """It plans without a refusal, whatever the job said before; its words are YAML in what people read, too."""
    plan = planned(large, "--for", word)
    cluster = plan["cluster"]
    core_hours = plan["flops"] / 5e10 / 3600
    assert core_hours > 0.8 and cluster["workers"] == np.ceil(core_hours)
    again = planned(with_cluster(large, cluster), "--for", word)
    assert again["cluster"] == cluster and again["worker_bytes"] <= plan["worker_bytes"]
    shown = call("plan", large, "--for", word).stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("cluster")]
    assert yaml.safe_load(line.removeprefix("cluster")) == cluster


def test_memory_has_something_to_spare_and_walltime_twice_the_time(large: Path) -> None:
    plan = planned(large, "--for", "slurm")
    cluster = plan["cluster"]
    gib = int(cluster["memory"].removesuffix("GiB"))
    assert (gib - 1) * 2**30 < 1.1 * plan["worker_bytes"] <= gib * 2**30
    hours, minutes, _ = map(int, cluster["walltime"].split(":"))
    seconds = 2 * plan["flops"] / 5e10 / cluster["workers"]
    assert seconds <= 3600 * hours + 60 * minutes < seconds + 900


def test_few_leaves_have_few_workers(large: Path) -> None:
    """However long a leaf takes: a worker has two at least."""
    body = json.loads(large.read_text()) | {
        "features": {"count": 16384, "sampler": {"type": "orthogonal"}},
        "data": {"store": "rows.zarr", "window": 4096},
    }
    large.write_text(json.dumps(body))
    plan = planned(large, "--for", "slurm")
    assert plan["cluster"]["workers"] == max(1, plan["leaves"] // 2)


@pytest.mark.parametrize(("count", "workers", "memory"), [(20_000, 100, "8GiB"), (46_000, 1, "2GiB")])
def test_a_job_that_is_too_large_for_this_machine_has_a_cluster_too(
    large: Path, count: int, workers: int, memory: str
) -> None:
    """Of the direct route, which the workers that the job has now may not be large enough for."""
    more = {
        "features": {"count": count, "sampler": {"type": "orthogonal"}},
        "cluster": {"workers": workers, "memory": memory},
    }
    large.write_text(json.dumps(json.loads(large.read_text()) | {"solve": {"ridge": 1e-6, "route": "direct"}} | more))
    assert call("plan", large).exit_code == 4
    plan = planned(large, "--for", "slurm")
    assert plan["route"] == "direct" and plan["worker_bytes"] < 2**30 * int(plan["cluster"]["memory"][:-3])


def test_pods_are_given_what_the_job_reads(large: Path) -> None:
    """A claim where its state is in folders, a secret where something is in a bucket; in the overlays' names."""
    assert planned(large, "--for", "kubernetes")["cluster"].keys() >= {"claim"}
    job = load_job(with_cluster(large, {"type": "serial"}))
    cluster = make_plan(job).costs.cluster_for("kubernetes", job.model_copy(update={"state": "s3://bucket/runs"}))
    assert "claim" not in cluster and cluster["env_from"] == "dorff-s3"
    for name, key in (("operator", "claim: dorff\n"), ("operator-s3", "env_from: [dorff-s3]\n")):
        assert key in (ROOT / "deploy" / "kubernetes" / "overlays" / name / "job.yaml").read_text()


@pytest.mark.parametrize(("flops", "walltime"), [(0.0, "00:15:00"), (1e25, "24:00:00")])
def test_a_walltime_is_one_that_queues_have(large: Path, flops: float, walltime: str) -> None:
    job = load_job(with_cluster(large, {"type": "serial"}))
    assert replace(make_plan(job).costs, flops=flops).cluster_for("slurm", job)["walltime"] == walltime


def test_a_walltime_that_is_shorter_than_a_leaf_is_refused(large: Path) -> None:
    """Before anything is asked of Slurm, which is not here."""
    body = json.loads(large.read_text()) | {"features": {"count": 16384, "sampler": {"type": "orthogonal"}}}
    body["cluster"] = {"type": "slurm", "memory": "16GiB", "walltime": "00:01:00"}
    large.write_text(json.dumps(body))
    for command in ("plan", "fit"):
        done = call(command, large)
        assert done.exit_code == 3
        assert "cluster.walltime: a leaf takes a usual core about" in done.stderr
        assert "raise the walltime, or lower features.count (now 16384)" in done.stderr
    body["cluster"]["walltime"] = "01:00:00"
    large.write_text(json.dumps(body))
    assert "cluster.walltime" not in call("plan", large).stderr  # whether this machine's disk would do or not


def test_another_word_is_a_mistake_of_usage(large: Path) -> None:
    done = call("plan", large, "--for", "pbs")
    assert done.exit_code == 2 and "slurm" in done.stderr


def test_the_exact_model_is_cheaper_where_its_system_is_no_wider(tmp_path: Path) -> None:
    """Minh's eq. 75: p n against m r unknowns; at the border it is."""
    store, layouts = tmp_path / "rows.zarr", {"x": ArrayLayout(2, 128, 128), "y": ArrayLayout(3, 128, 128)}
    for name, layout in layouts.items():
        with ShardWriter(store / name, layout) as writer:
            writer.write(np.random.default_rng(0).standard_normal((100, layout.columns)))
    write_metadata(store, layouts, rows=100, columns={"x": ("a", "b"), "y": ("c", "d", "e")})
    body = {"data": {"store": "rows.zarr"}, "kernel": INDEPENDENT, "solve": {"ridge": 1e-6}, "state": "s", "model": "m"}
    for count, cheaper in ((100, True), (98, False)):  # r = 3
        (tmp_path / "job.yaml").write_text(
            json.dumps(body | {"features": {"count": count, "sampler": {"type": "orthogonal"}}})
        )
        plan = planned(tmp_path / "job.yaml")
        assert plan["rank"] == 3 and plan["exact_is_cheaper"] is cheaper
