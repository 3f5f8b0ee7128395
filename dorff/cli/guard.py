"""How a command ends, on stdout or in one sentence on stderr; shared options; stderr as sentences or lines of JSON."""

import atexit
import csv
import io
import json
import math
import os
import re
import sys
import threading
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial, wraps
from logging import INFO, NOTSET, Handler, getLogger
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TextIO

import typer
from typer.core import TyperCommand, TyperOption

from dorff.errors import FAILING, NO_SPACE, DoesNotFitError, DorffError, IncompleteError, InputError
from dorff.errors.secrets import redact
from dorff.errors.shown import printable
from dorff.errors.stopping import signalled, working

if TYPE_CHECKING:
    from dorff.spec.job import Job

P = ParamSpec("P")
option = partial(typer.Option, show_default=False)  # of what has no default but to be left out


def guarded(command: Callable[P, None], *, goes_on: bool = False) -> Callable[P, None]:
    """The command, but it never shows a library's traceback; `goes_on`: what it has done is kept when it is stopped."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from dorff.spec.trust import trusting

        try:
            with working(), trusting(None):
                command(*args, **kwargs)
        except (typer.Exit, typer.BadParameter):
            raise
        except BaseException as error:
            raise typer.Exit(_report(error, goes_on=goes_on)) from error

    return run


def run_app(app: Callable[[], None]) -> None:
    """The whole of a process, to the last byte on stdout; ends with SystemExit."""
    sys.stderr = unfailing(sys.stderr.fileno())
    try:
        with _passing_on():
            app()
    except InputError as error:  # of a help text, which no command guards
        sys.exit(_report(error, goes_on=False))


def put(line: str) -> None:
    """A line on stdout. InputError where it cannot be written."""
    with _passing_on():
        print(line)


@contextmanager
def _passing_on() -> Iterator[None]:
    """Write what is printed inside; what fails there is no reason to do anything again."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        problem = f"standard output: {error.strerror} (its reader closed it, or its disk is full)"
        raise InputError(f"{problem}; the result could not be passed on, all else is done") from error


def show(value: object, text: str, *, as_json: bool) -> None:
    """A command's result, on stdout: `value` as one line of JSON, or `text` for people."""
    put(json.dumps(_plain(value), allow_nan=False) if as_json else printable(redact(text), lines=True))


def read_job(path: Path, root: Path | None, allow: Sequence[str] | None, policy: Path | None) -> "Job":
    """Read a job, below a root as far as its operator allows.

    Words of other packages stay refused until the command ends: a model or a state that lies in the root has words too.
    """
    from dorff.spec.reader import load_allowed, load_job
    from dorff.spec.trust import Trust, keep_trusting

    if root is None:
        if allow or policy is not None:
            raise InputError(f"{'--allow' if allow else '--policy'}: has no effect without --root; give that too")
        return load_job(path)
    try:
        here = Path.cwd().is_relative_to(root.resolve())
    except OSError:  # it was removed
        here = True
    if here:  # Python, Numba and matplotlib take code and settings from there, in workers too
        problem = "the working folder lies in it, and programs that dorff starts would run code that lies there"
        raise InputError(f"--root {root}: {problem}; run the command from a folder outside of it")
    allowed = load_allowed(policy, allow or [], root=root)
    job = load_job(path, root=root, allowed=allowed)
    keep_trusting(Trust(root=root.resolve(), allowed=allowed))
    return job


def rows_of(table: Mapping[str, str]) -> str:
    """Names and values, one a line, in two columns."""
    width = max(map(len, table), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in table.items())


