"""What shells and schedulers do to a process: signals at any moment, streams that are closed or full, and files that
are no files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command_line import DORFF, call, field, run, write_csv, write_job
from processes import until

from dorff.data import ingest
from dorff.store import load_model

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def sea(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of four shards, jobs on it, and a state and a model of one of them."""
    home = tmp_path_factory.mktemp("sea")
    rows = write_csv(home / "sea.csv", field(1600))
    ingest([rows], home / "sea.zarr", inputs=["a", "b"], targets=["u", "v"], shard_rows=400)
    write_job(home / "job.yaml")
    write_job(
        home / "local.yaml",
        cluster={"type": "local", "workers": 2, "small_jobs": "workers"},
        state="runs/local",
        model="models/local",
    )
    done = run("fit", "job.yaml", cwd=home)
    assert done.returncode == 0, done.stderr
    return home


@pytest.fixture
def place(sea: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, worked in."""
    shutil.copytree(sea, tmp_path / "sea")
    monkeypatch.chdir(tmp_path / "sea")
    return tmp_path / "sea"


# --- Signals ---------------------------------------------------------------------------------------------------------


def started(*words: str) -> subprocess.Popen[str]:
    """A command in a session of its own, as a scheduler starts it."""
    return subprocess.Popen(
        [DORFF, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def catches(process: subprocess.Popen[str], number: int) -> bool:
    """Whether a process has a handler of a signal."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


SLOW_DISK = """
import sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("numpy", "pydantic"):
            time.sleep(200)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_imports_ends_it_with_5(place: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From dorff's own first lines: what is slow to import, here as from a disk that hangs, is not there yet."""
    (place / "disk").mkdir()
    (place / "disk" / "sitecustomize.py").write_text(SLOW_DISK)
    monkeypatch.setenv("PYTHONPATH", str(place / "disk"), prepend=os.pathsep)
    with started("fit", "local.yaml") as process:
        until(lambda: catches(process, signal.SIGURG))  # the last that it takes; Python itself takes SIGINT
        os.killpg(process.pid, number)
        assert process.communicate(timeout=600) == ("", "dorff: stopped; run the same command again\n")
    assert process.returncode == 5


PATIENT = """
from dorff.errors import stopping
stopping.UNWINDING = stopping.MOST = 600.0
"""


@pytest.mark.parametrize(
    ("whom", "number", "delay"),
    [
        ("group", signal.SIGTERM, 0.0),
        ("group", signal.SIGTERM, 0.7),
        ("driver", signal.SIGTERM, 0.0),
        ("group", signal.SIGINT, 0.3),
    ],
    ids=str,
)
def test_a_starting_cluster_is_stopped(
    place: Path, whom: str, number: int, delay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its first worker on, in good order, long before the last resort; nobody stays, and nothing is said but that
    it stopped."""
    (place / "patient").mkdir()
    (place / "patient" / "sitecustomize.py").write_text(PATIENT)
    monkeypatch.setenv("PYTHONPATH", str(place / "patient"), prepend=os.pathsep)
    with started("fit", "local.yaml") as process:
        me = psutil.Process(process.pid)
        until(lambda: len(me.children()) >= 2)  # the first one tracks resources
        time.sleep(delay)
        children, began = me.children(recursive=True), time.monotonic()
        (os.killpg if whom == "group" else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=600)
    took = time.monotonic() - began
    sentence = "dorff: stopped; what is done is kept, and the same command goes on from there"
    assert process.returncode == 5 and not out and err.splitlines()[-1] == sentence and "Traceback" not in err
    assert took < 300, f"{took:.1f} s: not without the last resort"
    assert psutil.wait_procs(children, timeout=600)[1] == []
    assert not (place / "models" / "local").exists()


def test_stopped_at_any_moment_a_fit_ends_with_the_same_bits(place: Path) -> None:
    """The group is stopped again and again, later each time, until a run comes to its end."""
    for wait in (0.8, 1.6, 2.4, 3.2, 90.0):
        with started("fit", "local.yaml") as process:
            try:
                process.wait(wait)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)
            _, err = process.communicate(timeout=600)
        assert process.returncode in (0, 5) and "Traceback" not in err, err
        if process.returncode == 0:
            break
    one, other = load_model(place / "models" / "sea"), load_model(place / "models" / "local")
    assert one.coefficients.tobytes() == other.coefficients.tobytes()


DEAF = """
import atexit, os, signal, subprocess, sys, threading, time
from multiprocessing import Process
from dorff.errors import stopping

def sleep():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)

def swallowed():  # as by a library's callback
    child = Process(target=sleep, daemon=True)
    child.start()
    print(child.pid, flush=True)
    with stopping.working():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGTERM)  # said twice
            time.sleep(600)

def other_thread():  # got the signal, while this one waits
    here = threading.Event()
    def thread():
        time.sleep(0.5)  # the main one waits by then
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        here.wait()
    with stopping.working():
        threading.Thread(target=thread, daemon=True).start()
        try:
            here.wait(600)
        except KeyboardInterrupt:
            os._exit(33)

