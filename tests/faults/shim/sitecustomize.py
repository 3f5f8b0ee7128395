"""Faults for every process that starts with this folder on its PYTHONPATH; see harness.Faults for what may be asked.

Each fault is a JSON file in $DORFF_TEST_FAULTS, looked for anew at every file that is opened, so that a running
process can be given one. Processes share a fault's count through files that only one of them can make.
"""

import ctypes
import gc
import io
import json
import os
import re
import resource
import signal
import sys
import threading
import time

_BUSY = threading.local()
_WORKER = "--multiprocessing-fork" in sys.orig_argv or "--no-nanny" in sys.orig_argv


def _faults(path):
    try:
        names = [name for name in os.listdir(_FOLDER) if name.endswith(".json")]
    except OSError:
        return
    for name in sorted(names):
        try:
            with open(os.path.join(_FOLDER, name)) as file:
                fault = json.load(file)
        except (OSError, ValueError):  # taken back meanwhile
            continue
        if fault["where"] in ("any", "worker" if _WORKER else "driver") and re.search(fault["path"], path):
            yield name.removesuffix(".json"), fault


def _claim(name):
    """The number of this hit among those of all processes, from 0."""
    number = 0
    while True:
        try:
            handle = os.open(os.path.join(_FOLDER, f"{name}.{number:05d}.hit"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            number += 1
            continue
        os.write(handle, str(os.getpid()).encode())
        os.close(handle)
        return number


def _log(name):
    """Another line in the fault's log; how many bytes there are now."""
    handle = os.open(os.path.join(_FOLDER, f"{name}.log"), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(handle, f"{os.getpid()}\n".encode())
    size = os.fstat(handle).st_size
    os.close(handle)
    return size


def _due(name, fault):
    if fault["do"] == "log":
        _log(name)
        return False
    if fault["do"] == "sleep":  # happens too often to be numbered
        return True
    number = _claim(name) - fault["skip"]
    return number >= 0 and (not fault["times"] or number < fault["times"])


def _strike(name, fault, path):
    do, amount = fault["do"], fault["amount"]
    if do == "sleep":
        time.sleep(amount)
    elif do == "segfault":
        ctypes.string_at(0)
    elif do in ("SIGKILL", "SIGSTOP", "SIGTERM"):
        os.kill(os.getpid(), getattr(signal, do))
        time.sleep(0.05)  # until it is there
    elif do == "raise":
        raise OSError(int(amount), os.strerror(int(amount)), path)
    elif do == "fill":
        _fill(fault["target"])
    elif do == "file size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(amount), resource.RLIM_INFINITY))
    elif do == "memory":
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + int(amount),) * 2)
    elif do == "cgroup":
        with open(os.path.join(fault["target"], "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
        _HELD.append(b"\1" * int(amount))  # what the plan did not say
    elif do == "corrupt":
        _corrupt(int(amount), name)


_HELD = []


def _corrupt(seed, name):
    """Turn over a bit of every sum that is being collected: a high one, which rounding cannot hide."""
    import numpy as np

    for sums in [each for each in gc.get_objects() if type(each).__name__ == "Accumulator"]:
        rng = np.random.default_rng([seed, _log(name)])  # the same bit twice would be as it was
        i, j = sorted(rng.integers(len(sums.square), size=2))
        sums.square.T.view(np.uint64)[j, i] ^= np.uint64(1) << np.uint64(rng.integers(54, 63))


def _fill(target):
    """Use up a small file system, to its last byte."""
    with open(os.path.join(target, "filler"), "ab", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def _look(path, kinds):
    if getattr(_BUSY, "on", False) or path.startswith(_FOLDER):
        return
    _BUSY.on = True
    try:
        for name, fault in _faults(path):
            if (fault["do"] in kinds) and _due(name, fault):
                _strike(name, fault, path)
    finally:
        _BUSY.on = False


_PLACES = (".zarr/", "/runs/", "/models/")
_AT_OPEN = (
    "log",
    "sleep",
    "segfault",
    "SIGKILL",
    "SIGSTOP",
    "SIGTERM",
    "raise",
    "fill",
    "file size",
    "memory",
    "cgroup",
    "corrupt",
)


def _hook(event, arguments):
    if (
        event == "open"
        and _FOLDER
        and isinstance(arguments[0], str)
        and any(place in arguments[0] for place in _PLACES)
    ):
        _look(arguments[0], _AT_OPEN)


class _Failing(io.FileIO):
    """A disk that fails after its first bytes."""

    def __init__(self, path, mode, code):
        super().__init__(path, mode)
        self._code = code

    def write(self, data):
        raise OSError(self._code, os.strerror(self._code), self.name)


def _open(file, mode="r", *arguments, **options):
    path = os.fspath(file) if isinstance(file, str | os.PathLike) else ""
    if _FOLDER and isinstance(path, str) and "b" in mode and "r" not in mode and not getattr(_BUSY, "on", False):
        for name, fault in _faults(path):
            if fault["do"] == "write" and _due(name, fault):
                return io.BufferedWriter(_Failing(path, mode.replace("b", ""), int(fault["amount"])))
    return _OPEN(file, mode, *arguments, **options)


def _other_versions(wanted):
    """This process's packages say that they are of other versions."""
    import importlib.metadata

    true = importlib.metadata.version
    importlib.metadata.version = lambda name: wanted.get(name) or true(name)
    for name, version in wanted.items():
        __import__(name).__version__ = version


def watch(folder):
    """From now on meet the faults in this folder; none where it is empty."""
    global _FOLDER, _watching
    if not _watching:
        _watching = True
        io.open = _open
        sys.addaudithook(_hook)
    _FOLDER = os.path.join(folder, "") if folder else ""


_FOLDER = ""
_OPEN = io.open
_watching = False
if os.environ.get("DORFF_TEST_FAULTS"):
    watch(os.environ["DORFF_TEST_FAULTS"])
if "DORFF_TEST_VERSIONS" in os.environ and (_WORKER or "worker" in " ".join(sys.orig_argv)):
    _other_versions(json.loads(os.environ["DORFF_TEST_VERSIONS"]))