def size(count: float | None) -> str:
    if count is None:
        return "unknown"
    unit = min(4, int(math.log2(max(1.0, count)) // 10))
    return f"{count / 2 ** (10 * unit):.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _plain(value: Any) -> Any:
    """Standard JSON: no NaN or infinity (null instead), no NumPy numbers, no paths."""
    if isinstance(value, Mapping):
        return {redact(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return _plain(value.item()) if hasattr(value, "item") else redact(str(value))


def _report(error: BaseException, *, goes_on: bool) -> int:
    """Say what went wrong in one sentence; returns the exit code."""
    code, sentence = end_of(error, goes_on=goes_on)
    if os.environ.get("DORFF_DEBUG") == "1":
        say("".join(traceback.format_exception(error)).rstrip(), "debug")
    elif code == 1:
        try:
            with NamedTemporaryFile("w", prefix="dorff-bug-", suffix=".txt", delete=False, encoding="utf-8") as file:
                file.write(redact("".join(traceback.format_exception(error))))
            sentence += f"; please report it with the traceback in {file.name}"
        except OSError as problem:
            sentence += f"; its traceback could not be kept ({problem.strerror}), set DORFF_DEBUG=1 to see it"
    try:
        sys.stdout.flush()
    except OSError:  # what is in its buffer will never be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sentence = " ".join(printable(sentence, lines=True).split())
    say(f"dorff: {sentence}", "error", exit_code=code, error=type(error).__name__)
    return code


def end_of(error: BaseException, *, goes_on: bool) -> tuple[int, str]:
    if isinstance(error, DorffError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt) or signalled():
        kept = "what is done is kept, and the same command goes on from there"
        return IncompleteError.exit_code, f"stopped; {kept if goes_on else 'run the same command again'}"
    if isinstance(error, MemoryError):
        problem = f"memory ran out{f' ({error})' if str(error) else ''}"
        remedy = "close other programs, or lower cluster.workers or features.count, and run the same command again"
        return DoesNotFitError.exit_code, f"{problem}; {remedy}"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        if error.errno in NO_SPACE:
            problem = "no space left on the disk; free some and run the same command again"
            return IncompleteError.exit_code, f"{where}{problem}"
        if error.errno in FAILING:
            problem = f"the disk or the network failed ({error.strerror}); see that it is well"
            return IncompleteError.exit_code, f"{where}{problem}, and run the same command again"
        return InputError.exit_code, f"{where}{error.strerror or error}; check the path and its permissions"
    return 1, f"{type(error).__name__}: {error} -- this is a bug in dorff"


def place(text: str) -> Path:
    """A path of this machine, or in another storage."""
    from dorff.storage.location import is_remote, locate

    try:
        return locate(text) if is_remote(text) else Path(text)
    except InputError as error:  # which the parser would call wrong usage
        raise typer.Exit(_report(error, goes_on=False)) from error


at = partial(typer.Argument, parser=place)  # what may be in another storage

Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)]
_WITHIN = "For jobs that others wrote: paths stay below this folder; no machines, code, secrets or addresses."
Root = Annotated[Path | None, option("--root", metavar="DIR", envvar="DORFF_ROOT", help=_WITHIN)]
_ALLOW = "Below --root, allow a key such as cluster.image, or one value of it; may be given several times."
Allow = Annotated[list[str] | None, option("--allow", metavar="KEY[=VALUE]", help=_ALLOW)]
_POLICY = "A file of such keys, outside of --root: allow: {cluster.image: [a, b], cluster.type: slurm}."
Policy = Annotated[Path | None, option("--policy", metavar="FILE", envvar="DORFF_POLICY", help=_POLICY)]
_COLLECTOR = "Write figures for Prometheus' textfile collector, whether the run succeeds or not."
Metrics = Annotated[Path | None, option("--metrics", metavar="FILE.prom", help=_COLLECTOR)]
ModelPath = Annotated[Path, at(metavar="MODEL", help="A model's root (its current version) or one version.")]
Store = Annotated[Path, at(metavar="DATA.zarr", help="The data set.")]
_STACKED = "The arrays that hold the inputs, stacked; x, or those that a model of views was fitted to, if left out."
Inputs = Annotated[str, option(metavar="A,B", help=_STACKED)]
Views = Annotated[str, option(metavar="V,W", help="Views of the model to use, others may be missing.")]
_RENAME = "Columns that are called otherwise than the model's: OLD=NEW, with the model's name last."
Rename = Annotated[str, option(metavar="OLD=NEW,...", help=_RENAME)]
Bands = Annotated[str, option(metavar="0.5,0.95", help="Bands that new targets lie in at these levels.")]
Pooled = Annotated[bool, typer.Option("--pooled", help="R2 of all outputs together; else by the kernel.")]
Mean = Annotated[bool, typer.Option("--mean", help="R2 as the mean of the outputs'; else by the kernel.")]
Workers = Annotated[int, typer.Option(min=1, help="Worker processes at most; 1 works in this process.")]


class Command(TyperCommand):
    """Takes each option of one value once: of several only the last would count; no bucket for what is to be here."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option, count in Counter(order).items():
            if isinstance(option, TyperOption) and count > 1 and not (option.multiple or option.is_flag):
                ctx.fail(f"{option.opts[-1]} is given {count} times; give it once (several names as A,B).")
        rest = super().parse_args(ctx, args)
        for value in ctx.params.values():
            for path in value if isinstance(value, list | tuple) else [value]:
                if type(path) is type(Path()) and re.match(r"[A-Za-z][\w+.-]+:/", str(path)):
                    may = "data sets, states and models alone may be elsewhere, as s3://BUCKET/PATH (or gs, az)"
                    ctx.fail(f"{redact(str(path))}: wanted a file or folder of this machine; {may}.")
        return rest


def names(option: str, text: str) -> list[str]:
    """Comma-separated names; quotes, as in CSV, keep a comma in one."""
    try:
        parts = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error as error:  # the end of a line in a name
        raise InputError(f"{option} {text}: holds the end of a line; write names with commas between") from error
    if not all(parts):
        raise InputError(f"{option} {text}: a name is empty; write names with single commas between, such as a,b")
    return parts


def level(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--bands: {text!r} is not a level; write such as 0.5,0.95") from None


def further(option: str, given: Sequence[str]) -> dict[str, list[str]]:
    """What is given by names, the columns of further arrays, say, each written NAME=A,B."""
    arrays: dict[str, list[str]] = {}
    for text in given:
        name, equals, columns = text.partition("=")
        if not equals:
            raise InputError(f"{option} {text}: has no name; write NAME=A,B")
        if name in arrays:
            raise InputError(f"{option} {text}: {name} is there already; name each once")
        arrays[name] = names(option, columns)
    return arrays


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Texts by names, each written NAME=TEXT; InputError for what is written otherwise, or a name given twice."""
    texts: dict[str, str] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise InputError(f"{option} {text}: wanted a name and a text, such as sst=degC or sst=none")
        if name in texts:
            raise InputError(f"{option} {text}: {name} is there already; name each once")
        texts[name] = value
    return texts


def one(option: str, text: str, what: str) -> str | None:
    """A name, or none."""
    given = names(option, text)
    if len(given) > 1:
        raise InputError(f"{option} {text}: wanted one column of {what}, got {len(given)}; name one")
    return given[0] if given else None


class Style(StrEnum):
    """What lines on stderr are."""

    TEXT = "text"
    JSON = "json"


class _Objects:
    """Writes lines as objects; from several threads."""

    def __init__(self, stream: TextIO | None, command: str) -> None:
        self._stream, self._command, self._lock = stream, command, threading.Lock()

    def write(self, message: str, level: str, fields: dict[str, object]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": now, "level": level, "command": self._command, "message": message, **fields}
        with self._lock:
            print(json.dumps(line, default=str), file=self._stream or sys.stderr, flush=True)

    def pass_on(self, reader: int, end: str) -> None:
        """Lines that others wrote, libraries and worker processes, up to the line `end`."""
        with os.fdopen(reader, encoding="utf-8", errors="replace") as lines:
            for line in map(str.rstrip, lines):
                if line == end:
                    return
                if line:
                    self.write(redact(line), "warning", {"source": "stderr"})


_objects: _Objects | None = None


def say(message: str, level: str = "info", *, clock: bool = False, **fields: object) -> None:
    """A message to the user, on stderr. `fields` are for programs; `clock` puts the time before it for people."""
    message = printable(redact(message), lines=True)
    if _objects is not None:
        _objects.write(message.removeprefix("dorff: "), level, fields)
        return
    now = f"{datetime.now():%H:%M:%S} " if clock else ""
    print(f"{now}{message}", file=sys.stderr, flush=True)


def warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        say(f"dorff: {warning}", "warning")


@contextmanager
def logging(style: Style, command: str) -> Iterator[None]:
    """Say what is said in this style until the block ends, and what is logged."""
    global _objects
    log, handler = getLogger("dorff"), Handler()
    handler.emit = lambda record: say(record.getMessage(), record.levelname.lower())  # type: ignore[method-assign]
    log.addHandler(handler)
    log.setLevel(INFO)
    if style == Style.JSON:
        ours = sys.stderr is sys.__stderr__ or getattr(sys.stderr, "name", None) == 2  # by `unfailing`
        _objects = _of_process(command) if ours else _Objects(None, command)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(NOTSET)
        _objects = None


def unfailing(handle: int) -> TextIO:
    """Text to an open file, for messages: what cannot be written (a full disk, a reader that left) is not said."""
    raw = io.BufferedWriter(_Unfailing(handle, "wb", closefd=False))  # type: ignore[type-var]  # typeshed's is of FileIO itself
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)


class _Unfailing(io.FileIO):
    def write(self, content: bytes | memoryview) -> int:  # type: ignore[override]
        try:
            return super().write(content)
        except OSError:
            return memoryview(content).nbytes


def _of_process(command: str) -> _Objects:
    """What anybody else writes to stderr goes through a pipe and comes out as objects, as long as the process lives;
    our own lines go straight to it, so that none is lost with a process that is killed."""
    (reader, writer), end = os.pipe(), uuid.uuid4().hex  # some processes outlive us: no end of file would come
    real = unfailing(os.dup(2))
    objects = _Objects(real, command)
    passing = threading.Thread(target=objects.pass_on, args=(reader, end), daemon=True)
    passing.start()
    os.dup2(writer, 2)

    def finish() -> None:
        sys.stderr.flush()
        os.dup2(real.fileno(), 2)
        os.write(writer, f"\n{end}\n".encode())
        passing.join()

    atexit.register(finish)  # after those of libraries that are imported later
    return objects
