"""Finds and opens the groups and arrays of a Zarr store in a local folder, v2 or v3."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import zarr

from dorff.data.array_files import ArrayFiles, Fault, PlainShards, row_region
from dorff.data.codecs import bounded
from dorff.data.layout import METADATA, Attributes, columns_of, has_seal, lost_seal, read_json, transient
from dorff.data.packing import MOST_COLUMNS, NUMBER_KINDS, Packing
from dorff.data.units import ColumnAttributes, text_attributes
from dorff.errors import InputError, MissingArrayError
from dorff.spec.checks import nearest
from dorff.storage.location import locate

T = TypeVar("T")


class GridError(InputError):
    """An array has more dimensions than rows and columns; they have names."""


@dataclass(frozen=True)
class Node:
    """What a folder's metadata, the file `key`, says it is; where that cannot be told `problem` says why."""

    name: str
    path: Path
    is_array: bool = False
    problem: str = ""
    key: str = "zarr.json"


@dataclass(frozen=True)
class StoredArray:
    """An open array of numbers (or labels), 1-d or 2-d: its files, how it is packed, and a short way to read it."""

    files: ArrayFiles
    packing: Packing
    plain: PlainShards | None
    sealed: bool = False
    dims: tuple[str, ...] = ()  # names of its dimensions, "" where one has none

    @property
    def array(self) -> zarr.Array[Any]:
        return self.files.array

    @property
    def rows(self) -> int:
        return self.files.shape[0]

    @property
    def columns(self) -> int:
        """Its width; 1 for a 1-d array."""
        return 1 if len(self.files.shape) == 1 else self.files.shape[1]

    def read(self, start: int, stop: int, out: npt.NDArray[Any], *, step: int) -> Fault | None:
        """Return what `_read_once` does; what seems damaged is read once more, for bytes may have changed on their
        way over the network."""
        fault = self._read_once(start, stop, out, step=step)
        if fault is not None and fault.kind == "damaged":
            fault = self._read_once(start, stop, out, step=step)
        return fault

    def _read_once(self, start: int, stop: int, out: npt.NDArray[Any], *, step: int) -> Fault | None:
        """Write rows start..stop-1, decoded, into out (stop - start, columns), cut at the multiples of `step`. Returns
        the first chunk that is missing or damaged, or None; no chunk that is absent is read as zeros."""
        if start == stop:
            return None
        if self.plain is not None:
            return self.plain.read(start, stop, self.packing, out)
        for a, b in pairwise([start, *range((start // step + 1) * step, stop, step), stop]):
            rows = self.files.load(row_region(self.files.shape, a, b))
            if isinstance(rows, Fault):
                return rows
            out[a - start : b - start] = self.packing.decode(rows).reshape(b - a, -1)
        return None

    def values(self, start: int, stop: int, dtype: npt.DTypeLike, remedy: str) -> npt.NDArray[Any]:
        """Rows start..stop-1 as `read` gives them, (stop - start, columns); InputError where it gives a fault."""
        values = np.empty((stop - start, self.columns), dtype)
        unit = max(1, self.files.inner[0])  # whole chunks, some at a time: what decoding needs beside stays small
        if fault := self.read(start, stop, values, step=unit * max(1, 2**14 // unit)):
            raise InputError(f"{self.files.directory.parent}: {fault}; restore it from a copy{remedy}{fault.hint}.")
        return values


def node(path: Path, name: str = "") -> Node:
    """Read what a folder is from its metadata file."""
    if (key := next((key for key in METADATA if (path / key).is_file()), None)) is None:
        return Node(name, path, problem="missing")
    kind = None
    with suppress(InputError):  # it is damaged
        kind = {".zarray": "array", ".zgroup": "group"}.get(key, read_json(path / key).get("node_type"))
    return Node(name, path, kind == "array", "" if kind in ("array", "group") else "damaged", key)


def walk(path: Path, name: str = "") -> Iterator[Node]:
    """The node at `path` and all below it, each before those below it."""
    here = node(path, name)
    yield here
    if here.is_array:
        return
    for entry in sorted(path.iterdir()):
        # In a folder that has lost its metadata the chunk files of an array are not nodes of their own.
        known = not here.problem or any((entry / key).is_file() for key in METADATA)
        if entry.is_dir() and not entry.name.startswith(".") and known:
            yield from walk(entry, f"{name}/{entry.name}".lstrip("/"))


def group_attributes(path: Path) -> Attributes:
    """The attributes of the group at `path`; refuses what is not a Zarr group in a local folder."""
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder; check the path.")
    if (here := node(path)).problem == "missing":
        raise InputError(f"{path}: is not a Zarr store (no {' or '.join(METADATA)} in it); use `dorff ingest`.")
    content = read_json(path / here.key)  # says what is damaged
    if here.problem or here.is_array:
        what = "its metadata is damaged" if here.problem else "it is a single Zarr array, not a group"
        raise InputError(f"{path}: wanted a Zarr group, but {what}; give the group that holds the arrays.")
    if here.key != "zarr.json":  # of Zarr v2
        content = {"attributes": read_json(path / ".zattrs")} if (path / ".zattrs").is_file() else {}
    if not isinstance(attributes := content.get("attributes", {}), dict):
        raise InputError(f"{path}: its attributes are damaged; restore its metadata from a copy or ingest again.")
    return attributes


def committed(path: Path, attributes: Attributes) -> range | None:
    """The rows that dorff committed to this group, without those that `trim` took away; None in a store of others."""
    if "dorff" not in attributes:
        return None
    ours = attributes["dorff"] if isinstance(attributes["dorff"], dict) else {}
    rows, first = ours.get("rows"), ours.get("first", 0)
    if not isinstance(rows, int) or rows < 0:
        raise InputError(f"{path}: its attribute dorff.rows is not a number of rows; restore it from a copy.")
    if not isinstance(first, int) or not 0 <= first <= rows:
        raise InputError(f"{path}: its attribute dorff.first is no row's number; restore its metadata from a copy.")
    return range(first, rows)


def ingested(path: Path, attributes: Attributes, remedy: str) -> tuple[tuple[int, int], Mapping[str, Any]]:
    """First row of a store that ingest made, the one past its last, and its arrays' columns; InputError of others."""
    rows, columns = committed(path, attributes), attributes.get("columns")
    if rows is None or not isinstance(columns, dict):
        raise InputError(f"{path}: was not made by `dorff ingest`, {remedy}")
    return (rows.start, rows.stop), columns


def kept_of(attributes: Attributes, name: str, empty: T) -> T:
    """What ingest keeps of this name beside the rows; `empty` where there is none, or a thing of another kind."""
    own = attributes.get("dorff")
    kept = own.get(name) if isinstance(own, dict) else None
    return kept if isinstance(kept, type(empty)) else empty


def column_attributes(attributes: Attributes, array: str, stored: "StoredArray") -> ColumnAttributes:
    """Return the CF attributes of an array's columns: those that ingest kept, else the array's own."""
    columns = stored_columns(attributes, array, stored.columns)
    if array in columns_of(attributes):
        kept = kept_of(attributes, "column_attributes", ColumnAttributes())
        return {column: text_attributes(kept[column]) for column in columns if column in kept}
    own = text_attributes(dict(stored.array.attrs))
    return {column: own for column in columns if own}


def stored_columns(attributes: Attributes, name: str, width: int) -> tuple[str, ...]:
    """The columns' names of an array: those kept by ingest, else made from the array's name."""
    kept = columns_of(attributes).get(name)
    if isinstance(kept, list) and len(kept) == width:
        return tuple(str(n) for n in kept)
    return (name,) if width == 1 else tuple(f"{name}{j}" for j in range(width))


def open_array(path: Path, name: str, *, text: bool = False) -> StoredArray:
    """The array `name` of the group at `path`; refuses all but 1-d and 2-d arrays of numbers or, `text`, labels."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise InputError(f"{path}: {name!r} is no name of an array in it; give one such as x, or group/x.")
    there = ((k, next(locate(path / name).stats([k]))) for k in METADATA)
    key, status = next(((k, one) for k, one in there if one is not None), ("", None))
    if status is None or key == ".zgroup":
        raise _no_array(path, name)
    return _open(path, name, key, *status, NUMBER_KINDS + "SUT" * text)


def has_array(path: Path, name: str) -> bool:
    return any((path / name / key).is_file() for key in METADATA)


def _no_array(path: Path, name: str) -> InputError:
    there = [n.name for n in walk(path) if n.is_array]
    held = ", ".join(there[:20]) if there else "none"
    of = [array for array, names in columns_of(group_attributes(path)).items() if name in names]
    hint = f" {name!r} is a column of array {of[0]!r}, which is taken as a whole." if of else ""
    near = nearest(name, there)
    return MissingArrayError(f"{path}: has no array {name!r}; {near}the arrays in it are: {held}.{hint}")


def check_seals(path: Path, attributes: Attributes, arrays: Mapping[str, StoredArray]) -> None:
    """InputError where of a group and one of its arrays only one has dorff's checksum in its metadata."""
    for name, stored in arrays.items():
        if lost_seal(attributes, name, sealed=stored.sealed):
            lost, other = (path, path / name) if stored.sealed else (path / name, path)
            raise InputError(
                f"{lost / 'zarr.json'}: is damaged, it has no checksum (attributes.dorff.crc32) as {other} has; "
                "restore it from a copy or ingest again. Where another program wrote it on purpose, remove the "
                "attribute dorff of the group and of its arrays."
            )


@lru_cache(maxsize=128)  # a process's open arrays; metadata that changed (an append, another store) opens anew
def _open(path: Path, name: str, key: str, size: int, mtime_ns: int, kinds: str) -> StoredArray:
    what = f"array {name} of {path}"
    if read_json(path / name / key).get("node_type", "array") == "group":
        raise _no_array(path, name)
    array = open_zarr(path / name, what, v3=key == "zarr.json")
    dims = dimension_names(path / name, key, array)
    if array.ndim not in (1, 2):
        problem = f"{what}: wanted 1 or 2 dimensions (rows, columns), got shape {array.shape}"
        if dims and all(dims):
            raise GridError(problem)
        raise InputError(f"{problem}; reshape it.")
    if 0 in (*array.chunks, *(array.shards or ())):
        raise InputError(f"{what}: its metadata cannot be understood (chunks of no rows); write it again.")
    if array.ndim == 2 and array.shape[1] > MOST_COLUMNS:
        raise InputError(f"{what}: wanted at most {MOST_COLUMNS} columns, claims {array.shape[1]}; write it again.")
    dtype = np.dtype(array.dtype)
    if dtype.kind not in kinds:
        wanted, remedy = "real numbers", "convert it to numbers first"
        if kinds != NUMBER_KINDS:
            wanted, remedy = "labels", "store whole numbers, booleans or text"
        raise InputError(f"{what}: wanted {wanted}, got type {array.dtype}; {remedy}.")
    files, packing = ArrayFiles(array, path / name, name), Packing()
    if dtype.kind in NUMBER_KINDS:  # text is not packed
        packing = Packing.of(stored_attributes(key, array), dtype, what)
    return StoredArray(files, packing, PlainShards.of(files), has_seal(dict(array.attrs)), dims)


def stored_attributes(key: str, array: zarr.Array[Any]) -> dict[str, Any]:
    """Return an array's attributes, by which its numbers are packed; `key` is its metadata file."""
    attributes = dict(array.attrs)
    if key == ".zarray" and "_ARRAY_DIMENSIONS" in attributes:
        # xarray keeps a v2 array's _FillValue in Zarr's own fill value.
        return {"_FillValue": array.fill_value} | attributes
    return attributes


def dimension_names(directory: Path, key: str, array: zarr.Array[Any]) -> tuple[str, ...]:
    """Return the names of an array's dimensions, "" where one has none."""
    names = read_json(directory / key).get("dimension_names") if key == "zarr.json" else None
    names = names or array.attrs.get("_ARRAY_DIMENSIONS")
    if not isinstance(names, list) or len(names) != array.ndim:
        return ("",) * array.ndim
    return tuple(name if isinstance(name, str) else "" for name in names)


def _open_once(directory: Path, *, v3: bool) -> zarr.Array[Any]:
    return zarr.open_array(locate(directory).zarr(read_only=True), mode="r", zarr_format=3 if v3 else 2)


def open_zarr(directory: Path, what: str, *, v3: bool) -> zarr.Array[Any]:
    """Open a Zarr array; InputError where its metadata is damaged, or cannot be understood."""
    if v3:
        read_json(directory / "zarr.json")
    try:
        try:
            array = _open_once(directory, v3=v3)
        except Exception as error:
            if transient(error):
                raise
            array = _open_once(directory, v3=v3)  # zarr reads the metadata again, which may be damaged on its way
    except Exception as error:
        if transient(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{what}: its metadata cannot be understood ({reason}); restore or rewrite it.") from error
    return bounded(array, what)
