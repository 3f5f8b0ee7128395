"""Bands that hold what they say: factors on standard deviations, from held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError

FloatArray = npt.NDArray[np.float64]

#: Levels whose factors are kept: steps of half a percent, and the tail.
LEVELS: Final = (*(step / 200 for step in range(1, 200)), 0.999, 0.9999)


@final
@dataclass(frozen=True, eq=False)
class Conformal:
    """Split-conformal factors of normalised residuals |y - C f| / std (Lei, G'Sell, Rinaldo, Tibshirani & Wasserman
    2018, section 5.2, std being the posterior's with noise), each target for itself.

    `factors` (L, q) belong to LEVELS: the ceil((n + 1) level)-th smallest of n scores, infinite where that is more
    than n. Where a new row and the held-out ones are exchangeable, |y - C f| <= factor std holds with probability
    `level` at least and level + 1/(n + 1) at most (Vovk, Gammerman & Shafer 2005), on average over rows. `rows` (q,)
    counts each target's scores.

    Departures, so that the bounds hold about and not by proof: the factors are used with the fit to all rows,
    held-out ones too, and not with the fit they come from; the ridge, the kernel, the number of features, the
    length-scales, y0 and the inputs' scales of that fit were chosen with the held-out rows in; and where folds are
    dealt by leaves, the held-out rows are whole leaves, exchangeable with new rows only where the rows' order says
    nothing (see `fit.held`).
    """

    factors: FloatArray
    rows: tuple[int, ...]

    @classmethod
    def fit(cls, scores: npt.ArrayLike) -> Self:
        """From scores (n, q) of rows that the fit has not seen; NaN where a row misses the target."""
        scored = np.asarray(scores, dtype=np.float64)
        if scored.ndim != 2 or scored.shape[1] < 1 or np.any(scored < 0):
            raise InputError(f"scores must be numbers of 0 or more, (rows, targets); got shape {scored.shape}")
        counts = np.count_nonzero(~np.isnan(scored), axis=0)
        ordered = np.vstack([np.sort(scored, axis=0), np.full(scored.shape[1], np.inf)])  # NaN sorts last
        # 0.95 * 20 is 19.000000000000004, which is 19.
        ranks = np.ceil(np.outer(LEVELS, counts + 1) * (1 - 1e-12)).astype(np.int64)
        places = np.where(ranks > counts, len(scored), ranks - 1)
        return cls(np.take_along_axis(ordered, places, axis=0), tuple(counts.tolist()))

    def factor(self, level: float) -> FloatArray:
        """(q,): the factors for a level between 0 and 1, those of the next kept level at or above it.

        InputError where too few rows stand behind it: it takes level / (1 - level) of them at least.
        """
        check_level(level)
        at = int(np.searchsorted(LEVELS, level - 1e-12))
        if at == len(LEVELS) or not np.isfinite(self.factors[at]).all():
            raise InputError(
                f"level {level:g}: {min(self.rows)} held-out rows, and levels up to {LEVELS[-1]:g}, cannot say; ask "
                f"for {self.highest:g} or less, or fit to more rows"
            )
        return np.asarray(self.factors[at])

    @property
    def highest(self) -> float:
        """The highest level that every target has enough rows for; 0 where there is none."""
        return max(
            (level for level, row in zip(LEVELS, self.factors, strict=True) if np.isfinite(row).all()), default=0
        )

    def config(self) -> dict[str, Sequence[object]]:
        """As JSON, for a model's file; infinite factors are null."""
        factors = [[value if np.isfinite(value) else None for value in row] for row in self.factors.tolist()]
        return {"levels": list(LEVELS), "factors": factors, "rows": list(self.rows)}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From `config()`; InputError where it is not one."""
        try:
            rows = tuple(int(count) for count in config["rows"])
            listed = [[np.inf if value is None else float(value) for value in row] for row in config["factors"]]
            factors = np.array(listed).reshape(len(LEVELS), len(rows))
            if tuple(config["levels"]) != LEVELS or np.isnan(factors).any() or (factors < 0).any() or min(rows) < 0:
                raise ValueError("other levels, or factors or rows below 0")
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise InputError(f"conformal factors need levels, factors and rows ({error}); fit again") from None
        return cls(factors, rows)


def scores(targets: npt.ArrayLike, values: npt.ArrayLike, std: npt.ArrayLike) -> FloatArray:
    """|y - C f| / std (n, q) for targets y, values C f and standard deviations with noise, (n, q) each.

    A residual of 0 scores 0, any other infinity where std is 0 (no noise was found); NaN where the target is missing.
    """
    y, f, deviation = (np.asarray(part, dtype=np.float64) for part in (targets, values, std))
    error = np.abs(y - f)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / deviation)


def check_level(level: float) -> None:
    """InputError for a level that is not between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise InputError(f"a band's level must be between 0 and 1, such as 0.95, not {level!r}")
