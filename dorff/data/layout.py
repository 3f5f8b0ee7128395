"""The arrays that dorff writes: shards and inner chunks (Zarr v3, sharding codec 1.0), metadata, a writer that
streams. Zarr's own writer holds a shard in memory several times, pads the last one to its full size and rewrites a
shard for each part of it that arrives; what it writes and what this writes are read alike.

The zarr.json files are written whole or not at all, and sealed. A chunk's checksum says nothing of the shape, the type
or the fill value it is read with, nor of which rows are committed. So what dorff writes into a zarr.json has a CRC32
too, the seal, in its attribute `dorff`; over what the content means, not over its bytes: other programs may write the
file again, and add attributes of their own."""

import json
import math
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

from dorff.errors import FAILING, NO_SPACE, DorffError, IncompleteError, InputError
from dorff.storage.files import rmtree, sync_directory
from dorff.storage.location import locate

Attributes: TypeAlias = dict[str, Any]  # of a Zarr group or array, as its JSON has them

METADATA: Final = ("zarr.json", ".zarray", ".zgroup")  # files that say what a folder is, of v3 and v2
SEAL: Final = "crc32"
OPTIONAL: Final = ("storage_transformers", "configuration", "dimension_names")  # of Zarr v3's keys
SHARD: Final = "0"  # a shard's file, in a folder of its number
ABSENT: Final = 2**64 - 1  # both fields of the index entry of a chunk that was not written
MAX_SHARD_BYTES: Final = 64 * 2**20
CHUNK_BYTES: Final = 2 * 2**20
MIN_SHARD_ROWS: Final = 1024
# Whole shards are the unit of work, so this is also how finely a small data set spreads over workers.
MAX_SHARD_ROWS: Final = 16384
MOST_SHARD_ROWS: Final = 2**24  # of those asked for: a shard and its index are in memory


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    attributes = dict(content["attributes"])
    attributes["dorff"] = {**attributes.get("dorff", {}), SEAL: _checksum(content)}
    return {**content, "attributes": attributes}


def has_seal(attributes: Mapping[str, Any]) -> bool:
    dorff = attributes.get("dorff")
    return isinstance(dorff, dict) and SEAL in dorff


def columns_of(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The columns' names that a group's attributes give its arrays."""
    columns = attributes.get("columns")
    return columns if isinstance(columns, dict) else {}


def lost_seal(attributes: Mapping[str, Any], name: str, *, sealed: bool) -> bool:
    """Whether only one of a group and its array `name` has a seal, `sealed` where the array has: the other's is lost.
    Arrays that others add to a group that dorff made need none."""
    return sealed != has_seal(attributes) and (sealed or name in columns_of(attributes))


def normal(value: Any) -> Any:
    """JSON as it is compared: 1.0 is 1, and what may be left out where it is empty is."""
    if isinstance(value, Mapping):
        return {key: normal(item) for key, item in value.items() if item or key not in OPTIONAL}
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _checksum(content: Mapping[str, Any]) -> int:
    """Of all but others' attributes, the copy of other nodes' metadata, and the seal itself."""
    attributes = content["attributes"]
    meant = {key: value for key, value in content.items() if key not in ("attributes", "consolidated_metadata")}
    dorff = {key: value for key, value in attributes.get("dorff", {}).items() if key != SEAL}
    meant["attributes"] = {"columns": attributes.get("columns"), "dorff": dorff}
    return zlib.crc32(json.dumps(normal(meant), sort_keys=True).encode())


def parse(text: bytes, where: object) -> dict[str, Any]:
    """The content of a metadata file; InputError where it is damaged, as far as its own bytes can tell."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: cannot be read as JSON ({error}); restore a copy or ingest again.") from error
    if not isinstance(content, dict):
        raise InputError(f"{where}: wanted a JSON object, got {type(content).__name__}; restore it or ingest again.")
    attributes = content.get("attributes")
    if isinstance(attributes, dict) and has_seal(attributes) and attributes["dorff"][SEAL] != _checksum(content):
        raise InputError(
            f"{where}: is damaged, its checksum (attributes.dorff.{SEAL}) is not that of its content; restore it from "
            "a copy or ingest again. Where another program changed or copied the rows on purpose, remove the "
            "attribute dorff of the group and of its arrays."
        )
    return content


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a metadata file, checked by `parse`.

    A file that seems damaged is read once more: bytes may have changed on their way
    over the network.
    """
    try:
        return parse(_read_text(path), path)
    except InputError:
        return parse(_read_text(path), path)


def _read_text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        if transient(error):
            raise
        raise InputError(f"{path}: cannot be read ({error.strerror}); restore it from a copy.") from error


def transient(error: Exception) -> bool:
    """Whether memory or a disk failed that may do better next time, so that nothing is known of the file."""
    disk = isinstance(error, OSError) and (error.errno in FAILING or isinstance(error, DorffError))
    return disk or isinstance(error, MemoryError)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file, atomically and durably."""
    with locate(path).writing(sync=True) as file:
        file.write(json.dumps(content, indent=2).encode())


