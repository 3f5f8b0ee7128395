"""What held-out rows are for after a choice: calibrated probabilities, bands that hold, a sample to judge by."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff.data import RowBlock
from dorff.data.dataset import Keys, group_keys
from dorff.data.labels import GROUPS
from dorff.data.nodes import group_attributes, kept_of
from dorff.errors import InputError
from dorff.fit.choice import build_model, keeps_sure
from dorff.fit.passes import Fitted, PassResult
from dorff.fit.quality import FitQuality, looked, quality_of_classes
from dorff.fit.sites import draw_sites
from dorff.model import SAMPLE_NUMBERS, SAMPLE_ROWS, Calibration, Conformal, HeldSample, Model, calibration
from dorff.moments import FloatArray, IntArray
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
#: Folds are added until so many groups or blocks stand behind conformal bands; the widening for their number is then
#: half a percent of the level.
ENOUGH_UNITS: Final = 200
#: Means of neighbouring runs of rows are correlated where their correlation is above this, by a standard error.
CORRELATED: Final = 0.2
LEAST_PAIRS: Final = 16  # of neighbouring runs, of which a correlation is estimated
FARTHEST: Final = 10.0  # standard deviations: errors beyond count as that in correlations
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
    def of(
        cls, plan: Plan, fitted: Fitted, passed: PassResult, *, posterior: bool = False, fold: int | None = None
    ) -> "Held | None":
        """Return the first fold that has rows, or `fold`; None where fewer than two have any, so that none can be held
        out."""
        counts = _rows_of_folds(passed)
        if len(counts) < 2:
            return None
        fold, rule = min(counts) if fold is None else fold, plan.frozen().folds
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
                yield _joined(few)
                few.clear()
        if few:
            yield _joined(few)

    @property
    def longest(self) -> int:
        """The rows in order that are held out together, at most."""
        rule = self.plan.frozen().folds
        return rule.run if rule.by_rows else max(leaf.stop - leaf.start for leaf in self.leaves)

    def errors(self, share: float = 1.0) -> "HeldErrors | None":
        """Return the errors of the rows of the fold, of a `share` of `most_rows` at most; None where there are none any
        more."""
        parts, most = [], max(1, int(share * calibration.most_rows(self.plan.dataset.q)))
        with pinned():
            for rows in self.rows(most):
                values = self.model.observed(self.model.predict(rows.X))
                scores = calibration.scores(rows.Y, values, self.model.std(rows.X, noise=True))
                parts.append(HeldErrors(rows.numbers, np.sign(rows.Y - values) * scores, rows.groups, self.longest))
        return HeldErrors.joined(parts) if parts else None

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


@dataclass(frozen=True, eq=False)
class HeldErrors:
    """Errors of held-out rows of one fold, in standard deviations.

    Attributes
    ----------
    numbers : ndarray of shape (n,)
        The rows' numbers in the data.
    errors : ndarray of shape (n, q)
        (y - C f) / std; NaN where a target is missing.
    groups : ndarray of shape (n,), or None
        The keys of the rows' groups; None where rows are not grouped.
    longest : int
        The rows in order that were held out together, at most.
    """

    numbers: IntArray
    errors: FloatArray
    groups: Keys | None
    longest: int

    @classmethod
    def joined(cls, parts: "Sequence[HeldErrors]") -> "HeldErrors":
        """Return the rows of all parts."""
        numbers = np.concatenate([part.numbers for part in parts])
        errors = np.concatenate([part.errors for part in parts])
        groups = [part.groups for part in parts if part.groups is not None]
        longest = max(part.longest for part in parts)
        return cls(numbers, errors, np.concatenate(groups) if groups else None, longest)

    def run_means(self, length: int) -> tuple[IntArray, FloatArray]:
        """Return which runs of `length` rows there are, (r,), and means over each, (r, 2 q), of errors and of their
        sizes. A target that a run lacks is NaN."""
        errors = np.clip(self.errors, -FARTHEST, FARTHEST)
        values = np.concatenate([errors, np.abs(errors)], axis=1)
        runs, place = np.unique(self.numbers // length, return_inverse=True)
        known = np.isfinite(values)
        sums, counts = np.zeros((len(runs), values.shape[1])), np.zeros((len(runs), values.shape[1]))
        np.add.at(sums, place, np.where(known, values, 0.0))
        np.add.at(counts, place, known)
        return runs, sums / np.where(counts > 0, counts, np.nan)


def independent_length(folds: Sequence[HeldErrors]) -> int:
    """Return how many rows in order make a block whose errors hardly depend on those of the block before.

    The method is that of batch means: the length is doubled until the means of neighbouring blocks are hardly
    correlated (Law & Carson 1979). It is 1 where rows are independent. Both the errors and their sizes must
    be uncorrelated, of each target. Where too few neighbours are there to say so, the length is doubled as well, up to
    the rows that are held out together.
    """
    length, longest = 1, max(fold.longest for fold in folds)
    while length < longest and _are_correlated(folds, length):
        length *= 2
    return min(length, longest)


def _are_correlated(folds: Sequence[HeldErrors], length: int) -> bool:
    """Whether means of neighbouring runs of so many rows are, or are too few to be called uncorrelated."""
    firsts, seconds, means = [], [], []
    for fold in folds:
        runs, values = fold.run_means(length)
        next_to = np.flatnonzero(np.diff(runs) == 1)
        firsts.append(values[next_to])
        seconds.append(values[next_to + 1])
        means.append(values)
    every = np.concatenate(means)
    known = np.isfinite(every)
    counts = np.maximum(known.sum(axis=0), 1)
    centre = np.where(known, every, 0.0).sum(axis=0) / counts
    variance = np.sum(np.where(known, every - centre, 0.0) ** 2, axis=0) / counts
    products = (np.concatenate(firsts) - centre) * (np.concatenate(seconds) - centre)
    pairs = np.isfinite(products).sum(axis=0)
    if pairs.max(initial=0) < LEAST_PAIRS:
        return True
    covariance = np.where(np.isfinite(products), products, 0.0).sum(axis=0) / np.maximum(pairs, 1)
    told = (pairs >= LEAST_PAIRS) & (variance > 0)
    correlation = covariance[told] / variance[told]
    return bool(np.any(correlation > CORRELATED + 1.0 / np.sqrt(pairs[told])))


def _joined(blocks: Sequence[RowBlock]) -> RowBlock:
    """The rows of all blocks, with their groups."""
    rows = RowBlock.joined(blocks)
    groups = [block.groups for block in blocks if block.groups is not None]
    return replace(rows, groups=np.concatenate(groups) if groups else None)


def _rows_of_folds(passed: PassResult) -> dict[int, int]:
    """The rows of each fold that has some."""
    counts = Counter[int]()
    for (number, _), sums in passed.folds.items():
        counts[number] += sums.n
    return {number: n for number, n in counts.items() if n}


def remaining_folds(plan: Plan, fitted: Fitted, passed: PassResult) -> Iterator[Held]:
    """Yield every fold but the first, held out with a posterior; none where one fold is held out by the job, or where
    each would take an iteration of its own."""
    if plan.costs.route != "direct" or plan.frozen().folds.held:
        return
    for fold in sorted(_rows_of_folds(passed))[1:]:
        held = Held.of(plan, fitted, passed, posterior=True, fold=fold)
        if held is not None:
            yield held
            del held  # before the next one is solved


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
    first = None if held is None or not plan.job.solve.conformal else held.errors()
    sample = None if held is None else held.sample()
    is_held = held is not None
    del held  # and its posterior, before those of other folds
    if plan.job.solve.conformal:
        conformal = conformalize(first, remaining_folds(plan, fitted, passed))
        model = replace(model, info={**model.info, "conformal": conformal.config()})
    if not is_held:
        return model
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


def conformalize(first: HeldErrors | None, remaining: Iterable[Held] = ()) -> Conformal:
    """Return how many standard deviations (with noise) the bands of each level must reach, by rows held out.

    Where the errors of rows depend on each other, groups or blocks of rows are exchangeable and rows are not, and the
    `remaining` folds are added to the `first` until there are `ENOUGH_UNITS` of these. Each row is then scored by a fit
    without its fold, as in cross-conformal prediction (Vovk 2015). There is no proof for bands about the fit to all
    rows: even about the fits without folds (CV+) the share that is missed is proved below twice 1 - level only (Barber,
    Candes, Ramdas & Tibshirani 2021). What is measured is in `benchmarks/dependent.py`. Exchangeable rows are those of
    one fold.
    """
    if first is None:
        why = "all that have targets are in one fold (of one group or leaf, or so few)"
        remedy = "set solve.folds.by: rows, or leave conformal out"
        raise InputError(f"solve.conformal: no rows can be held out, because {why}; {remedy}")
    folds = [first]
    if first.groups is None and independent_length(folds) == 1:
        return Conformal.fit(np.abs(first.errors))
    others = iter(remaining)
    while len(np.unique(_units(folds).members)) < ENOUGH_UNITS:
        other = next(others, None)
        if other is None:
            break
        found = other.errors(1.0 / other.plan.frozen().folds.count)
        del other  # its posterior, before the next fold is solved
        folds += [] if found is None else [found]
    errors, units = HeldErrors.joined(folds), _units(folds)
    return Conformal.fit_units(np.abs(errors.errors), units.members, units.kind, block_rows=units.block_rows)


@dataclass(frozen=True, eq=False)
class _Units:
    """The group or block that each row (n,) is in."""

    members: npt.NDArray[Any]
    kind: str
    block_rows: int = 1


def _units(folds: Sequence[HeldErrors]) -> _Units:
    """The groups of rows, or blocks of them whose errors are nearly independent."""
    errors = HeldErrors.joined(folds)
    if errors.groups is not None:
        return _Units(errors.groups, "groups")
    length = independent_length(folds)
    return _Units(errors.numbers // length, "blocks", length)
