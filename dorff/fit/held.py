"""What held-out rows are for once a kernel and a ridge are chosen: calibrated probabilities."""

from __future__ import annotations

import numpy as np

from dorff.calibration import Calibration, most_rows
from dorff.fit.choice import build_model, settings
from dorff.fit.passes import PassResult
from dorff.leaf import FoldRule
from dorff.moments import by_fold, pooled
from dorff.plan import Plan
from dorff.solvers import Choice
from dorff.threads import pinned


def calibrate(plan: Plan, choice: Choice, passed: PassResult) -> Calibration:
    """Class probabilities from rows that the decision values they are judged by were not fitted to.

    A fit of all folds but fold 0, with the ridge and kernel chosen, decides for the rows of fold 0: of a bounded
    number of them, in runs spread evenly. Where it has no rows, or no other has, nothing can be held out: slope 1.
    """
    this, _ = plan.frozen()
    training = by_fold({part: moments for part, moments in passed.folds.items() if part[0] > 0})
    if not training or not any(moments.n for (fold, _), moments in passed.folds.items() if fold == 0):
        return Calibration(1.0)
    decisions, codes = [], []
    with pinned():
        (fit,) = settings(plan)[choice.candidate].solve(pooled(training), [choice.fit.solution.ridge])
        model = build_model(plan, fit, passed)
        for start, stop in _held_out(plan, this.folds):
            X, Y = plan.dataset.read(start, stop)
            keep = np.isfinite(X).all(axis=1) & np.isfinite(Y).all(axis=1)
            if this.folds.by_rows:
                keep &= this.folds.of_rows(np.arange(start, stop)) == 0
            decisions.append(model.predict(X[keep]))
            codes.append(np.argmax(Y[keep], axis=1))
    labels = np.concatenate(codes)
    weights = np.ones(len(labels)) if this.class_weight is None else this.class_weight[labels]
    return Calibration.fit(np.concatenate(decisions), labels, weights)


def _held_out(plan: Plan, rule: FoldRule) -> list[tuple[int, int]]:
    """Runs of rows that hold those of fold 0, as many as are needed, spread evenly."""
    share = (rule.held or rule.count) if rule.by_rows else 1
    wanted = most_rows(plan.dataset.q) * share
    unit = min(plan.dataset.unit_rows, max(1, wanted // 8))
    runs = [
        (start, min(start + unit, leaf.stop))
        for leaf in plan.leaves
        if rule.by_rows or rule.of_leaf(leaf.number) == 0
        for start in range(leaf.start, leaf.stop, unit)
    ]
    most = wanted // unit
    return runs if len(runs) <= most else [runs[int(at)] for at in np.linspace(0, len(runs) - 1, most)]