def rewrite(path: Path, content: dict[str, Any]) -> None:
    """Replace a zarr.json that was read by one that says something else, with a new seal where it had one."""
    write_json(path, sealed(content) if has_seal(content["attributes"]) else content)


@contextmanager
def staging(store: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """An empty folder beside the store, ours alone, and what says that it is still: InputError where it is not any
    more, as it may be in a bucket. What a cut run left there, and of a zarr.json, is removed."""
    folder = locate(store.with_name(f".{store.name}.partial"))
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            is_there = held.enter_context(folder.locked(0, folder=True))
        except BlockingIOError as error:
            raise InputError(f"{store}: another run is writing it; wait for its end.") from error

        def check() -> None:
            if not is_there():
                raise InputError(f"{store}: another run has just written it; look at it, then run this one again.")

        check()
        for left in list(folder.iterdir()):
            rmtree(left) if left.is_dir() else left.unlink()
        for torn in (*store.glob(".zarr.json.*"), *store.glob("*/.zarr.json.*")):
            torn.unlink(missing_ok=True)
        try:
            # Whose lock is lost in a bucket writes on where nobody else does.
            yield folder if folder.folders else folder / uuid.uuid4().hex, check
        except FileNotFoundError:
            check()  # another run removed it
            raise
        finally:
            if is_there():  # not so once it has been renamed
                rmtree(folder, ignore_errors=True)


@contextmanager
def reported(store: Path) -> Iterator[None]:
    """Say in one sentence what the system refused: IncompleteError where the disk is full or fails."""
    try:
        yield
    except DorffError:  # of a storage that says it in full
        raise
    except OSError as error:
        full = error.errno in NO_SPACE
        if not full and not transient(error):
            problem = f"cannot be written ({error.strerror or error}); check its permissions."
            raise InputError(f"{store}: {problem}") from error
        problem = "no space left to write it" if full else f"the disk failed ({error})"
        remedy = "free some space" if full else "check the disk"
        raise IncompleteError(f"{store}: {problem}; what was begun is removed: {remedy} and run it again.") from error


@dataclass(frozen=True)
class ArrayLayout:
    """One array (rows, columns) of floats, or of codes (integers, -1 for none), in files of `shard_rows` rows, in inner
    chunks of `unit_rows`. Chunks are not compressed: the mantissas of measured float64 hardly shrink, decoding is then
    a copy, a chunk's bytes never depend on a library's version, and every inner chunk lies at a place known beforehand.
    Each chunk and each shard's index carry a CRC32C."""

    columns: int
    shard_rows: int
    unit_rows: int
    dtype: str = "float64"

    @property
    def stored(self) -> np.dtype[Any]:
        """The type on disk."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def fill(self) -> float:
        """What Zarr takes the place of rows that are not there."""
        return 0.0 if self.stored.kind == "f" else -1

    @property
    def units(self) -> int:
        return self.shard_rows // self.unit_rows

    def metadata(self, rows: int) -> dict[str, Any]:
        checked = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
        unit, grid = ({"chunk_shape": [rows_of, self.columns]} for rows_of in (self.unit_rows, self.shard_rows))
        sharding = {**unit, "codecs": checked, "index_codecs": checked, "index_location": "end"}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [rows, self.columns],
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": grid},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self.fill,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            "attributes": {},
            "storage_transformers": [],
        }


def shard_and_unit_rows(d: int, q: int, shard_rows: int | None = None) -> tuple[int, int]:
    """Rows of a shard and of an inner chunk for d inputs and q targets, whatever the number of rows. A shard is a
    power of two of rows, at most 64 MiB for inputs and targets together but at least 1024 and at most 16384 rows;
    `shard_rows` overrides it. A chunk has the divisor of the shard's rows nearest to 2 MiB."""
    row_bytes = 8 * (d + q)
    if shard_rows is None:
        fitting = 2 ** int(math.log2(max(1, MAX_SHARD_BYTES // row_bytes)))
        shard_rows = min(MAX_SHARD_ROWS, max(MIN_SHARD_ROWS, fitting))
    if not 1 <= shard_rows <= MOST_SHARD_ROWS:
        raise InputError(f"--shard-rows: wanted from 1 to {MOST_SHARD_ROWS:,} rows, got {shard_rows:,}; correct it.")
    wanted = max(1.0, CHUNK_BYTES / row_bytes)
    small = [k for k in range(1, math.isqrt(shard_rows) + 1) if shard_rows % k == 0]
    divisors = small + [shard_rows // k for k in small]
    return shard_rows, min(divisors, key=lambda k: (abs(math.log(k / wanted)), k))


def write_metadata(
    group: Path,
    arrays: Mapping[str, ArrayLayout],
    *,
    rows: int,
    first: int = 0,
    columns: Mapping[str, tuple[str, ...]],
    more: Mapping[str, Any] | None = None,
) -> None:
    """Commit the rows first..rows-1: write each array's metadata and, last, the group's; each atomically. Readers
    trust the group's `dorff.rows` over the arrays' shapes; `more` goes into its attribute `dorff` too."""
    for name, layout in arrays.items():
        if locate(group).folders:
            (group / name).mkdir(parents=True, exist_ok=True)
        # The dimensions' names are what xarray needs to open a store.
        named = {**layout.metadata(rows), "dimension_names": ["row", f"{name}_column"]}
        write_json(group / name / "zarr.json", sealed(named))
    names = {array: list(of_array) for array, of_array in columns.items()}
    attributes = {"columns": names, "dorff": {"first": first, "rows": rows, **(more or {})}}
    write_json(group / "zarr.json", sealed({"zarr_format": 3, "node_type": "group", "attributes": attributes}))


def commit(group: Path, changes: Mapping[str, Any]) -> None:
    """Change what the group's attribute `dorff` says, in one step; what others added to its metadata stays."""
    content = read_json(group / "zarr.json")
    content["attributes"]["dorff"] |= changes
    content.pop("consolidated_metadata", None)  # a copy of what changes
    rewrite(group / "zarr.json", content)


class ShardWriter(AbstractContextManager["ShardWriter"]):
    """Writes rows in order into the shards of one array, starting with row number `start`. Where that is inside a
    shard, the shard is new: its rows before are not there. Nothing is at its name, `SHARD`, until it is whole. A
    context manager: left without an error it writes the last, partly filled shard; with one it removes the shard that
    was being written. Batches of any size give the same files."""

    def __init__(self, array: Path, layout: ArrayLayout, *, start: int = 0) -> None:
        self.layout = layout
        self._array, self._shard = array, start // layout.shard_rows
        self._unit = np.full((layout.unit_rows, layout.columns), layout.fill, layout.stored)
        self._filled = start % layout.unit_rows
        self._index = np.full((layout.units, 2), ABSENT, "<u8")
        self._chunk = start % layout.shard_rows // layout.unit_rows
        self._file: BinaryIO | None = None
        self._writing = ExitStack()  # of the shard's file, which is then whole or not there

    def write(self, rows: npt.NDArray[Any]) -> None:
        """Add rows (k, columns)."""
        start = 0
        while start < len(rows):
            stop = min(len(rows), start + self.layout.unit_rows - self._filled)
            self._unit[self._filled : self._filled + stop - start] = rows[start:stop]
            self._filled += stop - start
            start = stop
            if self._filled == self.layout.unit_rows:
                self._write_chunk()

    def __exit__(self, *failure: Any) -> None:
        if failure[0] is not None:
            self._writing.__exit__(*failure)
            return
        if self._filled:
            self._write_chunk()
        if self._file is not None:
            self._finish_shard()
        if self._path.parent.parent.is_dir():
            sync_directory(self._path.parent.parent)

    @property
    def _path(self) -> Path:
        return self._array / "c" / str(self._shard) / SHARD

    def _write_chunk(self) -> None:
        if self._file is None:
            if locate(self._path).folders:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._writing.enter_context(locate(self._path).writing(sync=True))
        self._unit[self._filled :] = self.layout.fill  # past the end: so that bytes depend on rows alone
        size = _write_checked(self._file, self._unit)
        self._index[self._chunk] = (self._file.tell() - size, size)
        self._chunk += 1
        self._filled = 0
        if self._chunk == self.layout.units:
            self._finish_shard()

    def _finish_shard(self) -> None:
        assert self._file is not None
        _write_checked(self._file, self._index)
        self._file = None
        self._writing.close()
        self._shard, self._chunk = self._shard + 1, 0
        self._index[:] = ABSENT


def _write_checked(file: BinaryIO, array: npt.NDArray[Any]) -> int:
    content = array.view(np.uint8).reshape(-1)
    return file.write(content.data) + file.write(int(google_crc32c.value(content)).to_bytes(4, "little"))
