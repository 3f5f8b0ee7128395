"""Reads a Zarr group in a local folder, v2 or v3, as a source of rows: grids as xarray writes them, and tables."""

import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np

from dorff.data.array_files import ArrayFiles, Fault, Region
from dorff.data.grids import Variable
from dorff.data.nodes import Node, dimension_names, group_attributes, open_zarr, stored_attributes, walk
from dorff.data.packing import NUMBER_KINDS, Array
from dorff.data.readers import Digest, SourceBlock
from dorff.data.variables import KEPT_BYTES, Bounds, GriddedReader
from dorff.errors import InputError


class ZarrReader(GriddedReader):
    """The arrays of a Zarr group, named "group/array" in a group below.

    Dimensions have the names that Zarr v3 (`dimension_names`) or xarray
    (`_ARRAY_DIMENSIONS`) keep. Chunks that are not there are refused, unless
    `fill_absent` says that they hold the array's fill value.
    """

    def __init__(self, path: str, asked: Collection[str] = (), *, fill_absent: bool = False) -> None:
        if "dorff" in group_attributes(Path(path)):
            raise InputError(f"{path}: is a data set of `dorff ingest`; name it as data.store of a job, as it is.")
        self.path = path
        self._files: dict[str, ArrayFiles] = {}
        variables = {}
        for node in walk(Path(path)):
            if not node.is_array and not (node.problem and node.name in asked):
                continue
            try:
                array = open_zarr(node.path, f"array {node.name} of {path}", v3=node.key == "zarr.json")
                files = ArrayFiles(array, node.path, node.name, fill_absent=fill_absent)
            except InputError:
                if node.name in asked:
                    raise
                continue  # it is no concern of those that are asked for
            self._files[node.name] = files
            variables[node.name] = _variable(node, files)
        self._digests: dict[str, Digest] = {}  # of what was read of each array
        super().__init__(path, "Zarr", variables, asked)

    def load(self, name: str, bounds: Bounds) -> Array:
        files = self._files[name]
        region = tuple((part.start, part.stop) for part in bounds)
        first, *further = _parts(region, files)
        values = self._read_part(files, first)
        if not further:
            return values
        out = np.empty([stop - start for start, stop in region], values.dtype)
        for part in (first, *further):
            values = values if part == first else self._read_part(files, part)
            pairs = zip(part, region, strict=True)
            out[tuple(slice(low - start, high - start) for (low, high), (start, _) in pairs)] = values
        return out

    def _read_part(self, files: ArrayFiles, part: Region) -> Array:
        values = files.load(part)
        if not isinstance(values, Fault):
            return values
        remedy = "restore it from a copy"
        if values.kind == "missing":
            remedy += ", or give --absent-chunks fill if its writer leaves out chunks that hold the fill value"
        raise InputError(f"{self.path}: {values}; {remedy}.")

    def _read(self, columns: Sequence[str], labels: Sequence[str]) -> Iterator[SourceBlock]:
        self._digests = {}
        yield from super()._read(columns, labels)

    def _follow(self, arrays: Sequence[str], parts: Sequence[Array], count: int) -> None:
        for place, (name, part) in enumerate(zip(arrays, parts, strict=True)):
            digest = self._digests.setdefault(f"{place} {name}", Digest())
            if part.dtype.kind in NUMBER_KINDS:
                digest.update(np.ascontiguousarray(part).tobytes())
            else:
                digest.update("\0".join(map(str, part.ravel().tolist())).encode() + b"\0")

    def content(self) -> str:
        """Name the values that were read, whatever chunks they lie in."""
        whole = Digest()
        for name, digest in self._digests.items():
            whole.update(f"{name} {digest}\n".encode())
        for name, shift in self._shifts.items():
            whole.update(f"{name} is counted from {shift.count}\n".encode())
        return str(whole)


def _parts(region: Region, files: ArrayFiles) -> Iterator[Region]:
    """Cut a region at chunks, so that those decoded together take no more than `KEPT_BYTES`, or are one."""
    counts = [-(-stop // chunk) - start // chunk for (start, stop), chunk in zip(region, files.inner, strict=True)]
    chunk_bytes = math.prod(files.inner) * files.array.dtype.itemsize
    if math.prod(counts) * chunk_bytes <= KEPT_BYTES or max(counts, default=1) <= 1:
        yield region
        return
    axis = int(np.argmax(counts))
    (start, stop), chunk = region[axis], files.inner[axis]
    middle = (start // chunk + counts[axis] // 2) * chunk
    yield from _parts((*region[:axis], (start, middle), *region[axis + 1 :]), files)
    yield from _parts((*region[:axis], (middle, stop), *region[axis + 1 :]), files)


def _variable(node: Node, files: ArrayFiles) -> Variable:
    dtype, group = np.dtype(files.array.dtype), node.name.rpartition("/")[0]
    dims = dimension_names(node.path, node.key, files.array)
    return Variable(
        shape=files.shape,
        stored=np.dtype(str) if dtype.kind in "TO" else dtype,
        attributes=stored_attributes(node.key, files.array),
        dims=tuple(f"{group}/{dim}".lstrip("/") if dim else "" for dim in dims),
        chunks=files.inner,
    )
