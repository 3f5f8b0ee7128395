"""The one Numba configuration: how dorff's loops are compiled and where their machine code is kept."""

import hashlib
import logging
import os
import pickle
import platform
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

import llvmlite  # type: ignore[import-untyped]
import numba
from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.runtime import rtsys

P = ParamSpec("P")
R = TypeVar("R")
_FASTMATH = {"contract"}
_log = logging.getLogger(__name__)


def loop(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` at its first call with given types: nogil, one thread, no bounds checks, kept. `contract`
    (fused multiply-add) is the only liberty taken with the arithmetic: NaN, Inf and the order of operations are
    respected. Arguments must be arrays and numbers; a function passed as an argument is never found again on disk,
    since its type has no lasting name. Only functions of this room are kept: the key knows of no other sources."""
    jit = numba.njit(nogil=True, parallel=False, boundscheck=False, error_model="numpy", fastmath=_FASTMATH)
    compiled: Callable[P, R] = jit(function)
    ours = function.__module__.startswith(f"{__package__}.")
    if ours and isinstance(compiled, Dispatcher):  # NUMBA_DISABLE_JIT=1 hands the function back as it is
        vars(compiled)["_cache"] = _DiskCache(f"{function.__module__}.{function.__qualname__}")
    return compiled


@cache
def cache_directory() -> Path | None:
    """The directory that keeps this process's machine code; None (nothing is kept) when no place can be used. The
    first usable of DORFF_CACHE_DIR, the user's cache directory and the temporary directories. Its name is the digest
    of what the code depends on: this room's sources, Python, Numba, llvmlite, the CPU and the user."""
    key = _key(Path(__file__).parent)
    for root in _roots() if key else ():
        try:
            return _private(_private(root / f"dorff-{_user()}") / key)
        except OSError as error:
            _log.debug("compiled loops cannot be kept under %s: %s", root, error)
    _log.warning("compiled loops are not kept: no cache directory is usable; set DORFF_CACHE_DIR to one")
    return None


def _key(room: Path) -> str:
    """The digest; empty where the sources cannot be read (a zip file): a change would go unnoticed."""
    if not (sources := sorted(room.glob("*.py"))):
        return ""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    python = (platform.python_implementation(), platform.python_version(), platform.machine())
    rest = (numba.__version__, llvmlite.__version__, get_host_cpu_name(), _user())
    digest.update(repr(python + rest).encode())
    return digest.hexdigest()[:32]


def _user() -> int:
    return os.getuid() if os.name == "posix" else 0


def _roots() -> Iterator[Path]:
    if chosen := os.environ.get("DORFF_CACHE_DIR"):
        yield Path(chosen)
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    yield Path(os.environ.get("TMPDIR") or os.environ.get("TEMP") or "/tmp")
    yield Path("/var/tmp")


def _private(path: Path) -> Path:
    """`path`, made if need be: a true directory only this user can write to, since what it holds is run."""
    if not path.is_absolute():  # "~/.cache" stays as it is for a user without a home
        raise OSError(f"{path} is not an absolute path")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()  # a link is not followed: its target may be swapped
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{path} is not a directory")
    if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise OSError(f"{path} can be written to by other users")
    tempfile.TemporaryFile(dir=path).close()  # permission bits do not tell of read-only file systems
    return path


class _DiskCache(NullCache):
    """One function's compiled signatures, each a file of its own that appears whole or not at all. Numba's own cache
    is set by process-wide variables, and its index file lets two processes that compile different signatures at once
    read each other's code. Here a file's name is the digest of what it holds the code of, so writers never clash; its
    first 32 bytes are the SHA-256 of the rest, so damage is noticed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _file(self, signature: object, codegen: Any) -> Path | None:
        if (directory := cache_directory()) is None:
            return None
        key = repr((self._name, signature, codegen.magic_tuple()))
        return directory / f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    def load_overload(self, sig: object, target_context: Any) -> Any:
        """The compiled code kept for `sig`, or None. The types and functions that Numba knows are left unloaded: it
        loads them itself before it compiles, and kept code needs its memory manager only."""
        rtsys.initialize(target_context)
        if (file := self._file(sig, target_context.codegen())) is None:
            return None
        try:
            raw = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("the compiled loop %s cannot be read (%s); compiling it anew", file, error)
            return None
        if hashlib.sha256(raw[32:]).digest() != raw[:32]:
            _log.warning("the compiled loop %s is damaged; compiling it anew", file)
            return None
        rebuild: Any = CompileResult._rebuild
        return rebuild(target_context, *pickle.loads(raw[32:]))

    def save_overload(self, sig: object, data: Any) -> None:
        """Keep the compiled code `data` of `sig`; a failing disk is logged and costs only a later start."""
        file = self._file(sig, data.codegen)
        if file is None or data.library.has_dynamic_globals:  # code that holds addresses of this process
            return
        payload = pickle.dumps(data._reduce(), protocol=pickle.HIGHEST_PROTOCOL)
        new = file.with_name(f"{file.name}.{uuid4().hex}")
        try:
            new.write_bytes(hashlib.sha256(payload).digest() + payload)
            new.replace(file)
        except OSError as error:
            _log.warning("the compiled loop %s cannot be kept: %s", file, error)
            with suppress(OSError):  # the same trouble again, already told
                new.unlink()


def loops_processor() -> str:
    """Return the kind of processor that Numba compiles the loops for."""
    return str(getattr(numba.config, "CPU_NAME", None) or get_host_cpu_name())
