"""Bad input gets one sentence that names it and the right exit code; nothing is written, nothing is lost."""

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr
from command_line import CURL, INDEPENDENT, call, contents, field, run, write_csv, write_job
from typer.testing import Result

from dorff.data import ingest

Case = tuple[Callable[[Path], object], list[str], int, list[str]]


def one_sentence(result: Result | subprocess.CompletedProcess[str], code: int, *needles: str) -> None:
    """It failed with this code, and all that it said is one line with these words in it."""
    got = result.exit_code if isinstance(result, Result) else result.returncode
    assert got == code, (got, result.stderr)
    progress = re.compile(r"\d\d:\d\d:\d\d \w+: [\d,]+ ")  # where the machine is slow
    (line,) = (line for line in result.stderr.splitlines() if not progress.match(line))
    assert line.startswith("dorff: ") and not result.stdout
    for needle in needles:
        assert needle in line, (needle, line)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, a data set, a job, a model and its state."""
    folder = tmp_path_factory.mktemp("whole")
    write_csv(folder / "sea.csv", field(3000))
    ingest([folder / "sea.csv"], folder / "sea.zarr", inputs=["a", "b"], targets=["u", "v"], shard_rows=512)
    done = call("fit", write_job(folder / "job.yaml"))
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def place(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to spoil, which is also the current folder."""
    folder = tmp_path / "place"
    shutil.copytree(whole, folder)
    monkeypatch.chdir(folder)
    return folder


def text_in_a_column(folder: Path) -> None:
    lines = (folder / "sea.csv").read_text().splitlines()
    lines[1000] = "1,?,3,4"
    (folder / "bad.csv").write_text("\n".join(lines))


def different_lengths(folder: Path) -> None:
    np.savez(folder / "bad.npz", x=np.ones((100, 2)), y=np.ones((99, 2)))
    group = zarr.open_group(folder / "bad.zarr", mode="w")
    group.create_array("x", data=np.ones((100, 2)))
    group.create_array("y", data=np.ones((99, 2)))
    write_job(folder / "bad.yaml", data={"store": "bad.zarr"}, state="bad/state", model="bad/model")


def new_job(**changes: object) -> Callable[[Path], object]:
    """A job whose state and model are not there yet."""
    return lambda folder: write_job(folder / "bad.yaml", **{"state": "bad/state", "model": "bad/model", **changes})


def spoiled_value(value: float, row: int, column: int) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        rows = field(3000)
        rows[row, column] = value
        np.save(folder / "bad.npy", rows)
        ingest([folder / "bad.npy"], folder / "bad.zarr", inputs=["c0", "c1"], targets=["c2", "c3"], shard_rows=512)
        new_job(data={"store": "bad.zarr"})(folder)

    return spoil


def one_target(folder: Path) -> None:
    ingest([folder / "sea.csv"], folder / "bad.zarr", inputs=["a", "b"], targets=["u"])
    new_job(data={"store": "bad.zarr"})(folder)


def lost_shard(folder: Path) -> None:
    (folder / "sea.zarr" / "x" / "c" / "3" / "0").unlink()
    new_job()(folder)


def flipped_byte_in_the_model(folder: Path) -> None:
    array = next(path for path in (folder / "models/sea/v000001/coefficients/c").rglob("*") if path.is_file())
    content = bytearray(array.read_bytes())
    content[100] ^= 1
    array.write_bytes(content)


def nothing(_folder: Path) -> None:
    """The input is as bad as it need be."""


