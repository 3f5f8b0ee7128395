"""What held-out rows are for once a kernel and a ridge are chosen: calibrated probabilities, bands that hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from dorff import calibration, conformal
from dorff.calibration import Calibration
from dorff.conformal import Conformal
from dorff.data import RowBlock
from dorff.errors import InputError
from dorff.fit.choice import build_model, settings
from dorff.fit.passes import PassResult
from dorff.leaf import FoldRule
from dorff.model import Model
from dorff.moments import by_fold, pooled
from dorff.plan import Plan
from dorff.solvers import Choice, carried_ridges, of_first
from dorff.threads import pinned


@final
@dataclass(frozen=True, eq=False)
class Held:
    """A fit of all folds but fold 0, with what was chosen; and rows of fold 0, which its sums have not seen.

    Departures from a clean split: the ridge, the kernel, the number of features and length-scales were chosen with
    fold 0 in, and so were the constants of the pass, which come from the data's first rows: y0, the inputs' centre
    and scales. Dealt by leaves, fold 0 is every count-th leaf beginning with leaf 0, the one those rows are in. What
    is found from its rows, probabilities' slope or bands' factors, is used with the fit to all rows.
    """

    plan: Plan
    model: Model

    @classmethod
    def of(cls, plan: Plan, choice: Choice, passed: PassResult, *, posterior: bool = False) -> Held | None:
        """None where fold 0 has no rows, or no other has: nothing can be held out."""
        training = by_fold({part: sums for part, sums in passed.folds.items() if part[0] > 0})
        if not training or not any(sums.n for (fold, _), sums in passed.folds.items() if fold == 0):
            return None
        with pinned():
            folds, setting = of_first(training, settings(plan, passed.manifold)[choice.candidate], choice.m)
            parts = pooled(folds)
            (fit,) = setting.solve(parts, [carried_ridges(setting, parts, choice.fit)])
            model = build_model(plan, fit, choice.m, passed)
            if posterior:
                model = replace(model, posterior=setting.posterior(parts, fit))
        return cls(plan, model)

    def rows(self, most: int) -> Iterator[RowBlock]:
        """About `most` rows with inputs and any target, or all there are, in runs spread evenly."""
        rule = self.plan.frozen()[0].folds
        for start, stop in self._runs(rule, most):
            rows = self.plan.dataset.block(start, stop).weighty()
            rows = rows[rows.whole(partial=True)]
            yield rows[rule.of(rows) == 0] if rule.by_rows else rows

    def _runs(self, rule: FoldRule, most: int) -> list[tuple[int, int]]:
        wanted = most * ((rule.held or rule.count) if rule.by_rows else 1)
        unit = min(self.plan.dataset.unit_rows, max(1, wanted // 8))
        runs = [
            (start, min(start + unit, leaf.stop))
            for leaf in self.plan.leaves
            if rule.by_rows or rule.of_leaf(leaf.number) == 0
            for start in range(leaf.start, leaf.stop, unit)
        ]
        count = wanted // unit
        return runs if len(runs) <= count else [runs[int(at)] for at in np.linspace(0, len(runs) - 1, count)]


def calibrate(plan: Plan, choice: Choice, passed: PassResult) -> Calibration:
    """Class probabilities from rows that the decision values they are judged by were not fitted to; slope 1 where
    none can be held out."""
    if (held := Held.of(plan, choice, passed)) is None:
        return Calibration(1.0)
    decisions, codes, weights = [], [], []
    with pinned():
        for rows in held.rows(calibration.most_rows(plan.dataset.q)):
            rows = rows[rows.whole()]
            decisions.append(held.model.predict(rows.X))
            codes.append(np.argmax(rows.Y, axis=1))
            weights.append(np.ones(len(rows)) if rows.weights is None else rows.weights)
    labels, weight = np.concatenate(codes), np.concatenate(weights)
    if (of_class := plan.frozen()[0].class_weight) is not None:
        weight = weight * of_class[labels]
    return Calibration.fit(np.concatenate(decisions), labels, weight)


def conformalize(plan: Plan, choice: Choice, passed: PassResult) -> Conformal:
    """How many deviations (with noise) the bands of each level must reach, by rows that were held out; InputError
    where there are none."""
    if (held := Held.of(plan, choice, passed, posterior=True)) is None:
        raise InputError(
            "solve.conformal: no rows can be held out, because all are in one fold (of one group, or so few); set "
            "solve.folds.by: rows, or leave conformal out"
        )
    found = []
    with pinned():
        for rows in held.rows(conformal.most_rows(plan.dataset.q)):
            values = held.model.observed(held.model.predict(rows.X))
            found.append(conformal.scores(rows.Y, values, held.model.std(rows.X, noise=True)))
    return Conformal.fit(np.concatenate(found))
