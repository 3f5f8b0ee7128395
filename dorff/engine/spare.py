"""Memory that a worker process keeps from one task to the next, and gives back when the run is over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

Square = npt.NDArray[np.float64]
_spare: Final[list[Square]] = []  # what this process's last leaf was summed in, for its next one


def spare_square(width: int) -> Square | None:
    """A square (w, w) that this process's last sums left, where there is one; whatever is in it."""
    try:
        square = _spare.pop()
    except IndexError:  # none, or another thread's by now
        return None
    return square if len(square) == width else None


def leave_spare(squares: Iterable[Square | None]) -> None:
    """Leave the squares of sums that are not used any more to this process's next ones."""
    _spare[:] = [square for square in squares if square is not None]


def forget_spare() -> None:
    """Give back the memory that this process keeps between its leaves; engines call it when a run is over."""
    _spare.clear()