def insists():  # a person, who is asked nothing twice
    with stopping.working():
        for _ in range(2):
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(600)
            except KeyboardInterrupt:
                pass
        os._exit(33)

def saving(most=25.0):  # a leaf that takes longer than unwinding may
    stopping.MOST = most
    with stopping.working():
        try:
            stopping.request_stop()
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            time.sleep(2.5 if most > 3 else 100)
            os._exit(33)

def saving_for_ever():
    saving(2.0)

def another():  # a signal that asks for no end
    signal.signal(signal.SIGUSR1, lambda *_: None)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(3)
    os._exit(33)

def after_the_work():
    with stopping.working():
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)

def unread():  # a pipe that is full, or that its reader has closed
    _, writer = os.pipe()
    os.dup2(writer, 2)
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, bytes(4096))
    except BlockingIOError:
        os.set_blocking(2, True)
    os.kill(os.getpid(), signal.SIGTERM)

def closed():
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(reader)
    os.kill(os.getpid(), signal.SIGTERM)

def ending():
    atexit.register(os.kill, os.getpid(), signal.SIGTERM)

def ended():
    raise SystemExit(3)

if __name__ == "__main__":
    stopping.UNWINDING = 1.0
    if sys.argv[1] == "ended":
        atexit.register(os.kill, os.getpid(), signal.SIGTERM)
    stopping.take_signals()
    globals()[sys.argv[1]]()
"""


ENDS = {
    "swallowed": 5, "other_thread": 33, "ending": 5, "ended": 3, "insists": 33, "saving": 33, "saving_for_ever": 5,
    "another": 33, "after_the_work": 5, "unread": 5, "closed": 5,
}  # fmt: skip


@pytest.mark.parametrize(("way", "code"), ENDS.items())
def test_no_signal_is_lost(tmp_path: Path, way: str, code: int) -> None:
    """Where the exception is swallowed the process ends a while later, and its workers; where another thread got the
    signal, the main one hears of it; a leaf that is being saved has longer, but not for ever; whatever stderr is;
    once all is over the exit code stands."""
    (tmp_path / "deaf.py").write_text(DEAF)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(tmp_path / "deaf.py"), way], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    assert time.monotonic() - began < 300
    if way == "swallowed":
        assert done.stderr.startswith("dorff: stopped") and time.monotonic() - began > 1
        child = int(done.stdout)
        until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


# --- Streams ---------------------------------------------------------------------------------------------------------

CLOSED = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full")


def shell(words: str, how: str) -> subprocess.CompletedProcess[str]:
    """A command as a shell starts it; its stdout buffered, whatever the tests' own is."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["sh", "-c", f"{DORFF} {words} {how}"], capture_output=True, text=True, timeout=600, env=environment
    )


@pytest.mark.parametrize("how", CLOSED)
@pytest.mark.parametrize("words", ["--help", "inspect models/sea", "--log json fit job.yaml --json"])
def test_closed_streams_change_nothing(place: Path, words: str, how: str) -> None:
    done = shell(words, how)
    assert done.returncode == 0, done.stderr
    assert (done.stdout != "") == (">&-" not in how.replace("2>&-", "")) and "Traceback" not in done.stderr


def test_what_fails_is_the_exit_code_on_a_full_stderr(place: Path) -> None:
    assert shell("plan nothing.yaml", "2>/dev/full").returncode == 3
    assert shell("fit", "2>/dev/full").returncode == 2


def test_names_that_are_no_text_are_said(place: Path) -> None:
    done = subprocess.run([DORFF, "plan", b"\xff.yaml"], capture_output=True, timeout=600, check=False)
    assert done.returncode == 3 and b"\\udcff.yaml" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize("words", ["--help", "--version", "inspect models/sea", "fit job.yaml --json"])
def test_a_result_that_cannot_be_written_is_said_so(place: Path, words: str) -> None:
    done = shell(words, ">/dev/full")
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("dorff: standard output: No space left on device")
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr


def test_a_fit_without_any_stream_is_the_same_fit(place: Path) -> None:
    """Nor do its workers write what they say into files that took the places of closed streams."""
    assert shell("fit local.yaml", "<&- >&- 2>&-").returncode == 0
    one, other = load_model("models/sea"), load_model("models/local")
    assert one.coefficients.tobytes() == other.coefficients.tobytes()


