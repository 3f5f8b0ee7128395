"""The command line: its commands, its output, how it ends, what it shows while it runs."""

import errno
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from command_line import DORFF, call, contents, field, run, write_csv, write_job
from pydantic import BaseModel, field_serializer

from dorff.cli import metrics
from dorff.cli.guard import guarded, rows_of, show, size
from dorff.cli.sentences import choices_text, quality_text
from dorff.errors import DoesNotFitError, GateError, IncompleteError, InputError, LeaseError, stopping

COMMANDS = (
    *("demo", "ingest", "verify", "plan", "fit", "tune", "predict", "score", "report", "inspect"),
    *("prune", "trim", "drop", "credentials", "schema", "bench"),
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table and a job, which is also the current folder."""
    write_csv(tmp_path / "sea.csv", field(3000))
    write_job(tmp_path / "job.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fitted(place: Path) -> Path:
    """The same with a data set and a model."""
    for words in (("ingest", "sea.csv", "sea.zarr", "--inputs", "a,b", "--targets", "u,v"), ("fit", "job.yaml")):
        assert call(*words).exit_code == 0
    return place


@pytest.mark.process
def test_help_names_every_command() -> None:
    done = run("--help")
    listed = re.findall(r"^  (\w+)  ", done.stdout.split("Commands:")[1], re.MULTILINE)
    assert done.returncode == 0 and tuple(listed) == COMMANDS


@pytest.mark.process
def test_help_imports_nothing_that_is_slow() -> None:
    """What is loaded is the same on every machine, and what makes `dorff --help` quick."""
    code = (
        "import sys; sys.argv = ['dorff', '--help']\ntry: dorff.cli.main()\nfinally: print(*sys.modules, sep=chr(10))"
    )
    command = [sys.executable, "-c", f"import dorff.cli\n{code}"]
    loaded = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())
    assert {"typer", "dorff.cli.commands"} <= loaded
    assert not {"numpy", "numba", "dask", "distributed", "zarr", "pydantic", "yaml", "rich"} & loaded
    rooms = {name.split(".")[1] for name in loaded if name.startswith("dorff.")}
    assert rooms <= {"cli", "errors"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0 and ("--json" in result.stdout or command == "schema") and not result.stderr


def test_the_version() -> None:
    from dorff import __version__

    assert call("--version").stdout == f"{__version__}\n"


def test_ingest_counts_rows(place: Path) -> None:
    words = (
        "ingest",
        "sea.csv",
        "sea.csv",
        "sea.zarr",
        "--inputs=a,b",
        "--targets=u,v",
        "--shard-rows=1000",
        "--again",
    )
    result = call(*words, "--json")
    known = {"duplicates": 3000, "corrected": 0, "replaced": 0}
    assert result.exit_code == 0 and json.loads(result.stdout) == {"rows": 6000, "store": "sea.zarr"} | known
    assert re.search(r"ingest: 6,000 rows", result.stderr)
    assert json.loads(call(*words, "--append", "--json").stdout)["rows"] == 12000
    assert json.loads(call("inspect", "sea.zarr", "--json").stdout)["arrays"][0]["shards"] == 12


def test_several_files_are_said_to_be_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for part in range(7):
        Path(f"{part}.csv").write_text(f"a,u\n{part},1\n")
    sources = [f"{part}.csv" for part in range(7)]
    said = call("ingest", *sources, "each.zarr", "--inputs", "a", "--targets", "u")
    assert said.exit_code == 0 and "7 rows, each file a group, whose rows folds hold out together" in said.stdout
    told = json.loads(call("ingest", *sources, "j.zarr", "--inputs", "a", "--targets", "u", "--json").stdout)
    assert told["groups"] == "FILE"
    none = call("ingest", *sources, "none.zarr", "--inputs", "a", "--targets", "u", "--groups", "none")
    assert none.exit_code == 0 and "group" not in none.stdout


def test_ingest_takes_constants_and_names_with_commas(place: Path) -> None:
    (place / "odd.csv").write_text('"a,b",c\n1,2\n3,4\n')
    result = call("ingest", "odd.csv", "odd.zarr", "--inputs", '"a,b",=0', "--targets", "c")
    assert result.exit_code == 0, result.stderr
    (x, y) = json.loads(call("inspect", "odd.zarr", "--json").stdout)["arrays"]
    assert x["columns"] == ["a,b", "=0"] and y["columns"] == ["c"]


def test_verify(fitted: Path) -> None:
    result = call("verify", "sea.zarr", "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "[]\n", "")
    assert call("verify", "sea.zarr").stdout == "sea.zarr: whole\n"
    shard = fitted / "sea.zarr/y/c/0/0"
    shard.write_bytes(shard.read_bytes()[:-1])
    (fitted / "sea.zarr/x/c/0/0").unlink()
    before = contents(fitted)
    result = call("verify", "sea.zarr", "--json")
    assert result.exit_code == 3 and contents(fitted) == before
    faults = json.loads(result.stdout)
    assert [set(fault) for fault in faults] == [{"array", "chunk", "kind"}] * 2
    assert {"array": "x", "chunk": "c/0/0", "kind": "missing"} in faults
    assert "missing or damaged chunks: 2" in result.stderr
    assert "x  c/0/0  missing" in call("verify", "sea.zarr").stdout.splitlines()


def test_plan_says_what_a_fit_will_need_and_writes_nothing(fitted: Path) -> None:
    write_job(fitted / "new.yaml", state="new/state", model="new/model")
    before = contents(fitted)
    result = call("plan", "new.yaml", "--json")
    assert result.exit_code == 0 and contents(fitted) == before and not result.stderr
    plan = json.loads(result.stdout)
    figures = {"leaves", "peak_bytes", "disk_bytes", "flops", "seconds", "m", "rank", "worker_bytes"}
    more = {"exact_is_cheaper", "route", "reason", "passes", "in_driver", "missing_rows", "choices", "warnings"}
    assert set(plan) == figures | more and plan["missing_rows"] == 3000
    assert plan["leaves"] == 1 and plan["m"] == 64 and 0 < plan["worker_bytes"] <= plan["peak_bytes"]
    text = call("plan", "new.yaml").stdout
    assert "MiB at the peak" in text and "1 over the rows" in text


def test_inspect_tells_data_state_and_models_apart(fitted: Path) -> None:
    data, state, model, version = (
        json.loads(call("inspect", path, "--json").stdout)
        for path in ("sea.zarr", "runs/sea", "models/sea", "models/sea/v000001")
    )
    assert data["kind"] == "dataset" and data["rows"] == 3000
    assert data["bytes"] == sum(path.stat().st_size for path in Path("sea.zarr").rglob("*") if path.is_file())
    assert [(a["name"], a["rows"], a["columns"], a["shards"]) for a in data["arrays"]] == [
        ("x", 3000, ["a", "b"], 1),
        ("y", 3000, ["u", "v"], 1),
    ]
    (plan,) = state["plans"]
    assert state["kind"] == "state" and (plan["leaves"], plan["receipts"], plan["rows_used"]) == (1, 1, 3000)
    assert plan["store"] == str(fitted / "sea.zarr") and 0 < plan["bytes"] <= state["bytes"]
    assert (
        model["kind"] == "model"
        and [one["version"] for one in model["versions"]] == ["v000001"]
        and model["kernel"]["type"] == "curl_free"
    )
    assert (model["m"], model["d"], model["p"], model["report"]["rows_used"]) == (64, 2, 2, 3000)
    assert {**version, "path": "models/sea"} == model
    for path in ("sea.zarr", "runs/sea", "models/sea"):
        text = call("inspect", path).stdout
        assert text.startswith("kind: ") and "!!" not in text
    for child in (fitted / "sea.zarr").iterdir():  # the state outlives its data set
        child.rename(fitted / f"moved-{child.name}")
    (plan,) = json.loads(call("inspect", "runs/sea", "--json").stdout)["plans"]
    assert plan["leaves"] is None and plan["receipts"] == 1


def test_inspect_names_an_array_that_cannot_be_used(tmp_path: Path) -> None:
    import zarr

    group = zarr.open_group(tmp_path / "odd.zarr", mode="w")
    group.create_array("x", data=np.ones((4, 2)))
    group.create_array("cube", data=np.ones((2, 2, 2)))
    arrays = json.loads(call("inspect", tmp_path / "odd.zarr", "--json").stdout)["arrays"]
    assert "wanted 1 or 2 dimensions" in arrays[0]["problem"] and arrays[1]["rows"] == 4


def failing(error: BaseException, *, goes_on: bool = False) -> int:
    """The exit code of a command that raises this."""

    @partial(guarded, goes_on=goes_on)
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        command()
    return int(ended.value.exit_code)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InputError("sea.csv: no\n  good"), 3, "sea.csv: no good"),
        (DoesNotFitError("too big"), 4, "too big"),
        (IncompleteError("run again"), 5, "run again"),
        (GateError("no better"), 6, "no better"),
        (LeaseError("taken"), 7, "taken"),
        (
            OSError(errno.ENOSPC, "No space", "runs/x"),
            5,
            "runs/x: no space left on the disk; free some and run the same",
        ),
        (OSError(errno.EIO, "I/O error", "runs/x"), 5, "runs/x: the disk or the network failed (I/O error); see that"),
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), 3, "runs/x: Permission denied; check the path"),
        (MemoryError("Unable to allocate 3 TiB"), 4, "memory ran out (Unable to allocate 3 TiB); close"),
        (KeyboardInterrupt(), 5, "stopped; run the same command again"),
    ],
)
def test_exit_codes(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(error) == code
    out, err = capsys.readouterr()
    assert not out and err.startswith(f"dorff: {said}") and err.count("\n") == 1


def test_a_run_that_goes_on_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert failing(KeyboardInterrupt(), goes_on=True) == 5
    assert "the same command goes on from there" in capsys.readouterr().err


def test_a_bug_leaves_its_traceback_in_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert failing(ZeroDivisionError("by nought")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dorff: ZeroDivisionError: by nought -- this is a bug in dorff")
    file = Path(line.rpartition(" ")[2])
    assert file.parent == tmp_path and "ZeroDivisionError: by nought" in file.read_text()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert failing(ZeroDivisionError()) == 1
    assert "could not be kept" in capsys.readouterr().err


def test_debugging_shows_the_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DORFF_DEBUG", "1")
    assert failing(InputError("sea.csv: no good")) == 3
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and err.endswith("\ndorff: sea.csv: no good\n")


@pytest.mark.process
def test_a_closed_pipe_is_one_sentence(fitted: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([DORFF, "inspect", "sea.zarr"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 3 and done.stderr.count("\n") == 1 and "closed it" in done.stderr


def test_json_is_standard(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": float("nan"), "b": (np.inf, np.float32(0.5)), 3: np.int64(7), "p": Path("x"), "t": True, "n": None}
    show(value, "", as_json=True)
    expected: dict[str, Any] = {"a": None, "b": [None, 0.5], "3": 7, "p": "x", "t": True, "n": None}
    assert json.loads(capsys.readouterr().out) == expected


def test_text_for_people() -> None:
    assert [size(n) for n in (0, 1023, 2048, 1.5 * 2**30, None)] == ["0 B", "1023 B", "2 KiB", "1.5 GiB", "unknown"]
    assert rows_of({"a": "1", "long": "2"}) == "a     1\nlong  2"


def test_pace_counts_from_the_first_call() -> None:
    now = iter([0.0, 10.0, 20.0])
    pace = metrics._Rate(clock=lambda: next(now))
    assert pace.text(5000, 25000) == "5,000 of 25,000 rows"
    assert pace.text(15000, 25000) == "15,000 of 25,000 rows, 1,000 rows/s, 0:00:10 left"
    assert pace.text(25000, None) == "25,000 rows, 1,000 rows/s"


def test_without_a_terminal_there_is_a_line_every_so_often(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "EVERY", 0.2)
    with metrics.meter("fit") as told:
        for done in range(60):
            told(done * 10, 600)
            time.sleep(0.01)
        told(600, 600)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert not out and 2 <= len(lines) <= 5
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d fit: [\d,]+ of 600 rows, [\d,]+ rows/s.*", line) for line in lines)
    assert "600 of 600 rows" in lines[-1]


def on_a_terminal(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and what the terminal that is stderr shows."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen([DORFF, *words], stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment) as child:
        os.close(theirs)
        shown = b"".join(_read_all(ours))
        assert child.stdout is not None
        out = child.stdout.read()
    os.close(ours)
    return child.returncode, out, shown.decode()


def _read_all(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # Linux's way to say that the other end is closed
            return
        if not part:
            return
        yield part


@pytest.mark.process
def test_on_a_terminal_there_is_a_bar(fitted: Path) -> None:
    write_job(fitted / "new.yaml", state="new/state", model="new/model")
    code, out, shown = on_a_terminal("fit", "new.yaml", "--json")
    assert code == 0 and json.loads(out)["rows_used"] == 3000
    assert "━" in shown and re.search(r"3,000 of 3,000 rows, [\d,]+ rows/s", shown)
    assert "3,000 rows used, 0 dropped" in shown


def test_what_was_chosen_is_said_by_the_names_of_the_inputs() -> None:
    values = [{"Age": 1.7712, "city=Ulm": 162.04}, [0.5, 2.25], True, {"classes": "Kind"}, 0.125, "kfold"]
    said = choices_text([{"key": str(at), "value": value, "why": "so"} for at, value in enumerate(values)])
    assert [*said.values()] == [
        f"{words}  (so)"
        for words in ("Age: 1.77, city=Ulm: 162", "0.5, 2.25", "true", "classes: Kind", "0.125", "kfold")
    ]
    box = choices_text([{"key": "data.box", "value": {"x": [0.0003315500815068706, 2.0]}, "why": "so"}])
    assert box == {"data.box": "x: 0.0003315500815068706, 2.0  (so)"}, "a box that is copied would not hold its rows"
    many = choices_text([{"key": "l", "value": {f"x{at}": 1.0 for at in range(40)}, "why": "so"}])["l"]
    assert many.startswith("x0: 1, x1: 1") and many.endswith("...  (so)") and "x39" not in many


def test_a_target_that_no_held_out_row_has_is_said_to_be_unknown() -> None:
    one = {"target": "u", "r2": None, "rmse": None, "rmse_mean": None, "r2_linear": None, "r2_train": 0.5}
    said = quality_text({"accuracy": None, "outputs": [one]})
    assert said == {"held-out u": "R2 unknown (linear model unknown, own rows 0.5000)  rmse unknown (mean unknown)"}


def test_what_a_library_makes_of_a_signal_is_a_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pydantic, for one, raises an error of its own where a serializer is interrupted."""

    class Interrupted(BaseModel):
        value: int

        @field_serializer("value")
        def shown(self, _: int) -> int:
            raise KeyboardInterrupt

    @partial(guarded, goes_on=True)
    def command() -> None:
        Interrupted(value=1).model_dump()

    for caught, code, words in ((set[int](), 1, "this is a bug"), ({15}, 5, "stopped; what is done is kept")):
        monkeypatch.setattr(stopping, "_caught", caught)
        with pytest.raises(typer.Exit) as end:
            command()
        assert end.value.exit_code == code and words in capsys.readouterr().err


def test_plan_says_that_a_lattice_has_too_few_features(fitted: Path) -> None:
    few = {"sampler": {"type": "lattice"}, "count": 10}
    write_job(fitted / "few.yaml", state="few/state", model="few/model", features=few)
    planned = call("plan", "few.yaml", "--json")
    assert "the lattice's 10 features may be off the kernel by" in planned.stderr
    assert "which takes about" in planned.stderr and planned.stderr.strip().endswith("raise features.count")
    assert len(json.loads(planned.stdout)["warnings"]) == 1
