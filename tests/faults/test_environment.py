"""Rows, threads, packages, caches and memory that are not as they should be: the same bits, or a refusal that says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from harness import (
    ROWS,
    Cluster,
    Faults,
    Found,
    current,
    flip,
    found,
    one_process,
    receipts,
    run_fit,
    run_here,
    sea,
    seeds,
    some_seeds,
    start,
    truncate,
    wait_until,
    write_job,
    write_store,
)
from quick import slow

from dorff.engine import SerialEngine
from dorff.errors import InputError
from dorff.fit import fit
from dorff.loops import cache_directory
from dorff.spec.reader import load_job

Record = Callable[..., None]
READ = r"sea\.zarr/x/c/"
LOCAL = {"type": "local", "workers": 2}
OTHER = {"count": 64, "seed": 7}
THREADS = ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMBA")


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path / "faults")


@pytest.mark.process
@pytest.mark.parametrize("cluster", ["serial", pytest.param("local", marks=pytest.mark.slow)])
def test_wrong_thread_settings_change_no_bit(
    cluster: str, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    """The process that fits serially, or the workers, are told to use four threads of everything."""
    job = write_job(tmp_path, store, cluster={"type": cluster})
    wrong = {f"{name}_NUM_THREADS": "2" if name == "NUMBA" else "4" for name in THREADS}
    wrong |= {f"DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON__{name}": value for name, value in wrong.items()}
    ended = run_fit(job, env={**wrong, "NUMBA_THREADING_LAYER": "workqueue"})
    assert ended.code == 0, ended
    record_fault(f"wrong BLAS and Numba threads ({cluster})", 1, "same bits", *found(job).against(truth))


def bad_rows(seed: int, value: float, where: str) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    """The sea with one bad number somewhere in its middle; its row."""
    rng = np.random.default_rng(seed)
    X, Y = sea()
    row = int(rng.integers(ROWS // 4, 3 * ROWS // 4))
    (X if where == "x" else Y)[row, int(rng.integers(2))] = value
    return (X, Y), row


@pytest.mark.parametrize("seed", some_seeds(1, 3))
@pytest.mark.parametrize(
    ("where", "value", "policy"),
    [
        ("x", np.nan, "refuse"), ("x", np.nan, "drop"), ("y", np.nan, "partial"), ("x", 1e200, "refuse"),
        *(("y", 1e200, policy) for policy in ("refuse", "drop", "partial")),
        *slow(
            ("x", np.nan, "partial"), ("y", np.nan, "refuse"), ("y", np.nan, "drop"), ("x", 1e200, "drop"),
            ("x", 1e200, "partial"),
            *((where, np.inf, policy) for where in ("x", "y") for policy in ("refuse", "drop", "partial")),
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("small_leaves")
def test_a_bad_number_in_a_middle_chunk(
    where: str, value: float, policy: str, seed: int, tmp_path: Path, record_fault: Record
) -> None:
    (X, Y), row = bad_rows(seed, value, where)
    store = write_store(tmp_path / "sea.zarr", X, Y)
    data = {"store": str(store), "nan": policy}
    job = load_job(write_job(tmp_path, store, data=data))
    name = (
        "NaN" if np.isnan(value) else "Inf" if np.isinf(value) else "overflow" if where == "y" else "1e200 as an input"
    )
    fault = f"{name} in a middle chunk, nan: {policy}"
    overflows = value == 1e200 and where == "y"  # an input so large has features like any other
    if overflows or (policy == "refuse" and not np.isfinite(value)):
        for _ in range(2):  # what is left must not make the second run think otherwise
            with pytest.raises(InputError, match="overflow" if overflows else rf"row {row} .*column {where}"):
                fit(job, engine=SerialEngine())
            assert not current(tmp_path)
        record_fault(fault, 1, "exit 3, not published")
        return
    report = fit(job, engine=SerialEngine(shuffle=seed))
    dropped = int(not np.isfinite(value) and (policy == "drop" or where == "x"))
    assert (report.rows_used, report.rows_dropped) == (ROWS - dropped, dropped)
    lost, twice = found(job).against(one_process(tmp_path / "truth", store, data=data))
    assert found(job).rows == ROWS - dropped
    record_fault(fault, 1, f"same bits, {dropped} row dropped and counted", lost, twice)


@pytest.mark.parametrize("seed", some_seeds(1, 8))
@pytest.mark.parametrize("times", [1, 0])
def test_corrupted_sums_are_noticed(
    times: int, seed: int, faults: Faults, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    """A bit of the sums in memory turns over in the middle of a leaf, once or each time."""
    job = write_job(tmp_path, store)
    faults.add("bit", rf"{READ}64/", "corrupt", amount=seed, where="driver", times=times)
    ended = run_here(job, faults=faults)
    assert faults.logged("bit"), "there were no sums to corrupt"
    if times:
        assert ended.code == 0, ended
    else:
        assert ended.code == 5 and "faulty" in ended.err and "leaf 6" in ended.err and not current(tmp_path), ended
        assert run_here(job).code == 0
    outcome = "leaf done again, same bits" if times else "exit 5 naming the leaf, then same bits"
    lost, twice = found(job).against(truth)
    record_fault(
        f"a bit of G turned over in memory, {'once' if times else 'always'}", 1, outcome, lost, twice, "1 leaf"
    )


def other_version(package: str) -> str:
    """Near enough that other packages can be imported beside it."""
    return f"{version(package)}.7"


@pytest.mark.slow
@pytest.mark.parametrize("package", ["numpy", "scipy", "zarr", "dorff"])
def test_a_worker_with_another_version_is_refused_by_name(
    package: str, faults: Faults, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    with Cluster(faults) as cluster:
        cluster.start_workers(1)
        (other,) = cluster.start_workers(1, env={"DORFF_TEST_VERSIONS": json.dumps({package: other_version(package)})})
        job = write_job(tmp_path, store, cluster={"address": cluster.address})
        cluster.wait_for_workers(2)
        ended = run_fit(job, faults=faults)
        assert ended.code == 3 and f"{package} is {other_version(package)}" in ended.err, ended
        assert not current(tmp_path)
        other.kill()
        cluster.wait_for_workers(1)
        ended = run_fit(job, faults=faults)
        assert ended.code == 0, ended
    record_fault(
        f"worker with another {package}", 1, "exit 3 naming it; without it: same bits", *found(job).against(truth)
    )


@pytest.mark.slow
def test_a_worker_with_another_version_that_comes_later_is_refused(
    faults: Faults, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    faults.add("slow", READ, "sleep", amount=0.1)
    with Cluster(faults) as cluster:
        cluster.start_workers(1)
        job = write_job(tmp_path, store, cluster={"address": cluster.address})
        with start("fit", job, "--json", faults=faults) as running:
            wait_until(lambda: receipts(tmp_path) >= 1, what="the first receipt")
            (other,) = cluster.start_workers(
                1, env={"DORFF_TEST_VERSIONS": json.dumps({"scipy": other_version("scipy")})}
            )
            ended = running.end()
        assert ended.code == 3 and f"scipy is {other_version('scipy')}" in ended.err, ended
        other.kill()
        cluster.wait_for_workers(1)
        ended = run_fit(job, faults=faults)
        assert ended.code == 0, ended
    lost, twice = found(job).against(truth)
    record_fault("worker with another scipy that comes later", 1, "exit 3 naming it, then same bits", lost, twice)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder in which root cannot write either."""
    folder = tmp_path / "home"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here, and root can write everywhere else: {error}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def warm_cache(root: Path) -> list[Path]:
    """A copy of this process's compiled loops where `root` is a root of caches."""
    source = cache_directory()
    assert source is not None
    target = root / source.parent.name / source.name
    target.parent.mkdir(parents=True, mode=0o700)
    shutil.copytree(source, target)
    return sorted(target.iterdir())


