"""What held-out rows say of a model: a temperature for probabilities, factors on deviations, and a kept sample."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from dorff.errors import InputError
from dorff.features.base import check_array
from dorff.spec.registry import lazily

brentq = lazily("scipy.optimize", "brentq")
log_softmax = lazily("scipy.special", "log_softmax")
softmax = lazily("scipy.special", "softmax")

FloatArray = npt.NDArray[np.float64]
Codes = npt.NDArray[np.integer[Any]]
AnyArray = npt.NDArray[Any]

#: Held-out rows at most: the temperature's own error is then below 1 in 300, coverage's below 0.0014.
CALIBRATION_ROWS: Final = 2**17
MOST_NUMBERS: Final = 2**22  # decision values or scores held, and a few times as many bytes of copies
FLATTEST: Final = 1e-3  # least slope, over the spread of the decision values: all but equal probabilities


@dataclass(frozen=True)
class Calibration:
    """p = softmax(slope * f) for decision values f: temperature scaling, 1 / slope the temperature (Guo, Pleiss, Sun &
    Weinberger 2017, section 4.2); with two classes Platt's (1999) sigmoid without its offset. `slope` is above zero,
    so that the likeliest class is always the one of the largest decision value. Offsets for each class (Guo's vector
    scaling) could change it, and did not pay: on held-out LETTER they lowered the log loss from 0.246 to 0.238 with
    16000 rows but raised it from 0.491 to 0.508 with 3000; on USPS from 0.265 to 0.271. `rows` says how many held-out
    rows the slope was found on, 0 where it was given."""

    slope: float
    rows: int = 0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.slope) and self.slope > 0):
            raise InputError(f"slope of a calibration must be a number above 0, not {self.slope!r}")

    @classmethod
    def fit(cls, decisions: npt.ArrayLike, codes: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Self:
        """Most likely slope for decision values (n, K) of rows that the decisions were not fitted to. `codes` (n,) are
        the rows' classes 0..K-1, `weights` (n,) how much a row counts (not negative). Where all rows are on the right
        side no slope is steep enough; so the likelihood has one more row, whose class is any of the K with equal chance
        (the remedy of Platt 1999, section 2.2, with one row in place of his K). The most likely slope is then finite,
        and the bias, of order 1/n, is below the slope's own error. n is Kish's effective number of rows, (sum w)^2 /
        sum w^2. Raises InputError: arrays that do not fit together, no row, a decision value that is not finite."""
        f, labels, w = _checked(decisions, codes, weights)
        n = len(f)
        # Probabilities do not see what a row's decision values have in common.
        f = f - f.mean(axis=1, keepdims=True)
        scale = float(np.abs(f).max(initial=0.0))
        if scale == 0.0:
            return cls(1.0, n)  # nothing to tell classes by: any slope gives the same probabilities
        f /= scale
        spread = np.sqrt(float(w @ np.mean(f**2, axis=1)))
        if spread == 0.0:  # underflow, or weight only where nothing tells classes apart
            return cls(1.0, n)
        doubt = 1.0 / (1.0 + 1.0 / float(w @ w))
        target = (1.0 - doubt) * float(w @ f[np.arange(n), labels])  # the doubtful row's mean decision value is 0

        def excess(log_slope: float) -> float:
            """Derivative of the mean negative log-likelihood by the slope; it grows with the slope."""
            return float(w @ np.einsum("nk,nk->n", softmax(np.exp(log_slope) * f, axis=1), f)) - target

        low = np.log(FLATTEST / spread)
        high = low + 10.0
        if excess(low) >= 0.0:  # decisions no better than chance
            return cls(float(np.exp(low)) / scale, n)
        # At a steep slope `expected` is each row's largest value, which is above any target mixed with doubt.
        while excess(high) < 0.0 and high < 500.0:
            high += 5.0
        log_slope = brentq(excess, low, high, xtol=1e-9) if excess(high) >= 0.0 else high
        return cls(float(np.exp(log_slope)) / scale, n)

    def probabilities(self, decisions: npt.ArrayLike) -> FloatArray:
        """(n, K), rows of sum 1, for decision values (n, K)."""
        return np.asarray(softmax(self.slope * np.asarray(decisions, dtype=np.float64), axis=1))

    def log_probabilities(self, decisions: npt.ArrayLike) -> FloatArray:
        """(n, K): logarithms of the probabilities, finite where those underflow."""
        return np.asarray(log_softmax(self.slope * np.asarray(decisions, dtype=np.float64), axis=1))

    def config(self) -> dict[str, float]:
        """As JSON numbers, for a model's file."""
        return {"slope": self.slope, "rows": self.rows}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From `config()`; InputError where it is not one."""
        try:
            return cls(float(config["slope"]), int(config["rows"]))
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise InputError(f"a calibration needs 'slope' and 'rows', got {config!r} ({error})") from None


def most_rows(outputs: int) -> int:
    """The most held-out rows to calibrate on, so that memory is bounded for any number of classes or targets."""
    return min(CALIBRATION_ROWS, max(256, MOST_NUMBERS // outputs))


def log_loss(log_probabilities: npt.ArrayLike, codes: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> float:
    """Mean of -log p of the true class, for log probabilities (n, K) and classes 0..K-1 (n,)."""
    logs, labels, w = _checked(log_probabilities, codes, weights)
    return float(-(w @ logs[np.arange(len(logs)), labels]))


def _checked(
    values: npt.ArrayLike, codes: npt.ArrayLike, weights: npt.ArrayLike | None
) -> tuple[FloatArray, Codes, FloatArray]:
    """Values (n, K), classes (n,), and weights (n,) of sum 1."""
    f, labels = np.asarray(values, dtype=np.float64), np.asarray(codes)
    if f.ndim != 2 or len(f) == 0 or f.shape[1] < 2 or not np.isfinite(f).all():
        raise InputError(f"decision values or probabilities must be finite, (rows, classes), got shape {f.shape}")
    whole = labels.shape == f.shape[:1] and labels.dtype.kind in "iu"
    if not whole or not ((labels >= 0) & (labels < f.shape[1])).all():
        raise InputError(f"codes must be whole numbers from 0 to {f.shape[1] - 1}, one a row, for {len(f)} rows")
    w = np.ones(len(f)) if weights is None else np.asarray(weights, dtype=np.float64)
    total = float(w.sum()) if w.shape == labels.shape and np.isfinite(w).all() and (w >= 0).all() else 0.0
    if not 0.0 < total < np.inf:
        raise InputError(f"weights must be numbers of 0 or more, one a row, not all zero, for {len(f)} rows")
    return f, labels, w / total


#: Levels whose factors are kept: steps of half a percent, and the tail.
LEVELS: Final = (*(step / 200 for step in range(1, 200)), 0.999, 0.9999)


#: What is exchangeable with new data: rows, groups of rows, or blocks of consecutive rows.
UNITS: Final = ("rows", "groups", "blocks")


@dataclass(frozen=True, eq=False)
class Conformal:
    """Split-conformal factors of normalized residuals |y - C f| / std.

    The standard deviation is that of the posterior, with noise (Lei, G'Sell, Rinaldo, Tibshirani &
    Wasserman 2018, section 5.2). Each target has factors of its own.

    If rows are exchangeable with new rows, a factor is the ceil((n + 1) level)-th smallest of n
    scores. Then |y - C f| <= factor std holds with a probability between `level` and
    level + 1/(n + 1) (Vovk, Gammerman & Shafer 2005), on average over rows.

    If rows depend on each other within groups, only the groups are exchangeable. A factor is then
    a quantile of the scores, where each score has the weight 1 / ((G + 1) N_g) for G groups of N_g
    rows, and infinity has the weight 1 / (G + 1) (hierarchical conformal prediction: Lee, Barber &
    Willett 2023). The bands contain at least the share `level` of the rows of a new group, on
    average over groups; of a single new group they may contain far fewer. There are no factors for
    levels above G / (G + 1): a level of 0.95 needs 19 groups.

    The bounds are approximate, for the reasons that `fit.held.Held` lists. Blocks are approximately
    exchangeable with blocks between them, not with later rows, and not with another walk.

    Attributes
    ----------
    factors : ndarray of shape (L, q)
        Factors for `LEVELS`; infinite if there are too few units for a level.
    rows : tuple of q ints
        Number of scores of each target.
    unit : str
        What is exchangeable, one of `UNITS`.
    units : tuple of q ints
        Number of units of each target; equal to `rows` if the unit is a row.
    block_rows : int
        Rows of a block; 1 for other units.
    """

    factors: FloatArray
    rows: tuple[int, ...]
    unit: str = "rows"
    units: tuple[int, ...] = ()
    block_rows: int = 1

    def __post_init__(self) -> None:
        if self.unit == "rows":
            object.__setattr__(self, "units", self.rows)

    @classmethod
    def fit(cls, scores: npt.ArrayLike) -> Self:
        """Return the factors if rows are exchangeable.

        Parameters
        ----------
        scores : array-like of shape (n, q)
            Scores of rows that the fit has not seen; NaN if the target is missing.
        """
        scored = _checked_scores(scores)
        counts = np.count_nonzero(~np.isnan(scored), axis=0)
        # NaN sorts last.
        ordered = np.vstack([np.sort(scored, axis=0), np.full(scored.shape[1], np.inf)])
        # 0.95 * 20 is 19.000000000000004, which is 19.
        ranks = np.ceil(np.outer(LEVELS, counts + 1) * (1 - 1e-12)).astype(np.int64)
        places = np.where(ranks > counts, len(scored), ranks - 1)
        return cls(np.take_along_axis(ordered, places, axis=0), tuple(counts.tolist()))

    @classmethod
    def fit_units(
        cls,
        scores: npt.ArrayLike,
        members: npt.ArrayLike,
        unit: str,
        *,
        block_rows: int = 1,
    ) -> Self:
        """Return the factors if groups or blocks of rows are exchangeable, but not their rows.

        Parameters
        ----------
        scores : array-like of shape (n, q)
            Scores of rows that the fit has not seen; NaN if the target is missing.
        members : array-like of int of shape (n,)
            The group or block of each row.
        unit : {"groups", "blocks"}
        block_rows : int
            Rows of a block.
        """
        checked = _checked_scores(scores)
        unit_of_row = np.asarray(members)
        q = checked.shape[1]
        # An error of rounding below a level is not another level.
        levels = np.array(LEVELS) * (1 - 1e-12)
        factors = np.full((len(LEVELS), q), np.inf)
        row_counts, unit_counts = list[int](), list[int]()
        for target in range(q):
            is_observed = ~np.isnan(checked[:, target])
            values = checked[is_observed, target]
            _, unit_index, unit_sizes = np.unique(
                unit_of_row[is_observed],
                return_inverse=True,
                return_counts=True,
            )
            order = np.argsort(values, kind="stable")
            weights = 1.0 / unit_sizes[unit_index[order]]
            cumulative = np.cumsum(weights) / (len(unit_sizes) + 1)
            ranks = np.searchsorted(cumulative, levels)
            factors[:, target] = np.append(values[order], np.inf)[ranks]
            row_counts.append(len(values))
            unit_counts.append(len(unit_sizes))
        return cls(
            factors=factors,
            rows=tuple(row_counts),
            unit=unit,
            units=tuple(unit_counts),
            block_rows=block_rows,
        )

    def factor(self, level: float) -> FloatArray:
        """Return the factors for a level, or for the next of `LEVELS` above it.

        Parameters
        ----------
        level : float
            Between 0 and 1.

        Returns
        -------
        ndarray of shape (q,)

        Raises
        ------
        InputError
            If a target has fewer than level / (1 - level) rows, groups or blocks.
        """
        check_level(level)
        position = int(np.searchsorted(LEVELS, level - 1e-12))
        if position < len(LEVELS) and np.isfinite(self.factors[position]).all():
            return np.asarray(self.factors[position])

        remedies = [f"ask for {self.highest:g} or less"] if self.highest else []
        if position < len(LEVELS):
            problem = f"level {level:g}: {min(self.units)} held-out {self.unit} are too few for it"
            remedies.append(f"fit to more {self.unit}")
        else:
            problem = f"level {level:g}: levels of conformal bands end at {LEVELS[-1]:g}"
        remedies.append("fit without solve.conformal (in Python: conformal=False)")
        raise InputError(f"{problem}; {', or '.join(remedies)}")

    @property
    def highest(self) -> float:
        """The highest of `LEVELS` that every target has factors for; 0 if there is none."""
        return max(np.array(LEVELS)[np.isfinite(self.factors).all(axis=1)].tolist(), default=0)

    @property
    def scope(self) -> str:
        """The new rows that the coverage is promised for, and the highest level, in words."""
        count = min(self.units)
        enough = "too few for any level"
        if self.highest:
            enough = f"enough for levels up to {100 * self.highest:g}%"

        if self.unit == "rows":
            return f"rows like the {count:,} held out ({enough})"
        if self.unit == "groups":
            average = f"on average over groups ({count:,} were held out, {enough})"
            return f"rows of new groups, {average}; a single group may have far fewer inside"
        blocks = f"{count:,} of {self.block_rows:,} rows"
        average = f"on average over blocks ({blocks} were held out, {enough})"
        limit = "nothing is promised of rows after them or of another walk"
        return f"rows between those of the data, {average}; {limit}"

    @property
    def summary(self) -> dict[str, Any]:
        """What was held out and what the bands promise, for the report of a fit."""
        return {
            "unit": self.unit,
            "units": min(self.units),
            "highest": self.highest,
            "scope": self.scope,
        }

    def config(self) -> dict[str, object]:
        """Return the factors as JSON, for a model's file; infinite factors are null."""
        factors = [
            [factor if np.isfinite(factor) else None for factor in level_factors]
            for level_factors in self.factors.tolist()
        ]
        config: dict[str, object] = {
            "levels": list(LEVELS),
            "factors": factors,
            "rows": list(self.rows),
        }
        if self.unit != "rows":
            config["unit"] = self.unit
            config["units"] = list(self.units)
            config["block_rows"] = self.block_rows
        return config

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return the factors of a `config()`, which may have been saved without units.

        Raises
        ------
        InputError
            If it is not the configuration of factors.
        """
        try:
            rows = tuple(int(count) for count in config["rows"])
            unit = config.get("unit", "rows")
            units = tuple(int(count) for count in config.get("units", rows))
            block_rows = int(config.get("block_rows", 1))
            listed = [
                [np.inf if factor is None else float(factor) for factor in level_factors]
                for level_factors in config["factors"]
            ]
            factors = np.array(listed).reshape(len(LEVELS), len(rows))

            has_bad_factors = np.isnan(factors).any() or (factors < 0).any()
            if tuple(config["levels"]) != LEVELS or has_bad_factors or min(rows) < 0:
                raise ValueError("other levels, or factors or rows below 0")
            has_bad_counts = len(units) != len(rows) or min(units) < 0 or block_rows < 1
            if unit not in UNITS or has_bad_counts:
                raise ValueError("units that are not those of a fit")
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            problem = f"conformal factors need levels, factors and rows ({error})"
            raise InputError(f"{problem}; fit again") from None
        return cls(factors=factors, rows=rows, unit=unit, units=units, block_rows=block_rows)


def _checked_scores(scores: npt.ArrayLike) -> FloatArray:
    """Return scores (n, q) as an array; InputError for another shape or negative scores."""
    checked = np.asarray(scores, dtype=np.float64)
    if checked.ndim != 2 or checked.shape[1] < 1 or np.any(checked < 0):
        problem = "scores must be numbers of 0 or more, (rows, targets)"
        raise InputError(f"{problem}; got shape {checked.shape}")
    return checked


def scores(targets: npt.ArrayLike, values: npt.ArrayLike, std: npt.ArrayLike) -> FloatArray:
    """|y - C f| / std (n, q) for targets y, values C f and standard deviations with noise, (n, q) each. A residual of
    0 scores 0, any other infinity where std is 0 (no noise); NaN where the target is missing."""
    y, f, deviation = (np.asarray(part, dtype=np.float64) for part in (targets, values, std))
    error = np.abs(y - f)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, error / deviation)


def check_level(level: float) -> None:
    """InputError for a level that is not between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise InputError(f"a band's level must be between 0 and 1, such as 0.95, not {level!r}")


