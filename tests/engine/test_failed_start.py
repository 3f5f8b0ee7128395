"""Local clusters that cannot start: the cause is said, and whether another try can help."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from dask import config as dask_config

from dorff.engine import open_engine
from dorff.engine.failed_start import copied_stderr, explain_failed_start
from dorff.errors import DoesNotFitError, DorffError, IncompleteError, InputError
from dorff.spec.cluster import LocalCluster

#: Starts a local cluster, and ends as the command line does.
START = """
from dorff.engine import open_engine
from dorff.errors import DorffError
from dorff.spec.cluster import LocalCluster

if __name__ == "__main__":
    try:
        with open_engine(LocalCluster(workers=1, memory=2**30)):
            pass
    except DorffError as error:
        raise SystemExit(f"{error.exit_code} {error}")
"""
FULL = "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full"
READ_ONLY = "mount -t tmpfs -o ro,size=4k tmpfs /dev/shm"


def start(host: str = "127.0.0.1") -> DorffError:
    """The error that the start of a local cluster ends with."""
    with pytest.raises(DorffError) as caught, open_engine(LocalCluster(workers=1, memory=2**30, host=host)):
        pass
    return caught.value


@pytest.mark.process
@pytest.mark.parametrize(
    ("mount", "code"), [(FULL, 4), pytest.param(READ_ONLY, 3, marks=pytest.mark.slow)], ids=["full", "read-only"]
)
def test_shared_memory_that_cannot_be_used_is_named(mount: str, code: int) -> None:
    """In a name space of its own, whose mounts nobody else sees."""
    try:
        subprocess.run(["unshare", "--mount", "bash", "-c", mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here, so /dev/shm cannot be filled: {error}")
    command = ["unshare", "--mount", "bash", "-c", f'{mount} && exec "$@"', "bash", sys.executable, "-c", START]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    said = ended.stderr.splitlines()[-1]
    assert said.startswith(f"{code} ") and "/dev/shm" in said and "cluster.type: serial" in said


@pytest.mark.process
@pytest.mark.parametrize("kind", ["no folder", "link to nowhere", "no such host"])
def test_what_the_driver_lacks_is_named(kind: str, tmp_path: Path) -> None:
    """The temporary folder lies below a file, or a link leads nowhere; an address is another machine's."""
    folder = tmp_path / "temporary"
    if kind == "no folder":
        folder.touch()
        folder = folder / "below"
    if kind == "link to nowhere":
        folder.symlink_to("/proc/nowhere")
    with dask_config.set({"temporary-directory": str(folder)}):
        error = start("192.0.2.1" if kind == "no such host" else "127.0.0.1")
    assert isinstance(error, InputError)
    assert ("cluster.host" if kind == "no such host" else str(folder)) in str(error)


@pytest.mark.process
def test_what_dying_workers_write_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker's Python ends as it starts, as with a broken installation."""
    lines = ["import os, sys", 'if "--multiprocessing-fork" in sys.orig_argv:']
    dies = '    os.write(2, b"ImportError: libsea.so: cannot open\\n"); os._exit(1)'
    (tmp_path / "sitecustomize.py").write_text("\n".join([*lines, dies]))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    error = start()
    assert isinstance(error, InputError) and "libsea.so" in str(error)


@pytest.mark.parametrize(
    ("lines", "kind", "word"),
    [
        (["RuntimeError: can't start new thread\n"], DoesNotFitError, "ulimit -u"),
        (["MemoryError: Unable to allocate 8. GiB\n", "\n"], DoesNotFitError, "cluster.workers"),
        (["OSError: [Errno 28] No space left on device: '/a'\n"], DoesNotFitError, "free some"),
        (["OSError: [Errno 24] Too many open files\n", "and more\n"], DoesNotFitError, "ulimit -n"),
        (["what else there is at AKIA:secret@host\n"], IncompleteError, "what else"),
        ([], IncompleteError, "killed"),
    ],
)
def test_only_what_may_pass_is_to_be_run_again(lines: list[str], kind: type[DorffError], word: str) -> None:
    error = explain_failed_start(RuntimeError("Nanny failed to start worker process"), lines)
    assert type(error) is kind and word in str(error)


def test_the_cause_is_below_what_dask_says() -> None:
    """As where a process cannot be started: Dask's own mistakes lie between."""
    try:
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError:
            raise AssertionError("starting") from AttributeError("terminate")
    except AssertionError as error:
        error.__cause__.__context__ = error.__context__  # type: ignore[union-attr]
        explained = explain_failed_start(error, ["a line of another program"])
    assert isinstance(explained, DoesNotFitError) and "ulimit -n" in str(explained)


@contextmanager
def descriptor_two(path: Path) -> Iterator[None]:
    """Have this file as stderr of the process."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def test_what_is_kept_of_stderr_is_written_too(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    with descriptor_two(tmp_path / "stderr"):
        with pytest.raises(RuntimeError), copied_stderr() as lines:
            os.write(2, b"a line\n")
            raise RuntimeError
        os.write(2, b"after\n")
    assert list(lines) == ["a line\n"]
    assert (tmp_path / "stderr").read_text() == "a line\nafter\n"
    assert psutil.Process().num_fds() == before