@pytest.mark.process
def test_a_read_only_home_is_no_obstacle(
    read_only: Path, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    job, scratch = write_job(tmp_path, store), tmp_path / "scratch"
    warm_cache(scratch)  # so that nothing need be compiled: not what is tested here
    home = {"HOME": str(read_only), "XDG_CACHE_HOME": str(read_only), "TMPDIR": str(scratch), "DORFF_CACHE_DIR": ""}
    ended = run_fit(job, env=home)
    assert ended.code == 0, ended
    record_fault("read-only home", 1, "same bits", *found(job).against(truth))


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip, truncate], ids=["flipped", "truncated"])
def test_a_stale_and_damaged_cache_of_loops_is_compiled_anew(
    damage: Callable[[Path, int], None], store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    """Every kept loop is damaged; beside them lie those of other sources, under another name."""
    job = write_job(tmp_path, store)
    kept = warm_cache(tmp_path / "cache")
    shutil.copytree(kept[0].parent, kept[0].parent.with_name("0" * 32))
    for seed, file in enumerate(kept):
        damage(file, seed)
    ended = run_fit(job, env={"DORFF_CACHE_DIR": str(tmp_path / "cache")})
    assert ended.code == 0, ended
    lost, twice = found(job).against(truth)
    record_fault(f"{damage.__name__} Numba cache beside a stale one", len(kept), "same bits", lost, twice)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2))
