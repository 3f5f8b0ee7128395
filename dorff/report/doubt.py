"""Where the data say little of f, and color scales that predictions at such places do not set."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from scipy.spatial import cKDTree

from dorff.kernels import FloatArray, Spectral
from dorff.report.describe import Subject

PALER_FROM: Final = 0.5  # the doubt from which places fade; from 1 on they are not shown
FAR: Final = 2.0  # length-scales from the nearest of all rows, beyond which the data say next to nothing
OUTER_QUANTILES: Final = (0.5, 99.5)  # percentiles that a color scale reaches from and to
AROUND: Final = 256  # places around the data at which the prior's deviation is looked for
WIDTHS: Final = 3.0  # how far from the data they are at most, in the widths of the data's box


@dataclass(frozen=True, eq=False)
class Doubt:
    """How little the data say of f, at any place: 0 where they decide it, 1 where they say next to nothing.

    Of several reasons for doubt the largest counts:

    - the posterior's standard deviation over the spread of the targets, where the model keeps a posterior;
    - the same over the prior's standard deviation, as data that leave that as it is say nothing;
    - the distance to the nearest row in `FAR` length-scales, where the rows are all that there are.

    Attributes
    ----------
    subject : Subject
        The model and its data.
    whole : bool
        Whether `subject.data` are all rows that were fitted, and not a sample of them.
    output : int or None
        The output of f that is looked at; None for the length of the vector of all.
    """

    subject: Subject
    whole: bool = False
    output: int | None = None

    def at(self, inputs: FloatArray, deviations: FloatArray | None = None) -> FloatArray:
        """Return the doubt (n,) at inputs (n, d); zeros if none of the reasons is known.

        `deviations` (n, p) are the posterior's standard deviations there, if they are known already.
        """
        reasons = [np.zeros(len(inputs))]
        if self.subject.model.posterior is not None:
            deviations = self.subject.model.std(inputs) if deviations is None else deviations
            reasons += [self.length(deviations) / limit for limit in (self.spread, self._prior) if limit > 0]
        if self.whole and self.subject.data is not None and (reach := _reach(self.subject)) is not None:
            distances, _ = cKDTree(self.subject.data[0] / reach).query(inputs / reach)
            reasons.append(distances / FAR)
        return np.asarray(np.max(reasons, axis=0))

    def length(self, values: FloatArray) -> FloatArray:
        """Return values (n, p) of the output that is looked at, or the lengths of vectors, (n,)."""
        return np.asarray(np.linalg.norm(values, axis=1) if self.output is None else values[:, self.output])

    @cached_property
    def values(self) -> FloatArray | None:
        """What f is where data are (n,): targets, or predictions of rows if targets are not values of f."""
        known = self.subject.values
        return None if known is None else self.length(known)

    @cached_property
    def spread(self) -> float:
        """How far f lies from its mean where data are, a vector from 0; 0 if that is not known."""
        if self.values is None or not np.isfinite(self.values).any():
            return 0.0
        return float(np.nanstd(self.values) if self.output is not None else np.sqrt(np.nanmean(self.values**2)))

    @cached_property
    def _prior(self) -> float:
        """The largest deviation at places around the data, which far from them is the prior's."""
        subject, rng = self.subject, np.random.default_rng(0)
        directions = rng.uniform(-1.0, 1.0, (AROUND, subject.model.d))
        directions /= np.abs(directions).max(axis=1, keepdims=True)  # on the surface of a cube, so none is inside
        away = rng.uniform(1.0, 1.0 + 2.0 * WIDTHS, (AROUND, 1))
        middle, half = (subject.low + subject.high) / 2, (subject.high - subject.low) / 2
        return float(self.length(subject.model.std(middle + directions * away * half)).max())


def opacity_of(doubt: FloatArray) -> FloatArray:
    """Return how opaque f is drawn: 1 where it is known, 0 where `doubt` is 1 or more."""
    return np.asarray(np.clip((1.0 - doubt) / (1.0 - PALER_FROM), 0.0, 1.0))


def color_limits(predicted: FloatArray, known: FloatArray | None) -> tuple[float, float]:
    """Return the ends of a color scale of predictions (n,).

    They are quantiles of the predictions, but reach no farther than those of the values
    `known` (k,) where data are: what f does beyond the data does not set the colors.
    """
    low, high = np.percentile(predicted, OUTER_QUANTILES)
    known = predicted if known is None else known[np.isfinite(known)]
    if len(known):
        least, most = np.percentile(known, OUTER_QUANTILES)
        within = max(low, least), min(high, most)
        low, high = within if within[0] < within[1] else (least, most)
    if low < high:
        return float(low), float(high)
    margin = max(0.5 * abs(float(low)), 1e-12)
    return float(low) - margin, float(high) + margin


def largest_shown(predicted: FloatArray, known: FloatArray | None = None) -> float:
    """Return the end of a color scale of sizes (n,), such as lengths, that starts at 0 or is symmetric; above 0."""
    largest = float(np.percentile(np.abs(predicted), OUTER_QUANTILES[1]))
    sizes = np.zeros(0) if known is None else np.abs(known[np.isfinite(known)])
    if len(sizes) and (most := float(np.percentile(sizes, OUTER_QUANTILES[1]))) > 0:
        largest = min(largest, most)
    return largest if largest > 0 else 1.0


def extension(values: FloatArray, low: float, high: float) -> str:
    """Return which ends of a color bar are pointed, because some values lie beyond them."""
    below, above = bool(np.any(values < low)), bool(np.any(values > high))
    if below and above:
        return "both"
    return "min" if below else "max" if above else "neither"


def _reach(subject: Subject) -> FloatArray | None:
    """The longest length-scale (d,) in input units; None where a scalar kernel has none."""
    scalars = [term.scalar for weight, term in subject.model.kernel.terms() if weight > 0]
    spectral = [scalar for scalar in scalars if isinstance(scalar, Spectral) and not scalar.sampler]
    if len(spectral) < len(scalars):
        return None
    stretches = np.array([1.0 / scalar.stretch(subject.model.d) for scalar in spectral])
    return np.asarray(stretches.max(axis=0) * subject.model.feature_map.scale)
