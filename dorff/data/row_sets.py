"""Sets of row numbers that memory need not hold."""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from dorff.data.entry_files import EntryFiles
from dorff.data.row_runs import Runs, mark_rows

RowNumbers = npt.NDArray[np.int64]

WINDOW_ROWS: Final = 2**22
"""Rows whose marks are in memory at a time."""

MAX_WINDOWS: Final = 64
"""Windows, each of which is a temporary file."""


class RowSet:
    """A set of the rows 0..rows-1, which are added in any order, and become runs.

    Row numbers lie in temporary files in `folder`, one for each window of
    `window_rows` rows, or more if there were more than `MAX_WINDOWS`.
    """

    def __init__(
        self,
        folder: Path,
        rows: int,
        *,
        window_rows: int = WINDOW_ROWS,
    ) -> None:
        self._rows = rows
        self._window = max(window_rows, -(-rows // MAX_WINDOWS))
        count = max(1, -(-rows // self._window))
        self._files = EntryFiles(folder, "rows", np.int64, count)

    def close(self) -> None:
        """Remove the files."""
        self._files.close()

    def add(self, numbers: RowNumbers) -> None:
        """Add rows by their numbers."""
        self._files.add(numbers // self._window, numbers)

    def to_runs(self, further: Runs, most: int) -> Runs | None:
        """Return its rows and those of `further` as runs; None of more than `most`."""
        runs: list[tuple[int, int]] = []
        for file in range(len(self._files.sizes)):
            first = file * self._window
            marked = mark_rows(further, first, min(first + self._window, self._rows))
            for numbers in self._files.read(file, self._window):
                marked[numbers - first] = True
            ends = first + np.flatnonzero(np.diff(marked, prepend=False, append=False))
            # One more is allowed for now, which may join the last run before.
            if len(runs) + len(ends) // 2 > most + 1:
                return None
            for start, stop in ends.reshape(-1, 2).tolist():
                if runs and start == runs[-1][1]:
                    start = runs.pop()[0]
                runs.append((start, stop))
        return tuple(runs) if len(runs) <= most else None