#: Rows of a sample that a model keeps, at most, and the numbers in them.
SAMPLE_ROWS: Final = 1000
SAMPLE_NUMBERS: Final = 2**20


@dataclass(frozen=True, eq=False)
class Sites:
    """Rows drawn from all over the data, whether or not they have a target.

    Attributes
    ----------
    inputs : ndarray of shape (s, d)
    observed : ndarray of bool of shape (s,)
        Whether a row has a target.
    """

    inputs: FloatArray
    observed: npt.NDArray[np.bool_]

    def arrays(self) -> dict[str, AnyArray]:
        """Return the arrays by names of their own, as `of_arrays` takes them."""
        return {"held_site_inputs": self.inputs, "held_site_observed": self.observed}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, AnyArray], d: int) -> Self | None:
        """Return the sites among `arrays`, None if there are none; InputError for misfits."""
        if "held_site_inputs" not in arrays:
            return None
        inputs, observed = arrays["held_site_inputs"], arrays.get("held_site_observed")
        check_array("held_site_inputs", inputs, (len(inputs), d))
        check_array("held_site_observed", observed, (len(inputs),), np.bool_)
        return cls(inputs, np.asarray(observed))


@dataclass(frozen=True, eq=False)
class HeldSample:
    """A sample of rows that a fit has not seen, and what it says of them: `numbers` (n,) of the rows in the data,
    inputs `X` (n, d), targets `Y` (n, q), NaN where one is missing, and the `values` (n, q) predicted of these. `std`
    (n, q) are deviations with noise, None where the model keeps no posterior; `groups` (n,) what the column of the
    rows' groups says, None where rows are not grouped. The fit is the model's without a fold (`fit.held.Held`).
    `sites` say where the data have no values; None where they have some everywhere, and in models of before."""

    numbers: npt.NDArray[np.int64]
    X: FloatArray
    Y: FloatArray
    values: FloatArray
    std: FloatArray | None = None
    groups: FloatArray | None = None
    sites: Sites | None = None

    def arrays(self) -> dict[str, AnyArray]:
        """Every array by a name of its own, as `of_arrays` takes them."""
        named = {f"held_{part.name}": getattr(self, part.name) for part in fields(self) if part.name != "sites"}
        sites = {} if self.sites is None else self.sites.arrays()
        return {name: value for name, value in named.items() if value is not None} | sites

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, AnyArray], d: int, q: int) -> Self | None:
        """From `arrays()` among others, for d inputs and q targets; None if there are none, InputError for misfits."""
        if "held_numbers" not in arrays:
            return None
        n = len(arrays["held_numbers"])
        shapes = {"numbers": (n,), "X": (n, d), "Y": (n, q), "values": (n, q), "std": (n, q), "groups": (n,)}
        parts: dict[str, Any] = {name: arrays.get(f"held_{name}") for name in shapes}
        for name, shape in shapes.items():
            if parts[name] is not None or name not in ("std", "groups"):
                dtype, gaps = np.int64 if name == "numbers" else np.float64, name in ("Y", "groups")
                check_array(f"held_{name}", parts[name], shape, dtype, gaps=gaps)
        return cls(**parts, sites=Sites.of_arrays(arrays, d))

    @property
    def residuals(self) -> FloatArray:
        """y - C f (n, q), NaN where the target is missing."""
        return self.Y - self.values

    def coverage(self, factor: FloatArray | float) -> FloatArray:
        """(q,): the share of the targets within `factor` deviations; NaN without rows; InputError without `std`."""
        if self.std is None:
            raise InputError("held-out rows without deviations say nothing of bands: fit with solve.posterior: true")
        there = np.isfinite(self.Y)
        inside = there & (np.abs(self.residuals) <= factor * self.std)
        with np.errstate(invalid="ignore"):
            return np.asarray(inside.sum(axis=0) / there.sum(axis=0))
