"""Landmarks or random features, and how many landmarks: measured on a sample of rows, for jobs and estimators alike.

Landmarks are taken where they predict rows that were held out at least as well as random features do. They are as many
as it takes to leave out a small part of the posterior variance of f.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dorff.data import RowBlock
from dorff.features import Recipe
from dorff.frequencies import Landmarks, Sampler
from dorff.frequencies.landmarks import pivoted_cholesky
from dorff.kernels import FloatArray
from dorff.moments import pinned
from dorff.passes.frozen import Rows
from dorff.plan.resolving import features_for
from dorff.plan.sampled import held_out_score
from dorff.solvers import Setting

LEAST_COMPARED: Final = 64  # rows of a sample, by which landmarks are compared with random features
COMPARED_FOLDS: Final = 5
AS_GOOD: Final = 0.002  # of the targets' variance: an error that much larger is as good
LEFT_OUT_SHARE: Final = 0.05  # of the posterior variance: what landmarks may leave out of the prior's
ROUNDED_TO: Final = 16  # numbers of landmarks


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Held-out errors of a sample of rows, by as many landmarks and random features.

    Attributes
    ----------
    rows : int
        The rows of the sample. Without rows nothing was compared.
    fitted : int
        The rows of the fit.
    features : int
        The number of landmarks, and of random features, by which rows were predicted.
    most_features : int
        The most features that the fit may have.
    landmarks : float
        The error by landmarks, over the variance of the targets.
    random : float or None
        The error by random features; None for a kernel without such.
    ratio : float
        The noise variance over the prior's, by the ridge that is best for landmarks.
    freedom : float
        The degrees of freedom of a fit to all `fitted` rows.
    """

    rows: int
    fitted: int
    features: int
    most_features: int
    landmarks: float
    random: float | None
    ratio: float
    freedom: float

    @classmethod
    def none(cls, *, fitted: int, features: int, most_features: int) -> "Comparison":
        """Return the comparison of no rows, by which landmarks are taken and may leave out nothing."""
        return cls(
            rows=0,
            fitted=fitted,
            features=features,
            most_features=most_features,
            landmarks=0.0,
            random=0.0,
            ratio=0.0,
            freedom=0.0,
        )

    @property
    def has_all_rows(self) -> bool:
        """Whether every row that is fitted can be a landmark, so that the kernel is exact."""
        return self.fitted <= self.most_features

    @property
    def prefers_landmarks(self) -> bool:
        """Whether landmarks are as good as random features, or better."""
        if self.random is None or self.has_all_rows:
            return True
        return self.landmarks <= self.random + AS_GOOD

    @property
    def enough(self) -> float:
        """The share of k(x, x) that features may leave out.

        With a noise variance `ratio` times the prior's, f keeps a posterior variance of about ratio * freedom / n
        times the prior's at the n rows that are fitted: what is left out is to be a small part of that.
        """
        return LEFT_OUT_SHARE * self.ratio * self.freedom / self.fitted

    @property
    def enough_of_landmarks(self) -> float:
        """The share of k(x, x) that landmarks may leave out: none where every row can be a landmark."""
        return 0.0 if self.has_all_rows else self.enough

    @property
    def sentence(self) -> str:
        """What was measured."""
        if self.has_all_rows:
            return f"there are {self.fitted:,} rows, of which landmarks leave out nothing: the kernel is exact"
        if not self.rows:
            return "too few rows have targets to compare them with random features"
        of = f"on {self.rows:,} rows that were held out in turn {self.features} landmarks"
        if self.random is None:
            problem = "random features of this kernel would have an infinite variance, or too many factors"
            return f"{problem}; {of} have an error of {self.landmarks:.3g} of the variance"
        return f"{of} have an error of {self.landmarks:.3g} of the variance, random features {self.random:.3g}"


@dataclass(frozen=True, kw_only=True)
class LandmarkCount:
    """A number of landmarks, and the mean share of k(x, x) that they leave out."""

    count: int
    missing: float


