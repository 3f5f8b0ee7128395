"""Entries in temporary files: more of them than memory holds."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Entries = npt.NDArray[Any]
"""A structured array (n,)."""


class EntryFiles(AbstractContextManager["EntryFiles"]):
    """Entries in `count` temporary files, which are removed when it is closed.

    `sizes` are the numbers of entries of each file; they are read in the order in which
    they were added.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        dtype: npt.DTypeLike,
        count: int,
    ) -> None:
        self.sizes = [0] * count
        self._dtype = np.dtype(dtype)
        self._paths = [folder / f"{name}-{number}" for number in range(count)]
        # Unbuffered, so that an error comes from the write that causes it.
        self._files = [FileIO(path, "w+") for path in self._paths]

    def __exit__(self, *failure: object) -> None:
        self.close()

    def add(self, files: npt.NDArray[np.integer[Any]], entries: Entries) -> None:
        """Add each entry to the file of its number in `files`, (n,)."""
        if len(self.sizes) == 1:
            self._write(0, entries)
            return
        order = np.argsort(files, kind="stable")
        begins = np.searchsorted(files[order], np.arange(1, len(self.sizes)))
        for file, part in enumerate(np.split(entries[order], begins)):
            self._write(file, part)

    def read(
        self,
        file: int,
        block: int,
        start: int = 0,
        stop: int | None = None,
    ) -> Iterator[Entries]:
        """Yield the entries start..stop-1 of a file, at most `block` at a time."""
        end = self.sizes[file] if stop is None else stop
        for first in range(start, end, block):
            # Other readers of the file may have moved its position.
            self._files[file].seek(first * self._dtype.itemsize)
            yield np.fromfile(self._files[file], self._dtype, min(block, end - first))

    def close(self) -> None:
        """Remove the files."""
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            path.unlink(missing_ok=True)

    def _write(self, file: int, entries: Entries) -> None:
        content = memoryview(entries.tobytes())
        self._files[file].seek(0, 2)
        while content:  # NumPy's own writing does not say that the disk is full
            content = content[self._files[file].write(content) :]
        self.sizes[file] += len(entries)
