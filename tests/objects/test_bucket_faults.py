"""What may go wrong with a bucket, on a real gateway: whatever does, the fit's model is to the bit that of an
undisturbed fit in local folders, no row is lost or counted twice, and nothing hangs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from between import BUSY, CUT, EXPIRED, LATE, LOST, Asked, Proxy
from gateway import KEY, SECRET, Gateway, credentials
from memory_storage import forget_all
from table import Trial

from dorff.data import ingest, open_dataset, verify
from dorff.engine import SerialEngine
from dorff.fit import fit
from dorff.passes import blocks
from dorff.plan import make_plan
from dorff.plan.costs import asked_of_buckets
from dorff.predict import predict
from dorff.spec.job import Job
from dorff.storage.bucket import COUNTS
from dorff.storage.location import Location, locate
from dorff.store import current_version, load_model, model_arrays, read_history, versions

pytestmark = pytest.mark.process
ROWS, LEAF, LOCK = 24_000, 2048, 4.0
#: The command line, with small leaves.
DRIVER = f"""
import dorff.passes.blocks as blocks
blocks.SMALLEST_LEAF = blocks.LARGE_FIRST_LEAF = {LEAF}
from dorff.cli import main
main()
"""
Made = tuple[dict[str, bytes], int, bytes]
Settle = Callable[..., None]


def job(home: Path | str, **more: Any) -> dict[str, Any]:
    return {
        "data": {"store": f"{home}/sea.zarr"},
        "features": {"count": 256, "sampler": {"type": "orthogonal"}, "seed": 1}, "solve": {"ridge": 1e-6},
        "kernel": {"type": "decomposable", "scalar": {"type": "gaussian", "lengthscale": 0.5}},
        "cluster": {"type": "serial"}, "state": f"{home}/state", "model": f"{home}/model", **more,
    }  # fmt: skip


def made(home: Location) -> Made:
    """The model there, to the bit, how many rows it is of, and the predictions, if there are any."""
    model = load_model(home / "model")
    arrays = {name: value.tobytes() for name, value in model_arrays(model).items()}
    out = home / "out.zarr"
    y = open_dataset(out, inputs="y", targets=None).read(0, ROWS)[0].tobytes() if out.exists() else b""
    return arrays, model.info["report"]["rows_used"], y


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rows") / "sea.npz"
    X = np.random.default_rng(0).uniform(-1, 1, (ROWS, 2))
    np.savez(file, x=X, y=np.sin(3 * X))
    return file


@pytest.fixture(scope="module")
def small_leaves() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SMALLEST_LEAF", "LARGE_FIRST_LEAF"):
            patch.setattr(blocks, name, LEAF)
        yield


@pytest.fixture(scope="module")
def truth(rows: Path, small_leaves: None, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """What an undisturbed fit in local folders makes."""
    home = locate(tmp_path_factory.mktemp("truth"))
    ingest([rows], home / "sea.zarr", inputs=["x"], targets=["y"], shard_rows=1024)
    fit(Job.model_validate(job(home)))
    predict(home / "model", home / "sea.zarr", home / "out.zarr", engine=SerialEngine())
    return made(home)


@pytest.fixture
def sea(bucket: Location, rows: Path, truth: Made, monkeypatch: pytest.MonkeyPatch) -> Location:
    """A data set in a bucket."""
    monkeypatch.setenv("DORFF_LOCK_SECONDS", str(LOCK))
    ingest([rows], bucket / "sea.zarr", inputs=["x"], targets=["y"], shard_rows=1024)
    return bucket


@contextmanager
def started(*words: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A command, killed where it outlives the block."""
    env = os.environ | {"DORFF_LOCK_SECONDS": str(LOCK)} | environment
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *(words[1:] if words[0] == "python" else ("-c", DRIVER, *words))]
    with subprocess.Popen([*map(str, command)], text=True, env=env, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """What it said; it ends with this code, and says what a library does in no traceback."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, (process.returncode, err)
    assert "Traceback" not in err and "SKDORFF" not in out + err and "reqwest" not in err, err
    return out + err


def done(*words: object, code: int = 0, **environment: str) -> str:
    with started(*words, **environment) as process:
        return ended(process, code)


def answer(*words: object) -> Any:
    return json.loads(done(*words, "--json").splitlines()[0])


def against(store: Location, rows: Path) -> dict[str, Any]:
    """What a data set of these rows comes to."""
    dataset, wanted = open_dataset(store), np.load(rows)["x"]
    return {"rows": (len(wanted), dataset.n), "same": np.array_equal(dataset.read(0, dataset.n)[0], wanted)}


def written(place: Path, home: Location, **more: Any) -> Path:
    (place / "job.yaml").write_text(yaml.safe_dump(job(home, **more)))
    return place / "job.yaml"


def wait_for(what: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def uploads(gateway: Gateway) -> int:
    """In parts, and not ended."""
    return gateway.asked("GET", "/tests", "uploads=").count(b"<UploadId>")


def rows_used(model: Location) -> int:
    return int(load_model(model).info["report"]["rows_used"])


@pytest.fixture
def settle(gateway: Gateway, trial: Trial) -> Settle:
    """Writes what a fault came to, and that no process and no upload is left."""
    return partial(trial.settle, left=lambda: uploads(gateway))


@pytest.fixture
def record(settle: Settle, truth: Made) -> Settle:
    """The same for a fault after which there is the model that is there without."""

    def record(fault: str, home: Location, **more: Any) -> None:
        arrays, used, y = made(home)
        settle(fault, rows=(truth[1], used), same=arrays == truth[0] and y in (b"", truth[2]), **more)

    return record


def test_the_same_model_in_a_bucket_and_in_folders(sea: Location, tmp_path: Path, record: Settle) -> None:
    """Data, state and model in the bucket, by the commands."""
    file = written(tmp_path, sea)
    report = answer("fit", file)
    assert report["rows_used"] == ROWS and report["leaves_computed"] > 3
    done("predict", f"{sea}/model", f"{sea}/sea.zarr", f"{sea}/out.zarr", "--workers", "1")
    record("", sea)
    assert answer("score", f"{sea}/model", f"{sea}/sea.zarr", "--workers", "1")["r2"] > 0.99
    assert answer("inspect", f"{sea}/model")["version"] == "v000001"
    assert answer("inspect", f"{sea}/sea.zarr")["kind"] == "dataset"
    assert answer("inspect", f"{sea}/state")["plans"][0]["missing"] == 0
    assert answer("verify", f"{sea}/out.zarr") == []
    assert "report-v000001.html" in done("report", f"{sea}/model")
    assert answer("fit", file)["outcome"] == "unchanged"
    assert "nothing to remove" in done("prune", f"{sea}/model", "--keep", "1")
    done("trim", f"{sea}/out.zarr", "--keep", "2000")
    assert verify(sea / "out.zarr") == []


def test_commands_bring_files_into_a_bucket_and_back(bucket: Location, rows: Path, tmp_path: Path) -> None:
    store = f"{bucket}/sea.zarr"
    done("ingest", rows, store, "--inputs", "x", "--targets", "y")
    assert "is there already" in done("ingest", rows, store, "--inputs", "x", "--targets", "y", code=3)
    done("ingest", rows, store, "--inputs", "x", "--targets", "y", "--append", "--again")
    dataset = open_dataset(store)
    assert dataset.n == 2 * ROWS and np.array_equal(dataset.read(ROWS, ROWS + 9)[0], dataset.read(0, 9)[0])
    assert "this machine" in done("predict", f"{bucket}/m", store, f"{bucket}/o.csv", code=3)


def test_a_gateway_that_is_killed_and_started_again(
    gateway: Gateway, sea: Location, tmp_path: Path, record: Settle
) -> None:
    file = written(tmp_path, sea)
    with started("fit", file, DORFF_STORAGE_SECONDS="30") as process:
        wait_for(lambda: receipts(sea) > 1)
        gateway.kill()
        time.sleep(1)
        gateway.serve()
        ended(process)
    record("gateway killed and started again, within the time that requests are tried", sea)


def receipts(home: Location) -> int:
    return sum(name.endswith(".json") and "/receipts/" in name for name in (home / "state").below())  # type: ignore[attr-defined]


def test_a_gateway_that_does_not_come_back_in_time(
    gateway: Gateway, sea: Location, tmp_path: Path, record: Settle
) -> None:
    file = written(tmp_path, sea)
    with started("fit", file, DORFF_STORAGE_SECONDS="1") as process:
        wait_for(lambda: receipts(sea) > 1)
        gateway.kill()
        try:
            assert "run the same command again" in ended(process, 5)
        finally:
            gateway.serve()
    before = receipts(sea)
    time.sleep(LOCK)
    report = answer("fit", file)
    redone = f"{before - report['leaves_reused']} leaves that were done"
    record("gateway killed for longer than that: exit 5, run again", sea, redone=redone)
    assert report["leaves_reused"] == before


@pytest.mark.parametrize("what", ["busy, late and cut", "answers lost"])
def test_a_gateway_that_is_not_well(what: str, gateway: Gateway, sea: Location, tmp_path: Path, record: Settle) -> None:
    def rule(asked: Asked) -> str:
        if what == "answers lost":
            return LOST if asked.number % 29 == 4 and asked.method in ("PUT", "GET") else ""
        return {2: BUSY, 5: LATE, 7: CUT if asked.method == "GET" else ""}.get(asked.number % 25, "")

    file = written(tmp_path, sea)
    with Proxy(gateway.port, rule) as proxy:
        done("fit", file, **credentials(proxy.endpoint))
    record(f"gateway {what}, every few requests", sea)


def test_a_gateway_that_is_always_busy(gateway: Gateway, sea: Location, tmp_path: Path, settle: Settle) -> None:
    began = time.monotonic()
    with Proxy(gateway.port, lambda _: BUSY) as proxy:
        reached = credentials(proxy.endpoint) | {"DORFF_STORAGE_SECONDS": "1"}
        said = done("fit", written(tmp_path, sea), code=5, **reached)
    assert "the storage answered with status 503" in said and time.monotonic() - began < 30
    settle("gateway always busy", "exit 5 and one sentence", same=not versions(sea / "model"))


def test_what_the_storage_refuses_is_one_sentence(
    gateway: Gateway, sea: Location, tmp_path: Path, settle: Settle
) -> None:
    file, bucket = written(tmp_path, sea), "s3://tests: "
    assert f"{bucket}the secret is not that of the access key" in done("fit", file, code=3, AWS_SECRET_ACCESS_KEY="no")
    unknown = done("verify", f"{sea}/sea.zarr", code=3, AWS_ACCESS_KEY_ID="NOBODY")
    assert f"{bucket}the access key is unknown" in unknown
    assert "s3://nowhere: there is no such bucket" in done("inspect", "s3://nowhere/a", code=3)
    assert "there is no such bucket" in done("fit", written(tmp_path, locate("s3://nowhere/a")), code=3)
    with Proxy(gateway.port, lambda _: EXPIRED) as proxy:
        said = done("fit", file, code=3, **credentials(proxy.endpoint))
        assert "s3://nowhere: the credentials have expired" in said
    assert "names no place in a bucket" in done("inspect", "s3://tests", code=3)
    for name in ("DORFF_STORAGE_SECONDS", "DORFF_LOCK_SECONDS"):
        assert f"{name}: wanted seconds" in done("inspect", f"{sea}/sea.zarr", code=3, **{name: "soon"})
    skewed = done("inspect", f"{sea}/sea.zarr", code=3, LD_PRELOAD=str(clock_of_another_hour(tmp_path)))
    assert f"{bucket}the clocks of this machine and of the storage differ" in skewed
    for fault in ("wrong secret", "unknown key", "no such bucket", "expired credentials", "clock two hours ahead"):
        settle(fault, "exit 3 and one sentence", same=not versions(sea / "model"))


def clock_of_another_hour(folder: Path) -> Path:
    """A library that sets the clock of whoever loads it two hours ahead."""
    if shutil.which("cc") is None:
        pytest.skip("needs the Debian package gcc")
    (folder / "clock.c").write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <time.h>\n"
        "int clock_gettime(clockid_t id, struct timespec *now) {\n"
        '  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");\n'
        "  int did = real(id, now);\n  if (id == CLOCK_REALTIME) now->tv_sec += 7200;\n  return did;\n}\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "clock.so", folder / "clock.c", "-ldl"], check=True)
    return folder / "clock.so"


@pytest.mark.parametrize("at", ["first shards", "copying", "last copy"])
def test_an_ingest_that_is_killed_leaves_nothing_to_read(
    at: str, gateway: Gateway, bucket: Location, rows: Path, settle: Settle
) -> None:
    store, running, copies = bucket / "killed.zarr", [], set()
    words = ("ingest", rows, store, "--inputs", "x", "--targets", "y", "--also", "zz=x", "--shard-rows", 1024)
    last = re.compile(r"killed\.zarr/zarr\.json")

    def rule(asked: Asked) -> str:
        if asked.copy:
            copies.add(asked.path)
        in_copy = asked.copy and (
            (at == "copying" and "/5/" in asked.path) or (at == "last copy" and last.search(asked.path))
        )
        if in_copy or (at == "first shards" and asked.method == "PUT" and "/y/c/7/" in asked.path):
            running[0].kill()
        return ""

    with Proxy(gateway.port, rule) as proxy, started(*words, **credentials(proxy.endpoint)) as process:
        running.append(process)
        process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL
    assert not store.exists() and "there is nothing" in done("inspect", store, code=3)
    # What says that it is a data set is copied when all else is there, for readers that know of no markers.
    assert len(copies) == 3 * -(-ROWS // 1024) + 4 or at != "last copy"
    done(*words)
    settle(f"ingest killed ({at}), run again", **against(store, rows))
    assert verify(store) == [] and [one.name for one in bucket.iterdir()] == ["killed.zarr"]


@pytest.mark.parametrize("what", ["predict", "fit"])
def test_a_move_that_is_killed_half_way_and_made_again(
    what: str, gateway: Gateway, sea: Location, tmp_path: Path, record: Settle
) -> None:
    running: list[Any] = []
    words: tuple[object, ...] = ("fit", written(tmp_path, sea))
    if what == "predict":
        done(*words)
        words = ("predict", f"{sea}/model", f"{sea}/sea.zarr", f"{sea}/out.zarr", "--workers", "1")

    def rule(asked: Asked) -> str:
        if asked.copy and ("/out.zarr/y/c/" in asked.path or "/v000001/coefficients/" in asked.path):
            running[0].kill()
        return ""

    with Proxy(gateway.port, rule) as proxy, started(*words, **credentials(proxy.endpoint)) as process:
        running.append(process)
        process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL
    if what == "fit":
        assert current_version(sea / "model") is None and versions(sea / "model") == []
    assert not (sea / "out.zarr").exists()
    done(*words)
    if what == "fit":
        assert [one.name for one in versions(sea / "model")] == ["v000001"]
    record(f"{what} killed while its files are moved to their place, run again", sea)


def test_two_drivers_race(sea: Location, tmp_path: Path, record: Settle) -> None:
    file = written(tmp_path, sea)
    with started("fit", file, "--json") as first, started("fit", file, "--json") as second:
        said = [process.communicate(timeout=600) for process in (first, second)]
    codes = sorted([first.returncode, second.returncode])
    assert codes in ([0, 0], [0, 7]), said
    published = [line for line in read_history(sea / "model") if line["outcome"] == "published"]
    assert len(published) == len(versions(sea / "model")) == 1
    record("two drivers race for lease and publish", sea)


PUBLISHER = """
import sys
from dorff.storage.location import locate
from dorff.store import load_model, save_model
root, of = map(locate, sys.argv[1:])
model = load_model(of)
for _ in range(3):
    print(save_model(model, root).name, flush=True)
"""


def test_many_publish_at_once(sea: Location, tmp_path: Path, settle: Settle) -> None:
    done("fit", written(tmp_path, sea))
    root, words = sea / "many", ("python", "-c", PUBLISHER, sea / "many", sea / "model")
    with started(*words) as one, started(*words) as two, started(*words) as three:
        names = []
        for process in (one, two, three):
            out, err = process.communicate(timeout=600)
            late = re.search("a later version than|another may write there now", err)
            assert process.returncode == 0 or late, err
            names += out.split()
    numbers = [int(one.name[1:]) for one in versions(root)]
    assert len(set(names)) == len(names) and numbers == list(range(1, len(numbers) + 1))
    assert current_version(root) == f"v{numbers[-1]:06d}" and load_model(root) is not None
    assert (root / "current").read_bytes().startswith(f"v{numbers[-1]:06d}".encode())
    settle("three publishers race", "the last version is current", rows=(ROWS, rows_used(root)))


HOLDER = """
import os, signal, sys
from dorff.errors import DorffError, LeaseError
from dorff.storage.location import locate
from dorff.store import Lease, load_model
from dorff.store.models import number_version, switch_current, write_version
root, of = map(locate, sys.argv[1:])
with Lease.take(root / "lease", seconds=2) as lease:
    version = write_version(load_model(of), root)
    with lease.fenced():
        version = number_version(version)
        print(version.name, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            switch_current(root, version.name)
            print("switched", flush=True)
        except DorffError as error:
            print(error, flush=True)
    try:
        lease.check()
    except LeaseError as error:
        print(error, flush=True)
"""


def test_a_holder_that_is_paused_while_it_publishes_is_overtaken(sea: Location, tmp_path: Path, settle: Settle) -> None:
    done("fit", written(tmp_path, sea))
    root = sea / "paused"
    with started("python", "-c", HOLDER, root, sea / "model") as paused:
        assert paused.stdout is not None and paused.stdout.readline() == "v000001\n"
        time.sleep(LOCK + 4)  # its lock and its lease are stale
        with started("python", "-c", HOLDER.replace("signal.SIGSTOP", "0"), root, sea / "model") as next_one:
            assert "v000002\nswitched\n" in ended(next_one)
        assert current_version(root) == "v000002"
        paused.send_signal(signal.SIGCONT)
        said, _ = paused.communicate(timeout=600)
    assert "for 4 s, and another may write there now" in said and "switched" not in said
    assert current_version(root) == "v000002" and (root / "current").read_bytes().startswith(b"v000002")
    settle("publisher paused until its lease is stale", "the next one's version stays", rows=(ROWS, rows_used(root)))


LOCKER = """
import os, signal, sys
from dorff.storage.location import locate
with locate(sys.argv[1]).locked(0) as ours:
    print(ours(), flush=True)
    os.kill(os.getpid(), int(sys.argv[2]))
    print(ours(), flush=True)
"""


def test_a_lock_whose_holder_is_paused_or_killed_is_taken_over(bucket: Location, settle: Settle) -> None:
    lock = bucket / "lock"
    with started("python", "-c", LOCKER, lock, signal.SIGSTOP) as paused:
        assert paused.stdout is not None and paused.stdout.readline() == "True\n"
        began = time.monotonic()
        assert done("python", "-c", LOCKER, lock, 0) == "True\nTrue\n" and time.monotonic() - began > 1
        paused.send_signal(signal.SIGCONT)
        assert paused.communicate(timeout=600)[0] == "False\n"
    with started("python", "-c", LOCKER, lock, signal.SIGKILL) as killed:
        killed.communicate(timeout=600)
    assert done("python", "-c", LOCKER, lock, 0) == "True\nTrue\n"
    assert not bucket.exists() or list(bucket.iterdir()) == []
    for what in ("paused", "killed"):
        settle(f"holder of a lock {what}", "taken over")


@pytest.mark.parametrize("shard_rows", [1024, 8192])
def test_the_plan_says_what_is_asked_of_a_bucket(bucket: Location, rows: Path, shard_rows: int) -> None:
    """Within a factor of 1.5."""
    ingest([rows], bucket / "sea.zarr", inputs=["x"], targets=["y"], shard_rows=shard_rows)
    wanted = Job.model_validate(job(bucket))
    planned = make_plan(wanted)
    says = asked_of_buckets(wanted, planned.dataset, planned.costs)
    before = COUNTS.copy()
    fit(wanted)
    did = COUNTS - before
    requests = sum(count for kind, count in did.items() if not kind.startswith("bytes"))
    assert 1 / 1.5 < requests / says["requests"] < 1.5, (requests, says)
    assert 1 / 1.5 < did["bytes_in"] / says["bytes_read"] < 1.5, (did, says)
    local = wanted.model_copy(update={"state": Path("/tmp/state")})
    assert asked_of_buckets(local, planned.dataset, planned.costs)["requests"] < says["requests"]


WRITER = """
import sys
from dorff.storage import objects
from dorff.storage.location import locate
objects.ONE_PUT = objects.PART = 5 * 2**20
with locate(sys.argv[1]).writing(sync=True) as file:
    for _ in range(40):
        file.write(bytes(2**20))
    if len(sys.argv) > 2:
        raise ValueError
"""
RULE = b"""<LifecycleConfiguration><Rule><ID>parts</ID><Prefix></Prefix><Status>Enabled</Status>
<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload>
</Rule></LifecycleConfiguration>"""


def test_uploads_in_parts_that_were_killed_go_by_the_rule(gateway: Gateway, bucket: Location, settle: Settle) -> None:
    """An error leaves no parts; a kill does, which nobody reads, and which the rule of the docs removes."""
    running: list[Any] = []

    def rule(asked: Asked) -> str:
        if "partNumber=3" in asked.path:
            running[0].kill()
        return ""

    with started("python", "-c", WRITER, bucket / "failed", "x") as process:
        assert "ValueError" in process.communicate(timeout=600)[1]
    assert not (bucket / "failed").exists()
    settle("writer that fails between two parts of an upload", "aborted by itself")
    done("python", "-c", WRITER, bucket / "whole")
    assert (bucket / "whole").read_bytes() == bytes(40 * 2**20) and uploads(gateway) == 0
    with (
        Proxy(gateway.port, rule) as proxy,
        started("python", "-c", WRITER, bucket / "killed", **credentials(proxy.endpoint)) as process,
    ):
        running.append(process)
        process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL
    assert not (bucket / "killed").exists() and uploads(gateway) == 1
    gateway.asked("PUT", "/tests", "lifecycle=", RULE)
    time.sleep(2)
    gateway.tidy()
    wait_for(lambda: uploads(gateway) == 0)
    assert [one.name for one in bucket.iterdir()] == ["whole"]
    settle("writer killed between two parts of an upload", "unread, and gone by the bucket's rule")


def test_workers_sum_what_is_in_a_bucket(gateway: Gateway, sea: Location, tmp_path: Path, record: Settle) -> None:
    cluster = {"type": "local", "workers": 2, "small_jobs": "workers"}
    with started("fit", written(tmp_path, sea, cluster=cluster), DORFF_STORAGE_SECONDS="30") as process:
        wait_for(lambda: receipts(sea) > 0)
        gateway.kill()
        time.sleep(1)
        gateway.serve()
        ended(process)
    record("gateway killed and started again, under two workers", sea)


def test_a_fit_that_waits_for_a_gateway_can_be_stopped(
    gateway: Gateway, sea: Location, tmp_path: Path, settle: Settle
) -> None:
    with started("fit", written(tmp_path, sea), DORFF_STORAGE_SECONDS="1000") as process:
        wait_for(lambda: receipts(sea) > 1)
        gateway.kill()
        try:
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            ended(process, 5)
            assert time.monotonic() - began < 500
        finally:
            gateway.serve()
    settle("driver ended by SIGTERM while it waits for the gateway", "exit 5", same=not versions(sea / "model"))


def test_credentials_come_from_the_usual_files_too(
    gateway: Gateway, sea: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in credentials(gateway.endpoint):
        monkeypatch.delenv(name)
    key, secret = (credentials("")[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[sea]\naws_access_key_id = {key}\naws_secret_access_key={secret}\n"
    )
    (tmp_path / ".aws" / "config").write_text(f"[profile sea]\nregion=us-east-1\nendpoint_url = {gateway.endpoint}\n")
    words = ("inspect", f"{sea}/sea.zarr", "--json")
    assert json.loads(done(*words, HOME=str(tmp_path), AWS_PROFILE="sea").splitlines()[0])["rows"] == ROWS
    assert "no credentials" in done(*words, code=3, HOME=str(tmp_path), DORFF_STORAGE_SECONDS="1")


def test_a_library_that_is_missing_is_one_sentence(bucket: Location) -> None:
    hidden = "import sys\nsys.modules['obstore'] = None\n" + DRIVER
    said = done("python", "-c", hidden, "inspect", f"{bucket}/a", code=3)
    assert said == "dorff: s3://tests: needs the library obstore; pip install 'dorff[s3]'\n"


def test_an_ingest_that_is_paused_and_overtaken_adds_nothing(
    gateway: Gateway, bucket: Location, rows: Path, settle: Settle
) -> None:
    store, running = bucket / "sea.zarr", []
    other = rows.with_name("other.npz")
    np.savez(other, x=np.ones((ROWS, 2)), y=np.ones((ROWS, 2)))
    words = ("--inputs", "x", "--targets", "y", "--shard-rows", 1024)

    def rule(asked: Asked) -> str:
        if asked.method == "PUT" and "/y/c/7/" in asked.path:
            running[0].send_signal(signal.SIGSTOP)
        return ""

    with (
        Proxy(gateway.port, rule) as proxy,
        started("ingest", other, store, *words, **credentials(proxy.endpoint)) as paused,
    ):
        running.append(paused)
        wait_for(lambda: any("/y/c/7/" in name for name in bucket.below()))  # type: ignore[attr-defined]
        done("ingest", rows, store, *words)
        paused.send_signal(signal.SIGCONT)
        assert re.search("another (run has just written it|may write there now)", paused.communicate(timeout=600)[1])
        assert paused.returncode in (3, 5)
    settle("ingest paused and overtaken by another", "exit 3 or 5, the other's rows stay", **against(store, rows))
    assert verify(store) == [] and np.array_equal(open_dataset(store).read(0, ROWS)[0], np.load(rows)["x"])


def test_what_is_made_once_is_made_though_the_answer_is_lost(
    gateway: Gateway, bucket: Location, monkeypatch: pytest.MonkeyPatch, settle: Settle
) -> None:
    with Proxy(gateway.port, lambda asked: LOST if asked.number == 0 else "") as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        forget_all()
        with (bucket / "token").writing(sync=True, new=True) as file:
            file.write(b"mine")
        with pytest.raises(FileExistsError), (bucket / "token").writing(sync=True, new=True) as file:
            file.write(b"another's")
    monkeypatch.setenv("AWS_ENDPOINT_URL", gateway.endpoint)
    forget_all()
    assert (bucket / "token").read_bytes() == b"mine"
    settle("answer lost to a conditional create", "made once, the second writer refused")


NEW_KEY, NEW_SECRET = "AKDORFFNEW", "SKDORFFNEWSKDORFFNEW"


def write_credentials(home: Path, key: str, secret: str) -> None:
    """Write the usual file of credentials, whole or not at all."""
    (home / ".aws").mkdir(exist_ok=True)
    new = home / ".aws" / "new"
    new.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    new.rename(home / ".aws" / "credentials")


@contextmanager
def without_the_key(gateway: Gateway) -> Iterator[None]:
    """Take the key of the tests away inside the block."""
    gateway.remove_key(KEY)
    try:
        yield
    finally:
        gateway.add_key(KEY, SECRET)


@contextmanager
def started_with_file(home: Path, monkeypatch: pytest.MonkeyPatch, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A command whose credentials are those of the usual file."""
    write_credentials(home, KEY, SECRET)
    with ExitStack() as stack:
        with monkeypatch.context() as patch:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                patch.delenv(name)
            process = stack.enter_context(started(*words, HOME=str(home)))
        yield process


def test_a_key_that_is_rotated_in_mid_fit_is_read_anew(
    gateway: Gateway, sea: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Settle
) -> None:
    with started_with_file(tmp_path, monkeypatch, "fit", written(tmp_path, sea)) as process:
        wait_for(lambda: receipts(sea) > 1)
        gateway.add_key(NEW_KEY, NEW_SECRET)
        write_credentials(tmp_path, NEW_KEY, NEW_SECRET)
        try:
            with without_the_key(gateway):
                ended(process)
        finally:
            gateway.remove_key(NEW_KEY)
    record("key rotated in the midst of a fit", sea)


def test_a_key_that_is_removed_in_mid_fit_is_named_and_the_fit_goes_on_with_another(
    gateway: Gateway, sea: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Settle
) -> None:
    job_file = written(tmp_path, sea)
    with started_with_file(tmp_path, monkeypatch, "fit", job_file) as process:
        wait_for(lambda: receipts(sea) > 1)
        with without_the_key(gateway):
            said = ended(process, 3)
    assert re.search("access (key is unknown|is denied)", said) and not versions(sea / "model")
    before = receipts(sea)
    assert before > 1
    done("fit", job_file)
    record("key removed in the midst of a fit, and given back", sea)
