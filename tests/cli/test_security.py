"""No pickle, no code and no secret in what dorff reads, writes and says."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import call, field, write_csv, write_job
from hostile import MUCH, deep, refused, small

from dorff.errors import DorffError
from dorff.frequencies import IID
from dorff.plan import make_plan
from dorff.spec.reader import load_job
from dorff.store import load_model, save_model

#: Every command of a fit's life, twice: the second time whatever unpickles (or pickles) raises. The first is to
#: compile the loops: what Numba keeps of them in the user's own cache is pickled, and is neither model nor state.
LIFE = """
import _pickle, json, pickle, shutil, sys
from pathlib import Path
from typer.testing import CliRunner
from dorff.cli.commands import app
from dorff.store import load_model

def live(home):
    for words in (
        ["ingest", home / "sea.csv", home / "sea.zarr", "--inputs", "a,b", "--targets", "u,v"],
        ["verify", home / "sea.zarr"], ["plan", home / "job.yaml"], ["fit", home / "job.yaml"],
        ["predict", home / "models/sea", home / "sea.zarr", home / "out.zarr", "--std"],
        ["score", home / "models/sea", home / "sea.zarr"], ["inspect", home / "models/sea"],
        ["inspect", home / "sea.zarr"], ["report", home / "models/sea", "-o", home / "page.html"],
    ):
        done = CliRunner().invoke(app, list(map(str, words)))
        assert done.exit_code == 0, (words, done.output, done.stderr)
    load_model(home / "models/sea").predict([[0.0, 0.0]])

def refuse(*args, **kwargs):
    raise AssertionError("pickle was used")

live(Path(sys.argv[1]))
for module in (pickle, _pickle):
    module.load = module.loads = module.Unpickler = module.dump = module.dumps = module.Pickler = refuse
pickle._Unpickler = pickle._Pickler = pickle._loads = pickle._load = pickle._dump = pickle._dumps = refuse
sys.addaudithook(lambda event, args: refuse() if event.startswith("pickle.") else None)
try:
    pickle.loads(b"")
except AssertionError:
    live(Path(sys.argv[2]))
    print("lived")
"""


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """All that two jobs leave behind, the second without pickle; and how that went."""
    home = tmp_path_factory.mktemp("life")
    for name in ("first", "second"):
        (home / name).mkdir()
        write_csv(home / name / "sea.csv", field(400))
        write_job(home / name / "job.yaml", features={"count": 32})
    command = [sys.executable, "-c", LIFE, str(home / "first"), str(home / "second")]
    return home, subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.process
def test_a_whole_life_without_pickle(life: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = life
    assert done.returncode == 0 and done.stdout.strip().endswith("lived"), done.stdout + done.stderr


def pickles_in(raw: bytes) -> list[int]:
    """Where a pickle begins: the opcode of a protocol from 2 on, or a global of an older one, and then opcodes up to a
    stop. Of the former four at least: chance makes shorter ones of any numbers."""
    starts = [(at.start(), 4) for at in re.finditer(rb"\x80[\x02-\x05]", raw)]
    starts += [
        (at.start(), 3) for at in re.finditer(rb"c(posix|os|__builtin__|builtins|copy_reg|numpy|dorff)[\w.]*\n", raw)
    ]
    return [at for at, least in starts if _opcodes(raw[at : at + 2**16]) >= least]


def _opcodes(raw: bytes) -> int:
    """How many there are up to a stop; 0 where there is none."""
    try:
        return len(list(pickletools.genops(raw)))
    except (ValueError, IndexError, KeyError, OverflowError):
        return 0


@pytest.mark.process
def test_no_artifact_holds_a_pickle(life: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, _ = life
    files = [path for path in home.rglob("*") if path.is_file()]
    kinds = {path.name for path in files} | {path.suffix for path in files}
    assert {"zarr.json", "plan.json", "arrays.npz", ".moments", "current", "000000.json", "page.html"} <= kinds
    for path in files:
        assert path.suffix not in (".pkl", ".pickle", ".joblib"), path
        assert not pickles_in(path.read_bytes()), path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_the_search_for_pickles_finds_them(protocol: int) -> None:
    """The control."""
    noise = np.random.default_rng(0).bytes(20_000)
    assert not pickles_in(noise)
    for value in (print, np.dtype("f8"), IID(), {"a": print}, complex(1, 2)):
        raw = pickle.dumps(value, protocol)
        assert pickles_in(noise[:777] + raw + noise[777:]), value
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.array([IID(), None], dtype=object), allow_pickle=True)
    assert pickles_in(buffer.getvalue())


@pytest.mark.process
def test_names_in_a_report_are_text(life: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """The name of a column may not become a script in the page."""
    model, name = load_model(life[0] / "first" / "models" / "sea"), "<script>alert(1)</script>"
    data = {**model.info["data"], "targets": [name, "v"], "inputs": [name, "b"], "store": name}
    save_model(replace(model, info={**model.info, "data": data}), tmp_path / "m")
    done = call("report", tmp_path / "m", "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "alert(1)" in page and "<script>alert" not in page


# --- Jobs ------------------------------------------------------------------------------------------------------------

TAGS = ("python/object/apply:os.system", "python/name:os.system", "python/object/new:os.system", "python/module:os")


def laughs(depth: int = 12) -> str:
    """A list of lists of lists ..., ten of each, that are all the same one."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{k + 1}: &a{k + 1} [{', '.join([f'*a{k}'] * 10)}]" for k in range(depth)]
    return "\n".join(lines)