INGEST = ["--inputs", "a,b", "--targets", "u,v"]
CASES: dict[str, Case] = {
    "missing column": (
        nothing, ["ingest", "sea.csv", "o.zarr", "--inputs", "a,bb", "--targets", "u"], 3, ["sea.csv", "'bb'", "'b'"],
    ),
    "text in a column": (
        text_in_a_column, ["ingest", "bad.csv", "o.zarr", *INGEST], 3, ["bad.csv", "column 'b'", "row 1001", "'?'"],
    ),
    "different lengths, npz": (
        different_lengths, ["ingest", "bad.npz", "o.zarr", "--inputs", "x", "--targets", "y"], 3,
        ["bad.npz", "'x' has 100 rows", "'y' has 99"],
    ),
    "different lengths, zarr": (
        different_lengths, ["fit", "bad.yaml"], 3, ["bad.zarr", "x has 100 rows", "y has 99"],
    ),
    "no such file": (nothing, ["ingest", "no.csv", "o.zarr", *INGEST], 3, ["no.csv", "no such file"]),
    "unknown format": (nothing, ["ingest", "job.yaml", "o.zarr", *INGEST], 3, ["job.yaml", ".yaml"]),
    "out is there": (nothing, ["ingest", "sea.csv", "sea.zarr", *INGEST], 3, ["sea.zarr", "is there already"]),
    "other columns appended": (
        nothing, ["ingest", "sea.csv", "sea.zarr", "--inputs", "b,a", "--targets", "u,v", "--append"], 3,
        ["sea.zarr", "append the same inputs and targets"],
    ),
    "empty name": (nothing, ["ingest", "sea.csv", "o.zarr", "--inputs", "a,,b"], 3, ["--inputs a,,b", "is empty"]),
    "not a constant": (nothing, ["ingest", "sea.csv", "o.zarr", "--inputs", "a,=z"], 3, ["'=z'", "a number"]),
    "classes": (nothing, ["ingest", "sea.csv", "o.zarr", *INGEST, "--classes", "c"], 3, ["has no column 'c'"]),
    "NaN": (spoiled_value(np.nan, 2000, 1), ["fit", "bad.yaml"], 3, ["bad.zarr", "row 2000 (shard 3)", "c1", "nan"]),
    "Inf": (spoiled_value(np.inf, 5, 2), ["fit", "bad.yaml"], 3, ["bad.zarr", "row 5 (shard 0)", "c2", "inf"]),
    "NaN in scores": (
        spoiled_value(np.nan, 7, 3), ["score", "models/sea", "bad.zarr", "--workers", "1"], 3, ["bad.zarr", "row 7"],
    ),
    "d is not p": (one_target, ["fit", "bad.yaml"], 3, ["CurlFree", "2 inputs", "1 targets"]),
    "d is not p, plan": (one_target, ["plan", "bad.yaml"], 3, ["CurlFree", "2 inputs", "1 targets"]),
    "count of one": (new_job(features={"count": 1}), ["fit", "bad.yaml"], 3, ["features.count", "2", "1"]),
    "unknown key": (new_job(kernal=CURL), ["fit", "bad.yaml"], 3, ["bad.yaml", "kernal", "'kernel'"]),
    "unknown key below": (
        new_job(solve={"rigde": 1e-3}), ["plan", "bad.yaml"], 3, ["bad.yaml", "solve.rigde", "'ridge'"],
    ),
    "key missing": (
        lambda f: (f / "bad.yaml").write_text("data: {store: a}"), ["fit", "bad.yaml"], 3, ["state", "model"],
    ),
    "no job": (nothing, ["fit", "no.yaml"], 3, ["no.yaml", "cannot be read"]),
    "not Zarr": (new_job(data={"store": "sea.csv"}), ["fit", "bad.yaml"], 3, ["sea.csv", "not a Zarr store"]),
    "not Zarr, folder": (new_job(data={"store": "runs"}), ["plan", "bad.yaml"], 3, ["runs", "not a Zarr store"]),
    "no data, predict": (nothing, ["predict", "models/sea", "job.yaml", "o.zarr"], 3, ["job.yaml", "its format is"]),
    "no data set, predict": (nothing, ["predict", "models/sea", "runs", "o.csv"], 3, ["runs", "not a Zarr store"]),
    "a column less": (
        lambda f: (f / "few.csv").write_text("a\n1\n"),
        ["predict", "models/sea", "few.csv", "o.csv"], 3, ["few.csv", "has no column 'b'"],
    ),
    "a table that is there": (nothing, ["predict", "models/sea", "sea.zarr", "sea.csv"], 3, ["sea.csv", "is there"]),
    "arrays of a file": (
        nothing, ["predict", "models/sea", "sea.csv", "o.csv", "--inputs", "x"], 3, ["is a file, ingest it"],
    ),
    "gaps of a data set": (
        nothing, ["predict", "models/sea", "sea.zarr", "o.csv", "--missing", "9"], 3, ["sea.zarr: is no file; leave"],
    ),
    "unknown of a data set": (
        nothing, ["predict", "models/sea", "sea.zarr", "o.nc", "--unknown-zero"], 3, ["sea.zarr: is no file; leave"],
    ),
    "encoded as two": (
        nothing, ["ingest", "sea.csv", "sea.zarr", "--inputs", "a", "--append", "--like", "models/sea"], 3, ["--like"],
    ),
    "an order without a name": (
        nothing, ["ingest", "sea.csv", "o.zarr", "--inputs", "a", "--ordered", "low,high"], 3, ["--ordered low,high"],
    ),
    "not Zarr, verify": (nothing, ["verify", "sea.csv"], 3, ["sea.csv", "not a Zarr store"]),
    "no such array": (
        new_job(data={"store": "sea.zarr", "inputs": "z"}), ["fit", "bad.yaml"], 3, ["sea.zarr", "'z'", "x, y"],
    ),
    "missing chunk": (lost_shard, ["fit", "bad.yaml"], 3, ["sea.zarr", "array x, chunk c/3/0", "missing"]),
    "too big for a worker": (
        new_job(cluster={"type": "local", "memory": "100MiB"}), ["fit", "bad.yaml"], 4, ["cluster.memory", "100 MiB"],
    ),
    "too big for a worker, plan": (
        new_job(cluster={"type": "serial", "memory": "100MiB"}), ["plan", "bad.yaml"], 4, ["cluster.memory"],
    ),
    "too big for the machine": (
        new_job(features={"count": 400_000, "sampler": {"type": "orthogonal"}}, kernel=INDEPENDENT,
                solve={"route": "direct"}), ["fit", "bad.yaml"], 4,
        ["solve.route: direct cannot be taken"],
    ),
    "cluster without its image": (
        new_job(cluster={"type": "kubernetes"}), ["plan", "bad.yaml"], 3, ["cluster.image is missing; add it"]
    ),
    "no model": (nothing, ["predict", "models", "sea.zarr", "o.zarr"], 3, ["models", "no model here"]),
    "damaged model": (
        flipped_byte_in_the_model, ["score", "models/sea", "sea.zarr"], 3, ["array coefficients is damaged"],
    ),
    "bands": (nothing, ["predict", "models/sea", "sea.zarr", "o.zarr", "--bands", "50"], 3, ["level", "0 and 1"]),
    "other inputs": (
        nothing, ["predict", "models/sea", "sea.zarr", "o.zarr", "--inputs", "x,y", "--workers", "1"], 3,
        ["4 input columns", "fitted to 2 (a, b)"],
    ),
    "other targets": (
        one_target, ["score", "models/sea", "bad.zarr", "--workers", "1"], 3, ["bad.zarr", "1 targets", "predicts 2"],
    ),
    "predictions are there": (
        nothing, ["predict", "models/sea", "sea.zarr", "runs", "--workers", "1"], 3, ["runs", "is there already"],
    ),
    "nothing to inspect": (nothing, ["inspect", "no"], 3, ["no: there is nothing"]),
    "inspect something else": (nothing, ["inspect", "sea.csv"], 3, ["sea.csv"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_gets_one_sentence_and_changes_nothing(place: Path, name: str) -> None:
    spoil, words, code, needles = CASES[name]
    spoil(place)
    before = contents(place)
    one_sentence(call(*words, "--json"), code, *needles)
    assert contents(place) == before


@pytest.mark.process
@pytest.mark.parametrize("name", ["NaN", "missing chunk", "too big for a worker"])
def test_workers_say_no_more_than_this_process(place: Path, name: str) -> None:
    """The same through the installed command, with worker processes: no log of theirs, no traceback."""
    spoil, words, code, needles = CASES[name]
    spoil(place)
    if name != "too big for a worker":
        text = (place / "bad.yaml").read_text().replace('"serial"', '"local"')
        (place / "bad.yaml").write_text(text)
    before = contents(place)
    one_sentence(run(*words), code, *needles)
    assert contents(place) == before


def test_a_refused_fit_keeps_what_other_runs_made(place: Path) -> None:
    """The state of a job that was fitted before stays when its data set loses a chunk."""
    (place / "sea.zarr" / "x" / "c" / "3" / "0").unlink()
    before = contents(place)
    one_sentence(call("fit", "job.yaml"), 3, "array x, chunk c/3/0")
    after = contents(place)
    assert any("receipts" in name for name in before)
    assert {name: after[name] for name in before if "lease" not in name} == {
        name: content for name, content in before.items() if "lease" not in name
    }
    assert all("lease" in name for name in set(after) - set(before))


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs commands where `full/` is a disk of 128 KiB; where none can be mounted, no file may grow beyond 8 KiB."""
    disk = tmp_path / "place" / "full"
    disk.mkdir(parents=True)
    mounted = (
        os.geteuid() == 0
        and shutil.which("mount") is not None
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True, check=False
        ).returncode
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**13, 2**13))

    yield lambda *words: run(*words, preexec_fn=None if mounted else limit)
    if mounted:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.process
def test_no_space_left(
    full: Callable[..., subprocess.CompletedProcess[str]], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "place"
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    write_csv(folder / "big.csv", field(20000))
    ingest([folder / "big.csv"], folder / "big.zarr", inputs=["a", "b"], targets=["u", "v"])
    write_job(folder / "full.yaml", model="full/model", features={"count": 4096}, kernel=INDEPENDENT)
    before = contents(folder)
    one_sentence(full("ingest", "big.csv", "full/o.zarr", *INGEST), 5, "full/o.zarr", "no space left")
    assert contents(folder) == before
    done = full("predict", "models/sea", "big.zarr", "full/o.zarr", "--workers", "1")
    assert done.returncode == 5 and "no space left" in done.stderr.splitlines()[-1]
    assert not (folder / "full" / "o.zarr").exists()
    done = full("report", "models/sea", "-o", "full/page.html")
    assert done.returncode == 5 and "no space left" in done.stderr.splitlines()[-1]
    assert not (folder / "full" / "page.html").exists()


@pytest.mark.process
def test_no_space_left_for_a_model(
    full: Callable[..., subprocess.CompletedProcess[str]], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the pass collected is kept; no half of a model is."""
    folder = tmp_path / "place"
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    parts = {"features": {"count": 4096}, "kernel": INDEPENDENT, "solve": {"ridge": 1e-6}}
    write_job(folder / "full.yaml", model="full/model", **parts)
    done = full("fit", "full.yaml")
    assert done.returncode == 5 and "no space left" in done.stderr.splitlines()[-1], done.stderr
    assert not list((folder / "full").rglob("v0*")) and not list((folder / "full").rglob(".new*"))


def test_a_folder_that_cannot_be_written(place: Path) -> None:
    """A file where a folder should be: what even root is refused."""
    (place / "file").write_text("mine")
    write_job(place / "bad.yaml", state="file/state")
    before = contents(place)
    one_sentence(call("fit", "bad.yaml"), 3, "file/state", "Not a directory")
    one_sentence(call("ingest", "sea.csv", "file/o.zarr", *INGEST), 3, "file/o.zarr", "cannot be written")
    assert contents(place) == before


@pytest.mark.parametrize(
    "words", [["tone", "job.yaml"], ["fit"], ["ingest", "sea.csv", "--inputs", "a"], ["plan", "job.yaml", "--jsn"], []]
)
def test_usage_errors(place: Path, words: list[str]) -> None:
    before = contents(place)
    result = call(*words)
    assert result.exit_code == 2 and not (words and result.stdout)
    assert contents(place) == before


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "s3://b/job.yaml"],
        ["fit", "job.yaml", "--metrics", "s3://b/x.prom"],
        ["report", "models/sea", "-o", "gs://b/sea.html"],
        ["inspect", "s3:/b/models"],
        ["credentials", "abfss://b/tls"],
    ],
    ids=" ".join,
)
def test_what_is_to_be_on_this_machine_is_in_no_bucket(place: Path, words: list[str]) -> None:
    """Nor in a folder whose name looks like one."""
    before = contents(place)
    done = call(*words)
    assert done.exit_code == 2 and ":/b/" in done.stderr and "wanted a file or folder of this machine" in done.stderr
    assert contents(place) == before
