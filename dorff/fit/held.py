"""What held-out rows are for after a choice: calibrated probabilities, bands that hold, a sample to judge by."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dorff.data import RowBlock
from dorff.data.dataset import group_keys
from dorff.data.labels import GROUPS
from dorff.data.nodes import group_attributes, kept_of
from dorff.errors import InputError
from dorff.fit.choice import build_model, keeps_sure
from dorff.fit.passes import Fitted, PassResult
from dorff.fit.quality import FitQuality, looked, quality_of_classes
from dorff.fit.sites import draw_sites
from dorff.model import SAMPLE_NUMBERS, SAMPLE_ROWS, Calibration, Conformal, HeldSample, Model, calibration
from dorff.moments.blas import pinned
from dorff.passes import Leaf
from dorff.passes.frozen import GROUPED
from dorff.plan import Plan
from dorff.predict.shared import expected
from dorff.storage.location import locate

#: What a slope, or bands, are found from where rows with targets are so rare that to find more would be another pass
#: over the data; and how many times the most rows that are used are read before that is so.
ENOUGH: Final = 1000
READ: Final = 8
NAMED_GROUPS: Final = 40  # more than a report shows
SAMPLE_RUN: Final = 64  # rows of a sample that are evaluated at a time: no more memory than to solve
GOLDEN: Final = (5**0.5 - 1) / 2


@dataclass(frozen=True, eq=False)
class Held:
    """A fit of all folds but one, the first that has rows, with what was chosen; and rows of that fold, which its sums
    have not seen: `n` of them have targets, and they are in `leaves`. Departures from a clean split: the ridge, the
    kernel, the number of features and length-scales were chosen with the fold in, and so were the constants of the
    pass, which come from the data's first rows: y0, the inputs' centre and scales. Dealt by leaves, fold 0 is every
    count-th leaf beginning with leaf 0, the one those rows are in. What is found from its rows, probabilities' slope
    or bands' factors, is used with the fit to all rows."""

    plan: Plan
    model: Model
    fold: int
    n: int
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, plan: Plan, fitted: Fitted, passed: PassResult, *, posterior: bool = False) -> "Held | None":
        """None where fewer than two folds have rows: nothing can be held out."""
        counts = Counter[int]()
        for (number, _), sums in passed.folds.items():
            counts[number] += sums.n
        dealt = sorted(number for number, n in counts.items() if n)
        if len(dealt) < 2:
            return None
        fold, rule = dealt[0], plan.frozen().folds
        with pinned():
            training = fitted.without(fold)
            model = build_model(plan, training, passed)
            if posterior:
                model = replace(model, posterior=training.posterior)
        used = {receipt.number for receipt in passed.receipts if receipt.rows_used}
        leaves = (leaf for leaf in plan.leaves if rule.by_rows or rule.of_leaf(leaf.number) == fold)
        return cls(plan, model, fold, counts[fold], tuple(leaf for leaf in leaves if leaf.number in used))

    def sample(self) -> HeldSample | None:
        """Rows of the fold, spread over its leaves, and what the model says of them; None where there are none."""
        dataset = self.plan.dataset
        most = min(SAMPLE_ROWS, max(1, SAMPLE_NUMBERS // (dataset.d + 4 * dataset.q)))
        if not (blocks := list(self._of_runs(most))):  # gone since they were summed
            return None
        rows = RowBlock.joined(blocks)
        groups = np.concatenate([one.groups for one in blocks]) if blocks[0].groups is not None else None
        order = np.argsort(rows.numbers)[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.int64)]
        X, Y = rows.X[order], rows.Y[order]
        runs = [X[start : start + SAMPLE_RUN] for start in range(0, len(X), SAMPLE_RUN)]
        with pinned():
            values = np.concatenate([expected(self.model, run) for run in runs])
            sure = self.model.posterior is not None
            std = np.concatenate([self.model.std(run, noise=True) for run in runs]) if sure else None
        keys = None if groups is None else groups[order].view(np.float64)
        return HeldSample(rows.numbers[order], X, np.where(np.isfinite(Y), Y, np.nan), values, std, keys)

    def rows(self, most: int) -> Iterator[RowBlock]:
        """Rows of the fold with inputs and any target: all of them where they are at most `ENOUGH`, or can be found by
        reading `READ` times `most` rows; else about `most`, or what that much reading finds, of runs drawn from all
        leaves that have such rows. Runs that have few of them are put together."""
        few, enough = list[RowBlock](), self.plan.spec.block_rows
        for rows in self._of_runs(most):
            few.append(rows)
            if sum(map(len, few)) >= enough:
                yield RowBlock.joined(few)
                few.clear()
        if few:
            yield RowBlock.joined(few)

    def _of_runs(self, most: int) -> Iterator[RowBlock]:
        rule, usable, read = self.plan.frozen().folds, 0, 0
        for start, stop in self._runs(most):
            rows = self.plan.spec.kept(self.plan.dataset.block(start, stop))
            rows = rows[rows.whole(partial=True)]
            rows = rows[rule.of(rows) == self.fold] if rule.by_rows else rows
            if len(rows):
                yield rows
            usable, read = usable + len(rows), read + stop - start
            if usable >= (most if read < READ * most else min(most, ENOUGH)):
                return

    def _runs(self, most: int) -> list[tuple[int, int]]:
        """Runs of all rows of the leaves; where not all may be needed in an order of which every beginning is spread
        evenly, whatever the period of what the rows are. How many it takes is not known before: of rows with targets
        receipts tell how many a leaf has, not where they are."""
        unit, count = self.plan.dataset.unit_rows, sum(leaf.stop - leaf.start for leaf in self.leaves)
        if self.n > most:  # short enough that some thirty are needed
            unit = min(unit, max(1, count * most // self.n // 32))
        runs = [(at, min(at + unit, leaf.stop)) for leaf in self.leaves for at in range(leaf.start, leaf.stop, unit)]
        if self.n <= most and count <= READ * most:
            return runs
        start = np.random.default_rng(self.plan.job.features.seed).random()
        return [runs[at] for at in np.argsort((start + GOLDEN * np.arange(len(runs))) % 1.0)]


def held_by(plan: Plan) -> str | None:
    """What is dealt to folds, which few leaves or the sample may tell, whatever the job says."""
    rule, by = plan.frozen().folds, plan.job.solve.folds.by
    if rule.count == 1:
        return None
    if not rule.by_rows:
        return "leaves"
    return by if rule.run == GROUPED else "rows" if rule.run == 1 else "blocks"


def calibrate(plan: Plan, fitted: Fitted, passed: PassResult) -> tuple[Calibration, FitQuality | None]:
    """Class probabilities from rows that the decision values they are judged by were not fitted to, and how good
    these are; slope 1, of 0 rows, and None where none can be held out."""
    held, by = Held.of(plan, fitted, passed), held_by(plan)
    if held is None or by is None:
        return Calibration(1.0), None
    decisions, codes, weights = [], [], []
    with pinned():
        for rows in held.rows(calibration.most_rows(plan.dataset.q)):
            decisions.append(held.model.predict(rows.X))
            codes.append(np.argmax(rows.Y, axis=1))
            weights.append(np.ones(len(rows)) if rows.weights is None else rows.weights)
    if not codes:  # gone since they were summed
        return Calibration(1.0), None
    f, labels, weight = np.concatenate(decisions), np.concatenate(codes), np.concatenate(weights)
    quality = quality_of_classes(f, labels, weight, plan.dataset.target_columns, by, looked(plan))
    if (of_class := plan.frozen().constants.class_weight) is not None:
        weight = weight * of_class[labels]
    return Calibration.fit(f, labels, weight), quality


def judged(model: Model, plan: Plan, fitted: Fitted, passed: PassResult) -> Model:
    """The model of a fit with what held-out rows say of it, where a route with a posterior has dealt any: a sample of
    them, and the factors of its bands if the job asks for them. One solve without a fold answers both."""
    sure = keeps_sure(plan, fitted)
    if plan.costs.route != "direct" and not sure:
        return model
    held = Held.of(plan, fitted, passed, posterior=sure)
    if plan.job.solve.conformal:
        model = replace(model, info={**model.info, "conformal": conformalize(held).config()})
    if held is None:
        return model
    sample = held.sample()
    if sample is not None and any(receipt.rows_dropped for receipt in passed.receipts):
        sample = replace(sample, sites=draw_sites(plan))
    data = model.info["data"] | {"group_names": group_names(plan, sample)}
    return replace(model, held=sample, info={**model.info, "data": data})


def group_names(plan: Plan, sample: HeldSample | None) -> dict[str, str]:
    """The names, by their keys, of the largest groups of a sample that are no numbers, where the data keep them."""
    groups = plan.dataset.groups
    if sample is None or sample.groups is None or groups is None or groups.array != GROUPS:
        return {}
    kept = kept_of(group_attributes(locate(plan.dataset.path)), "group_names", dict[str, str]())
    codes = np.array([int(code) for code in kept], dtype=np.int64)
    named = dict(zip(group_keys(codes).tolist(), kept.values(), strict=True))
    keys, counts = np.unique(sample.groups.view(np.uint64), return_counts=True)
    largest = keys[np.argsort(-counts, kind="stable")[:NAMED_GROUPS]]
    return {str(key): named[key] for key in largest.tolist() if key in named}


def conformalize(held: Held | None) -> Conformal:
    """How many deviations (with noise) the bands of each level must reach, by rows that were held out."""
    scores = []
    if held is not None:
        with pinned():
            for rows in held.rows(calibration.most_rows(held.plan.dataset.q)):
                values = held.model.observed(held.model.predict(rows.X))
                scores.append(calibration.scores(rows.Y, values, held.model.std(rows.X, noise=True)))
    if not scores:
        why = "all that have targets are in one fold (of one group or leaf, or so few)"
        remedy = "set solve.folds.by: rows, or leave conformal out"
        raise InputError(f"solve.conformal: no rows can be held out, because {why}; {remedy}")
    return Conformal.fit(np.concatenate(scores))
