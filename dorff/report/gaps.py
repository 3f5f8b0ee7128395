"""Find the cells of a map that never had a value, such as land in a field of the sea."""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from dorff.kernels.scalar import FloatArray

GREY: Final = (0.85, 0.87, 0.89, 1.0)
NEIGHBOURS: Final = 4  # a place and the three nearest to it
LEAST_SHARE: Final = 0.4
STANDARD_ERRORS: Final = 4.0


@dataclass(frozen=True, eq=False)
class Gaps:
    """The places of a plane at which values are missing, and those at which they are not.

    Values may also be missing at random, as of a sensor that fails at times: then a
    place without a value says nothing of the places around it. A place without a value
    is therefore left out unless two of its three nearest neighbours have none either
    (edited nearest neighbours, Wilson 1972), and all are left out unless neighbours
    tell both kinds better than chance does.

    Attributes
    ----------
    empty, observed : ndarray of shape (n, 2)
        Coordinates in which a unit is as long along both axes of the map.
    """

    empty: FloatArray
    observed: FloatArray

    @classmethod
    def find(cls, places: FloatArray, observed: npt.NDArray[np.bool_]) -> Self | None:
        """Return the gaps among `places` (n, 2); None if values are missing at random."""
        n_observed, n_empty = int(observed.sum()), int((~observed).sum())
        if min(n_observed, n_empty) < NEIGHBOURS:
            return None

        _, nearest = cKDTree(places).query(places, k=NEIGHBOURS)
        observed_near = observed[nearest].sum(axis=1)
        confirmed = np.where(observed, observed_near >= NEIGHBOURS - 1, observed_near <= 1)

        # Of values missing at random, however many, the two shares add to 1.
        shares = confirmed[observed].mean() + confirmed[~observed].mean()
        error = 0.5 * np.sqrt(1 / n_observed + 1 / n_empty)
        if shares - 1 < max(LEAST_SHARE, STANDARD_ERRORS * error):
            return None
        return cls(places[confirmed & ~observed], places[observed])

    def cover(self, points: FloatArray) -> npt.NDArray[np.bool_]:
        """Return which points (n, 2) are nearer to a gap than to a place with a value."""
        to_empty, _ = cKDTree(self.empty).query(points)
        to_observed, _ = cKDTree(self.observed).query(points)
        return np.asarray(to_empty < to_observed)