def has_enough_landmarks(recipe: Recipe, n_rows: int, *, count_is_chosen: bool) -> bool:
    """Return whether more landmarks would leave out little more of the kernel.

    So it is if every row may be a landmark, and if their number was chosen by what they leave out
    (`count_landmarks`) and is less than the number of features for so many rows.
    """
    if recipe.landmarks is None:
        return False
    if recipe.n_features >= n_rows:
        return True
    return count_is_chosen and recipe.n_features < features_for(n_rows)


def check_landmarks(recipe: Recipe) -> None:
    """Raise InputError for a kernel that landmarks have no features of."""
    replace(recipe, sampler=Landmarks())


def compare_samplers(
    setting: Setting, recipe: Recipe, rows: RowBlock, fold_of: Rows | None, *, most_rows: int, fitted: int, seed: int
) -> Comparison:
    """Predict held-out folds of sampled rows by landmarks, and by the random features of a recipe.

    Parameters
    ----------
    setting : Setting
        Of the kernel with its length-scales, and of as many features as are compared.
    recipe : Recipe
        The random features.
    rows : RowBlock
        Rows with all targets, their inputs scaled; of them at most `most_rows` are used, evenly spread.
    fold_of : (n,) or None
        The folds that the rows are in; None, or a single fold: they are dealt in turn.
    fitted : int
        Rows of the fit that features are chosen for.
    """
    at = np.linspace(0, len(rows) - 1, min(most_rows, len(rows))).astype(np.intp)
    rows, fold_of = rows[at], None if fold_of is None else fold_of[at]
    if len(rows) < LEAST_COMPARED or not np.ptp(rows.Y, axis=0).any():
        return Comparison.none(fitted=fitted, features=setting.m, most_features=recipe.n_features)
    folds = _few_folds(fold_of, len(rows))

    def score(sampler: Sampler) -> tuple[float, float]:
        with pinned():
            found = held_out_score(setting, rows, folds, seed, sampler)
        return found.least, found.ridge

    landmarks, ridge = score(Landmarks())
    only_landmarks = recipe.landmarks is not None or fitted <= recipe.n_features
    random = None if only_landmarks else score(recipe.sampler)[0]
    ratio = ridge * len(rows) * (1.0 - 1.0 / COMPARED_FOLDS)  # a ridge is over the number of rows that are fitted
    return Comparison(
        rows=len(rows),
        fitted=fitted,
        features=setting.m,
        most_features=recipe.n_features,
        landmarks=landmarks,
        random=random,
        ratio=ratio,
        freedom=_freedom(recipe, rows.X, setting.m, seed, ratio * len(rows) / fitted),
    )


def count_landmarks(recipe: Recipe, X: FloatArray, enough: float, seed: int) -> LandmarkCount:
    """Return how many landmarks among scaled rows X (n, d) leave out no more than `enough` of k(x, x).

    At most the recipe's number of features.
    """
    with pinned():
        pivots = pivoted_cholesky(recipe.scalar, X, recipe.n_features, np.random.default_rng(seed), enough=enough)
    rounded = -(-len(pivots.rows) // ROUNDED_TO) * ROUNDED_TO
    count = min(rounded, recipe.n_features, len(X))
    return LandmarkCount(count=count, missing=float(pivots.missing(recipe.scalar.diagonal(X))[-1]))


def _few_folds(fold_of: Rows | None, count: int) -> Rows:
    """Return the folds (n,) that rows are held out in: at most `COMPARED_FOLDS`, and more than one."""
    if fold_of is not None:
        folds = np.unique(fold_of, return_inverse=True)[1] % COMPARED_FOLDS
        if folds.any():
            return np.asarray(folds)
    return np.arange(count) % COMPARED_FOLDS


def _freedom(recipe: Recipe, X: FloatArray, count: int, seed: int, ratio: float) -> float:
    """Return tr K (K + ratio I)^-1 of the Gram matrix K of rows X, by `count` landmarks."""
    factor = pivoted_cholesky(recipe.scalar, X, count, np.random.default_rng(seed)).factor
    values = np.maximum(np.linalg.eigvalsh(factor.T @ factor), 0.0)
    return float(np.sum(values / (values + ratio)))