JOBS = {
    **{tag: f"data: {{store: !!{tag} ['touch {{marker}}']}}" for tag in TAGS},
    "laughs": laughs(), "itself": "data: &a {store: *a}", "a list of itself": "&a [*a]", "deep": deep(600),
    "deep inside": f"data: {{store: {deep(600)}}}", "deep keys": "a: " + "{a: " * 600 + "}" * 600,
    "a number of many digits": f"features: {{count: {'9' * 100_000}}}", "infinite": "features: {count: .inf}",
    "not a number": "solve: {ridge: .nan}", "a date": "state: 2024-99-99", "a set": "data: !!set {a, b}",
    "base 60": "cluster: {walltime: 12:30:45}", "many of base 60": f"state: 1{':1' * 5_000}",
    "a fraction of base 60": "solve: {ridge: 1:30.5}", "said to be of base 60": f"state: !!int 1{':1' * 5_000}",
    "said to be a fraction": f"state: !!float 1{':1' * 5_000}", "base 8": "features: {count: 0100}",
    "said to be of base 8": "features: {count: !!int '0100'}", "a key of base 60": "{1:30: a}",
    "bytes": "state: !!binary aGVsbG8=", "a list of keys": "? [1, 2]\n: 3",
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_jobs_that_are_code_or_bombs_are_refused(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "job.yaml").write_text(JOBS[name].replace("{marker}", str(marker)))
    refused(lambda: load_job(tmp_path / "job.yaml"), tmp_path / "job.yaml")
    assert not marker.exists()


@pytest.mark.process
@pytest.mark.parametrize("count", [MUCH, 10**30])
def test_a_job_of_absurd_size_is_refused_before_anything_is_allocated(
    life: tuple[Path, subprocess.CompletedProcess[str]], count: int
) -> None:
    path = write_job(life[0] / "first" / "large.yaml", features={"count": count})
    with small(), pytest.raises(DorffError) as caught:
        make_plan(load_job(path))
    assert caught.value.exit_code in (3, 4)


# --- Secrets ---------------------------------------------------------------------------------------------------------

SECRET, TOKEN, WORD = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "IQoJb3JpZ2luX2VjEXAMPLETOKEN", "hunter2-EXAMPLE"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN,
        "DATABASE_PASSWORD": WORD}  # fmt: skip