def test_a_process_that_runs_out_of_memory_loses_nothing(
    seed: int, faults: Faults, store: Path, tmp_path: Path, record_fault: Record
) -> None:
    """RLIMIT_AS: the plan fits, but the process does not get what the plan says for the first leaf that it sums."""
    wide = {"count": 1024}
    job = write_job(tmp_path, store, features=wide)
    faults.add("stop", r"/receipts/\.", "SIGKILL", where="driver", skip=5)
    run_fit(job, faults=faults)
    kept = receipts(tmp_path)
    assert kept == 5
    more = int(np.random.default_rng(seed).integers(2**18, 2**21))  # a leaf takes some 3 MiB
    faults.add("limit", rf"{READ}55/", "memory", amount=more, where="driver")
    ended = run_fit(job, faults=faults)
    assert faults.hits("limit") and ended.code == 4 and "memory" in ended.err, ended
    assert receipts(tmp_path) == kept and not current(tmp_path)
    assert run_here(job).report["leaves_reused"] == kept
    lost, twice = found(job).against(one_process(tmp_path / "truth", store, features=wide))
    record_fault(
        "out of memory (RLIMIT_AS) in mid-leaf", 1, f"exit {ended.code}, then same bits", lost, twice, "1 leaf"
    )


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A cgroup of 64 MiB."""
    group = Path(f"/sys/fs/cgroup/memory/dorff-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(2**26))
    except OSError as error:
        pytest.skip(f"no cgroup with a limit can be made here: {error}")
    yield group
    group.rmdir()


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 0])
def test_a_worker_that_the_kernel_kills_for_memory(
    times: int, small_group: Path, faults: Faults, store: Path, truth: Found, tmp_path: Path, record_fault: Record
) -> None:
    """A cgroup's limit: one worker dies of it, or every one that tries the leaf."""
    job = write_job(tmp_path, store, cluster=LOCAL)
    faults.add("cgroup", rf"{READ}70/", "cgroup", amount=2**28, times=times, target=small_group)
    ended = run_fit(job, faults=faults)
    assert faults.hits("cgroup")
    tries = len(set(faults.hits("cgroup")))
    if times:
        assert ended.code == 0, ended
    else:
        assert ended.code == 6 and "leaf 7" in ended.err and not current(tmp_path), ended
        assert run_fit(job).code == 0
    outcome = "same bits" if times else "leaf named, not published; mended: same bits"
    lost, twice = found(job).against(truth)
    record_fault("out of memory (cgroup) in mid-leaf", tries, outcome, lost, twice, f"{tries} tries of the leaf")