STREAMS = """
import os, subprocess, sys
from dorff.cli import _open_streams

_open_streams()
print("x", flush=True)
print("x", file=sys.stderr)
code = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in range(3)], file=open('child', 'w'))"
assert os.open("child", os.O_CREAT) > 2
subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_closed_streams_are_dev_null_here_and_in_children(tmp_path: Path) -> None:
    (tmp_path / "streams.py").write_text(STREAMS)
    how = "<&- >&- 2>&-"
    subprocess.run(["sh", "-c", f"exec {sys.executable} streams.py {how}"], cwd=tmp_path, check=True, timeout=600)
    assert (tmp_path / "child").read_text() == f"{['/dev/null'] * 3}\n"


# --- Files that are no files -----------------------------------------------------------------------------------------

KINDS = ("pipe", "link", "folder", "empty")


def replaced(path: Path, kind: str, outside: Path) -> None:
    """Put something else in the place of a file."""
    shutil.copy(path, outside)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(outside)
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()


def kept(home: Path) -> Iterator[Path]:
    """Every file of the state and the model, by its path; of the arrays, all alike, one."""
    for folder in ("runs/sea", "models/sea"):
        for path in sorted((home / folder).rglob("*")):
            if path.is_file() and ("v000001" not in path.parts or path.parts[-2] in ("v000001", "coefficients")):
                yield path.relative_to(home)


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_lies_in_a_files_place_nothing_hangs_and_nothing_outside_changes(place: Path, kind: str) -> None:
    """In the place of each file of a state and a model; the rows are new, so that all is read and written again."""
    (plan,) = (place / "runs" / "sea").glob("*/plan.json")
    for lease in (place / "models" / "sea" / "lease", plan.parent.with_name(f"{plan.parent.name}.lease")):
        for suffix in (".lock", ".000001"):  # as a run that was killed leaves them
            lease.with_name(lease.name + suffix).touch()
    shutil.copytree(place, place.parent / "whole")
    files = list(kept(place))
    assert {path.name for path in files} >= {"plan.json", "arrays.npz", "current", "history.jsonl", "lease.lock"}
    for file in files:
        shutil.rmtree(place / "runs")
        shutil.rmtree(place / "models")
        for folder in ("runs", "models"):
            shutil.copytree(place.parent / "whole" / folder, place / folder)
        outside = place.parent / "outside"
        replaced(place / file, kind, outside)
        before = outside.read_bytes(), outside.stat().st_mtime_ns
        write_job(place / "job.yaml", solve={"ridge": 1e-5})
        for words in (
            ("inspect", file.parents[-3]),
            ("fit", "job.yaml"),
            ("predict", "models/sea", "sea.zarr", "y.zarr", "--workers", 1),
        ):
            done = call(*words)
            assert done.exit_code in (0, 3), (file, words, done.output, done.stderr)
            if done.exit_code:
                assert done.stderr.splitlines()[-1].startswith("dorff: "), (file, words)
        assert (outside.read_bytes(), outside.stat().st_mtime_ns) == before, file
        shutil.rmtree(place / "y.zarr", ignore_errors=True)


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("current", ("predict", "models/sea", "sea.zarr", "y.zarr")),
        ("current", ("inspect", "models/sea")),
        ("history.jsonl", ("fit", "job.yaml")),
        ("lease.lock", ("fit", "job.yaml")),
        ("lease.000001", ("fit", "job.yaml")),
    ],
)
def test_what_is_no_plain_file_is_named(place: Path, name: str, words: tuple[str, ...], kind: str) -> None:
    path = place / "models" / "sea" / name
    path.touch()
    replaced(path, kind, place.parent / "outside")
    write_job(place / "job.yaml", solve={"ridge": 1e-5})
    done = call(*words)
    assert done.exit_code == 3 and f"models/sea/{name}: " in done.stderr.splitlines()[-1], done.stderr
    assert ("is a link" if kind == "link" else "is no plain file") in done.stderr
    assert sorted(one.name for one in (place / "models" / "sea").glob("*v0*")) == ["v000001"]


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_fit_puts_a_current_that_is_no_file_right(place: Path, kind: str) -> None:
    """As it does where `current` is damaged: the link itself is replaced, not what it leads to."""
    replaced(place / "models" / "sea" / "current", kind, place.parent / "outside")
    write_job(place / "job.yaml", solve={"ridge": 1e-5})
    assert call("fit", "job.yaml").exit_code == 0
    assert Path("models/sea/current").read_text().startswith("v000002 ")
    assert (place.parent / "outside").read_text().startswith("v000001 ")


def test_a_job_that_is_a_pipe_is_refused(place: Path) -> None:
    os.mkfifo("pipe.yaml")
    done = call("plan", "pipe.yaml")
    assert done.exit_code == 3 and "pipe.yaml: is no plain file" in done.stderr


# --- The end ---------------------------------------------------------------------------------------------------------

#: A command whose process has a thread of Zarr's that is busy at the end, as on a machine that is.
BUSY_AT_EXIT = """\
import atexit, sys, time
from zarr.core import sync
atexit.register(lambda: sync._get_loop().call_soon_threadsafe(time.sleep, 3))
from dorff.cli import main
sys.argv[0] = "dorff"
main()
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [(["inspect", "sea.zarr"], 0), (["verify", "sea.zarr", "--json"], 0), (["inspect", "nowhere.zarr"], 3)],
)
def test_a_busy_machine_adds_nothing_to_what_a_command_says(words: list[str], code: int, place: Path) -> None:
    usual = run(*words, cwd=place)
    busy = subprocess.run([sys.executable, "-c", BUSY_AT_EXIT, *words], capture_output=True, text=True, cwd=place)
    assert usual.returncode == busy.returncode == code
    assert busy.stderr == usual.stderr