def test_secrets_are_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what the environment holds nor what an address does, whether commands work or fail."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    write_csv(tmp_path / "sea.csv", field(300))
    write_job(tmp_path / "job.yaml", features={"count": 32})
    good: list[tuple[object, ...]] = [
        ("ingest", tmp_path / "sea.csv", tmp_path / "sea.zarr", "--inputs", "a,b", "--targets", "u,v"),
        ("fit", tmp_path / "job.yaml", "--json"),
        ("inspect", tmp_path / "models/sea"), ("inspect", tmp_path / "runs/sea"),
    ]  # fmt: skip
    address = f"s3://{KEYS['AWS_ACCESS_KEY_ID']}:{SECRET}@host/sea.zarr?X-Amz-Security-Token={TOKEN}"
    write_job(tmp_path / "s3.yaml", data={"store": address})
    write_job(tmp_path / "tcp.yaml", cluster={"address": f"tcp://me:{WORD}@127.0.0.1:9"})
    bad: list[tuple[object, ...]] = [
        ("fit", tmp_path / "s3.yaml"), ("plan", tmp_path / "s3.yaml"), ("fit", tmp_path / "tcp.yaml"),
        ("verify", address), ("fit", address), ("predict", address, tmp_path / "sea.zarr", tmp_path / "o.zarr"),
        ("score", tmp_path / "models/sea", address), ("inspect", address), ("report", address),
        ("ingest", address, tmp_path / "p.zarr", "--inputs", "a", "--targets", "u"), ("fit", f"{SECRET}.yaml"),
        ("--log", "json", "fit", tmp_path / "s3.yaml"), ("--log", "json", "fit", address),
    ]  # fmt: skip
    said = []
    for words in good + bad:
        done = call(*words)
        assert done.exit_code == 0 if words in good else done.exit_code in (2, 3, 4, 5), (words, done.stderr)
        said.append((str(words), (done.stdout + done.stderr).encode()))
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".yaml"]
    kept = [(str(path), path.read_bytes()) for path in files]
    assert {"zarr.json", "plan.json", "current"} <= {path.name for path in files}
    for name, raw in said + kept:
        for secret in (SECRET, TOKEN, WORD):
            assert secret.encode() not in raw, (name, raw[-2000:])


# --- Characters that move a terminal's cursor ------------------------------------------------------------------------

HOSTILE = ("\x1b[2J\x1b]0;owned\x07", "a\rb", "\u202egnp.exe", "\u200bhidden", "\x9b31m", "\u2066x", "\u2028x")


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_reaches_the_terminal_as_it_is(tmp_path: Path, text: str) -> None:
    """Of files, columns and values of a job, as sentences and as lines of JSON."""
    rows = tmp_path / f"rows{text}.csv"
    rows.write_text(f'"a{text}","u"\n1,2\n3,4\n', encoding="utf-8", newline="")
    write_job(tmp_path / f"{text}.yaml", cluster={"type": text})
    write_job(tmp_path / "store.yaml", data={"store": f"{text}.zarr"})
    for words in (
        ("ingest", rows, tmp_path / "o.zarr", "--inputs", "b", "--targets", "u"),
        ("ingest", rows, tmp_path / "o.zarr", "--inputs", f"a{text}", "--targets", "u"),
        ("fit", tmp_path / f"{text}.yaml"), ("plan", tmp_path / "store.yaml"), ("inspect", tmp_path / text),
        ("verify", tmp_path / text), ("score", tmp_path / text, tmp_path / text),
    ):  # fmt: skip
        for log in ((), ("--log", "json")):
            done = call(*log, *words)
            assert done.exit_code in (2, 3), done.stdout
            said = done.stdout + done.stderr
            assert said and not set(said) & set(text) - set("abx[]0;ownedJ2gnp.exehidden31m"), ascii(said)
    assert not (tmp_path / "o.zarr").exists()
