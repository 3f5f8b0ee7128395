"""What a graph on disk is: entries (i, j, w), read in runs."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import ClassVar, Final, final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.storage.location import locate

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Edges = tuple[IntArray, IntArray, FloatArray]

RUN: Final = 2**20  # entries read at a time
EDGES: Final = ("i", "j", "w")
MATRIX: Final = ("indptr", "indices", "data")


class EdgeSource(ABC):
    """The entries (i, j, w) of a graph on disk: names and numbers only, small and picklable.

    `kind` "edges" is a list: each undirected edge once, or in both directions with one weight. "csr" is a matrix, with
    both. `n` is the number of nodes where the source says it, `count` that of the entries. Nothing is said of the
    values: whether nodes are in range and weights right is for who knows the rows (`dorff.graphs`).
    """

    kind: ClassVar[str]
    path: str
    n: int | None
    count: int

    @final
    def read(self, start: int, stop: int) -> Edges:
        """Entries start..stop-1: i and j int64, w float64, 1 where none is stored.

        Raises:
            InputError: entries it has not; a file, chunk or page that is missing or damaged, as far as checksums tell.
        """
        if not 0 <= start <= stop <= self.count:
            raise InputError(
                f"{self.path}: wanted entries between 0 and {self.count}, got {start} to {stop}; open it again."
            )
        return self._read(start, stop)

    def degrees(self, start: int, stop: int) -> IntArray:
        """How many entries nodes start..stop-1 are an end of, (stop - start,); of a matrix, which has an edge at both
        its ends, how many begin at them. Ends that are no such node are not counted. InputError as `read`."""
        found = np.zeros(stop - start, np.int64)
        for at in range(0, self.count, RUN):
            for ends in self.read(at, min(at + RUN, self.count))[:2]:
                np.add.at(found, ends[(ends >= start) & (ends < stop)] - start, 1)
        return found

    def stamp(self) -> str:
        """A fingerprint of its files: their names, sizes and times of change."""
        root, digest = locate(self.path), hashlib.blake2b(digest_size=16)
        files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
        for file in files:
            status = file.stat()
            digest.update(f"{file.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    @abstractmethod
    def _read(self, start: int, stop: int) -> Edges: ...
