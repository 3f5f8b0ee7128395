"""Landmarks of an estimator: the rows that they are chosen among, and whether they replace random features."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dorff.data import RowBlock
from dorff.errors import InputError
from dorff.estimators.array_sums import RowsRead, Run, weights_of
from dorff.estimators.arrays import Deal, Numbers
from dorff.estimators.parameters import Scaled, whole_rows
from dorff.features import Recipe
from dorff.features.lengthscale_search import search_size
from dorff.frequencies import Landmarks
from dorff.kernels import FloatArray
from dorff.passes import FoldRule
from dorff.plan.landmark_choice import COMPARED_FOLDS, check_landmarks, compare_samplers, count_landmarks
from dorff.plan.sampled import sample_runs
from dorff.solvers import Setting

RUNS, RUN_ROWS = 128, 64  # rows that landmarks are chosen among: runs of them, spread evenly
LEAST_COUNT: Final = 2  # landmarks


def candidate_runs(n: int) -> list[Run]:
    """Return the runs of n rows that landmarks are chosen among: all rows where there are few."""
    return sample_runs(0, n, RUNS, RUN_ROWS)


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledRows:
    """The rows of an estimator that were read: n of them in all, of `weights` (n,).

    `inputs` (k, d) are those of all rows where only some have targets; None: every row has.
    """

    read: RowsRead
    n: int
    weights: FloatArray | None
    inputs: FloatArray | None

    def candidates(self, scaled: Scaled) -> FloatArray:
        """Return the scaled rows that landmarks are chosen among; of weight 0 only where no row weighs more.

        Each once and in an order of their own, so that rows given twice, or of weight 2, have the same landmarks.
        """
        if self.inputs is not None:
            X = _rows_of(self.inputs, candidate_runs(len(self.inputs)))
        else:
            runs = candidate_runs(self.n)
            X, weights = self.read[runs][0], weights_of(self.weights, runs)
            X = X if weights is None or not weights.any() else X[weights > 0]
        return scaled(np.unique(X, axis=0))

    def compared(self, scaled: Scaled) -> RowBlock:
        """Return the scaled rows by which landmarks are compared with random features."""
        return whole_rows(self.read, candidate_runs(self.n), scaled, self.weights)


def choose_features(
    recipe: Recipe, setting: Setting, sampled: SampledRows, scaled: Scaled, deal: Deal, *, count_free: bool, seed: int
) -> Recipe:
    """Return a recipe with landmarks where these predict held-out rows as well as its random features do, else itself.

    `count_free`: the number of features is the largest that there may be, and landmarks are as few as leave out little.
    """
    try:
        check_landmarks(recipe)
    except InputError:
        return recipe
    rows, (most_rows, columns) = sampled.compared(scaled), search_size(sampled.n)
    setting = replace(setting, m=min(columns, recipe.n_features))
    fold_of = _folds(deal, rows)
    comparison = compare_samplers(setting, recipe, rows, fold_of, most_rows=most_rows, fitted=sampled.n, seed=seed)
    if not comparison.prefers_landmarks:
        return recipe
    candidates = sampled.candidates(scaled)
    if count_free:
        found = count_landmarks(recipe, candidates, comparison.enough_of_landmarks, seed)
        recipe = replace(recipe, n_features=max(LEAST_COUNT, found.count))
    return replace(recipe, sampler=Landmarks()).among(candidates, seed)


def _folds(deal: Deal, rows: RowBlock) -> Numbers | None:
    """Return the folds that rows are dealt to, of equal size; None where nothing is held out."""
    if isinstance(deal, FoldRule) and deal.held:
        deal = replace(deal, count=COMPARED_FOLDS, held=0)
    return deal.of_rows(rows.numbers) if deal.count > 1 else None


def _rows_of(X: FloatArray, runs: Sequence[Run]) -> FloatArray:
    return np.concatenate([X[start:stop] for start, stop in runs])
