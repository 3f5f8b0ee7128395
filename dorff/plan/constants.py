"""The constants that a pass needs from data, computed from a few rows.

`survey_rows` reads the rows and finds scales, length-scales and folds; `constants_of` draws the
features and collects all constants of a pass. Nothing is written here (`dorff.plan.freezing`).
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final, Self

import numpy as np

from dorff.data import Dataset, RowBlock, class_counts
from dorff.errors import InputError
from dorff.features import Drawn, FeatureMap, Recipe, folded, periods_of
from dorff.features.lengthscale_search import Tuned, search_size, tune_lengthscales
from dorff.features.smoothness import tune_smoothness
from dorff.kernels import OperatorKernel
from dorff.kernels.scalar import FloatArray, IntArray
from dorff.moments import MOST_PATTERNS, patterns_of, pinned
from dorff.passes import Configs, FoldRule, FrozenConstants, RowsName
from dorff.passes.frozen import AS_SAMPLED, GROUPED, IN_BLOCKS, Rows
from dorff.plan.costs import SAMPLE_BYTES
from dorff.plan.draft import Draft
from dorff.plan.lattice import box_of, named
from dorff.plan.lengthscale import (
    build_kernels,
    check_all_finite,
    multiplied,
    spread_rows,
    tuned_config,
    with_medians,
)
from dorff.plan.sampled import CHECKED as MOST_CHECKED
from dorff.plan.sampled import (
    FirstLook,
    distance,
    held_out_multiple,
    linear_r2,
    look,
    run_length,
    sample_runs,
)
from dorff.plan.sharing import make_recipe
from dorff.solvers import Setting, spread
from dorff.spec.job import Job

TiedColumns = Sequence[IntArray] | None  # columns that share a scale; None: no input is scaled
# Rows for centres, and for the median distance: few, so that a data set that grows had them from
# the start. Scales (`standardize`) take the first leaf, up to SAMPLE_BYTES.
SMALL_SAMPLE: Final = 256
MEDIAN_SAMPLE: Final = 1000


@dataclass(frozen=True, eq=False, kw_only=True)
class Scaling:
    """The affine map of inputs, (X - `center`) / `scale`.

    Attributes
    ----------
    center, scale : (d,)
        In the inputs' units.
    """

    center: FloatArray
    scale: FloatArray

    @classmethod
    def from_rows(
        cls,
        X: FloatArray,
        weights: FloatArray | None,
        *,
        tied: TiedColumns,
        shift_invariant: bool,
    ) -> Self:
        """Return the scaling of sampled rows.

        Parameters
        ----------
        X : (n, d)
            The inputs.
        weights : (n,), optional
            The weights of the rows (default: 1).
        tied : sequence of integer arrays, optional
            Groups of columns that share a scale; all others have their own. None: every scale is 1.
        shift_invariant : bool
            Whether features depend on differences of inputs alone. If they do not, and inputs are
            not scaled, the center is 0.
        """
        center = np.average(X, axis=0, weights=weights)
        scale = np.ones(X.shape[1])
        if tied is not None:
            variance = np.average((X - center) ** 2, axis=0, weights=weights)
            scale = spread(variance, together=False)
            for columns in tied:
                scale[columns] = spread(variance[columns], together=True)
        elif not shift_invariant:
            center = np.zeros(X.shape[1])
        return cls(center=center, scale=scale)

    def __call__(self, X: FloatArray) -> FloatArray:
        """Scale inputs X (n, d)."""
        return np.asarray((X - self.center) / self.scale)


@dataclass(frozen=True, kw_only=True)
class _KnownKernels:
    """The kernels of a draft, with numbers for the length-scales that are words.

    Attributes
    ----------
    drawn : Configs or None
        The kernels that frequencies are drawn for; None if no length-scale is a word.
    fitted : Configs or None
        The kernels that are fitted; None if they are those of `drawn`, or have no words.
    tuning_rows : RowsName or None
        The rows that length-scales were tuned by; None if none was tuned.
    status : tuple of (str or None), or None
        How the search for each kernel's length-scales ended; None for a kernel that was not tuned.
    smoothness : str or None
        How a Matern kernel compares with the Gaussian; None if they were not compared.
    """

    drawn: Configs | None = None
    fitted: Configs | None = None
    tuning_rows: RowsName | None = None
    status: tuple[str | None, ...] | None = None
    smoothness: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class _FirstRows:
    """The first rows that count, and the name of all rows that were read for them."""

    rows: RowBlock
    name: RowsName


@dataclass(frozen=True, eq=False, kw_only=True)
class _FoldSurvey:
    """The fold rule that a sample of all rows leads to, and the kernels after that."""

    kernels: _KnownKernels
    folds: FoldRule | None = None
    first_look: FirstLook | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Survey:
    """What is known of the rows before any feature is drawn.

    Attributes
    ----------
    rows : RowBlock
        The first rows that count.
    sample : RowsName
        The name of all rows that were read for `rows`.
    scaling : Scaling
        The affine map of the inputs.
    kernels : _KnownKernels
        The kernels, with numbers for their length-scales.
    folds : FoldRule or None
        How rows are assigned to folds; None without folds.
    first_look : FirstLook or None
        Statistics of a sample of all rows; None without folds.
    """

    rows: RowBlock
    sample: RowsName
    scaling: Scaling
    kernels: _KnownKernels
    folds: FoldRule | None
    first_look: FirstLook | None


def survey_rows(draft: Draft) -> Survey:
    """Read the rows that constants come from, and find the length-scales.

    Drafts of the same rows and kernels share a survey, whatever their samplers and numbers of
    features. It is kept while the process runs.
    """
    return _cached_survey(_SurveyKey(name=_survey_name(draft), draft=draft))


@dataclass(frozen=True, kw_only=True)
class _SurveyKey:
    """A draft, compared by the name of its survey."""

    name: str
    draft: Draft = field(compare=False)


def _survey_name(draft: Draft) -> str:
    """Return text that names all that a survey depends on."""
    spec, dataset = draft.spec, draft.dataset
    feature_keys = (
        "recipe",
        "sampler",
        "count",
        "precision",
        "sums",
        "block_rows",
        "read_rows",
    )
    shared = {key: value for key, value in spec.config().items() if key not in feature_keys}
    leaf_starts = None
    if not spec.folds.by_rows and spec.folds.count != 1:
        leaf_starts = [leaf.start for leaf in draft.leaves]
    details = {
        "tuning features": min(search_size(dataset.n)[1], spec.count),
        "checked features": min(MOST_CHECKED, spec.count),
        "box": spec.recipe.get("box") if spec.recipe.get("outside") == "drop" else None,
        "periods": periods_of(spec.sampler, dataset.d).tolist(),
        "kernels": [draft.kernel_configs, draft.drawn_configs],
        "leaf starts": leaf_starts,
        "first leaf": draft.leaves[0].stop if spec.standardize else None,
        "intercept": draft.job.solve.intercept,
        "stamp": dataset.stamp(dataset.first, dataset.n),
        "chosen folds": draft.chose("solve.folds.by"),
        "fold count": draft.job.solve.folds.count,
    }
    return json.dumps([shared, details], sort_keys=True)


@lru_cache(maxsize=4)
def _cached_survey(key: _SurveyKey) -> Survey:
    draft = key.draft
    first_rows = _read_first_rows(draft)
    rows = first_rows.rows

    sources = build_kernels(draft.drawn_configs, draft.dataset.d)
    terms = [base for kernel in sources for _, base in kernel.terms()]
    scaling = Scaling.from_rows(
        rows.X,
        rows.weights,
        tied=_tied_columns(draft),
        shift_invariant=all(term.scalar.shift_invariant for term in terms),
    )

    kernels = _find_lengthscales(draft, rows, scaling)
    fold_survey = _survey_folds(draft, kernels, scaling)
    return Survey(
        rows=rows,
        sample=first_rows.name,
        scaling=scaling,
        kernels=fold_survey.kernels,
        folds=fold_survey.folds,
        first_look=fold_survey.first_look,
    )


def _tied_columns(draft: Draft) -> TiedColumns:
    """Return the groups of columns that share a scale; None if inputs are not scaled."""
    spec, kernel, d = draft.spec, draft.candidates[0], draft.dataset.d
    if not spec.standardize:
        return None
    if kernel.V > 1:
        return kernel.tied(d)
    return (np.arange(d),) if spec.one_scale else ()


def constants_of(draft: Draft, *, narrow: bool = False) -> FrozenConstants:
    """Return the constants that a pass needs, of the first rows and a sample of all.

    Parameters
    ----------
    draft : Draft
        The draft of the job.
    narrow : bool
        Whether rows are known to have more patterns of missing targets than there are sums for.
    """
    dataset, spec, survey = draft.dataset, draft.spec, survey_rows(draft)
    rows, kernels, scaling = survey.rows, survey.kernels, survey.scaling

    recipe = surveyed_recipe(draft, survey)
    landmark_rows: RowsName | None = None
    if recipe.landmarks is not None:
        _, landmark_rows = spread_rows(spec, dataset, dataset.n, targets=False)
        recipe = recipe.among(scaled_rows(draft, survey, targets=False).X, spec.seed)
    features = draw_features(recipe, rows.X, scaling, spec.seed, standardized=spec.standardize)

    run, fold_seed = None, None
    if survey.folds is not None:
        if spec.folds.run in (AS_SAMPLED, IN_BLOCKS):
            run = survey.folds.run
        if survey.folds.seed != spec.folds.seed:
            fold_seed = survey.folds.seed
    first = spec.folds.first
    if rows.groups is not None and run is None:
        first = int(rows.groups[0])

    X = scaling(rows.X)
    distances = None
    if np.isfinite(X).all():
        distances = [distance(kernel, X) for kernel in surveyed_kernels(draft, survey)]
    return FrozenConstants(
        features=features.feature_map,
        draw=features.drawn,
        y0=target_means(rows.Y, rows.weights),
        class_weight=_class_weight(draft.job, dataset),
        sample=survey.sample,
        patterns=_patterns(draft, narrow=narrow),
        first=first,
        fold_seed=fold_seed,
        drawn=kernels.drawn,
        fitted=kernels.fitted,
        tuning_rows=kernels.tuning_rows,
        tuned=kernels.status,
        run=run,
        sampled=None if survey.first_look is None else asdict(survey.first_look),
        distances=distances,
        landmark_rows=landmark_rows,
        smoothness=kernels.smoothness,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class DrawnFeatures:
    """The draw of a recipe, and the feature map of inputs in their own units."""

    drawn: Drawn
    feature_map: FeatureMap


def draw_features(
    recipe: Recipe,
    X: FloatArray,
    scaling: Scaling,
    seed: int,
    *,
    standardized: bool,
) -> DrawnFeatures:
    """Draw the features of a recipe.

    Parameters
    ----------
    recipe : Recipe
        The recipe, for scaled inputs.
    X : (n, d)
        Rows of inputs in their own units, which the kernel has to accept.
    scaling : Scaling
        The affine map of the inputs.
    seed : int
        The seed of the draw.
    standardized : bool
        Whether the scales are standard deviations.

    Raises
    ------
    InputError
        If the kernel does not accept the rows.
    """
    for _, base in recipe.kernel.terms():
        base.check_rows(X, scaled=standardized)
    drawn = recipe.draw(seed)
    feature_map = FeatureMap(drawn.phi, scaling.center, scaling.scale)
    return DrawnFeatures(drawn=drawn, feature_map=feature_map)


def scaled_rows(draft: Draft, survey: Survey, *, targets: bool) -> RowBlock:
    """Return the rows of `spread_rows`, their inputs scaled."""
    rows, _ = spread_rows(draft.spec, draft.dataset, draft.dataset.n, targets=targets)
    return replace(rows, X=survey.scaling(_folded_inputs(draft, rows)))


def surveyed_kernels(draft: Draft, survey: Survey) -> Sequence[OperatorKernel]:
    """Return the kernels that are fitted, with the length-scales of a survey."""
    return _fitted_kernels(draft, survey.kernels)


def surveyed_recipe(draft: Draft, survey: Survey) -> Recipe:
    """Return a draft's recipe with the length-scales and the scaled box of a survey."""
    configs = draft.drawn_configs if survey.kernels.drawn is None else survey.kernels.drawn
    sources = build_kernels(configs, draft.dataset.d)
    box = survey.scaling(box_of(draft.spec)) if draft.recipe.on_lattice else None
    return make_recipe(sources, draft.dataset, draft.job, draft.observe, box)


def target_means(Y: FloatArray, weights: FloatArray | None) -> FloatArray:
    """Return the mean (q,) of the targets Y (n, q) that are not NaN, with weights (n,).

    It is 0 for a target that no row has.
    """
    target_weights = np.isfinite(Y) * (1.0 if weights is None else weights[:, None])
    total = target_weights.sum(axis=0)
    sums = (np.where(target_weights > 0, Y, 0.0) * target_weights).sum(axis=0)
    return np.asarray(sums / np.where(total > 0, total, 1.0))


def _read_first_rows(draft: Draft) -> _FirstRows:
    """Read the first rows that count.

    These are rows that the pass keeps. Their inputs and weights are finite, and so are all targets,
    any of them if some may be missing, or none if rows may be unlabelled. If the pass keeps none of
    the first rows, or none has a target, more are read, up to `SAMPLE_BYTES`, because targets are
    shifted by the mean of those that were found.

    Raises
    ------
    InputError
        If no row counts.
    """
    dataset, spec = draft.dataset, draft.spec
    may_be_unlabelled = draft.job.data.nan == "unlabelled"
    most_rows = _most_sampled_rows(draft)
    count = MEDIAN_SAMPLE if any(spec.words) else SMALL_SAMPLE
    if draft.job.solve.standardize:
        count = min(draft.leaves[0].stop - draft.leaves[0].start, max(SMALL_SAMPLE, most_rows))

    read = dataset.block(dataset.first, min(dataset.n, dataset.first + count))
    kept = spec.kept(read)
    while len(read) < min(most_rows, dataset.rows):
        if len(kept) and (np.isfinite(kept.Y).any() or not may_be_unlabelled):
            break
        count = min(2 * len(read), most_rows, dataset.rows)
        read = dataset.block(dataset.first, dataset.first + count)
        kept = spec.kept(read)

    if may_be_unlabelled:
        columns = kept.X if kept.weights is None else np.column_stack([kept.X, kept.weights])
        kept = kept[np.all(np.isfinite(columns), axis=1)]
    else:
        kept = kept[kept.whole(partial=draft.job.data.nan == "partial")]
    if not len(kept):
        raise _no_row_counts(draft, read)
    return _FirstRows(rows=replace(kept, X=_folded_inputs(draft, kept)), name=named(read))


def _no_row_counts(draft: Draft, read: RowBlock) -> InputError:
    """Return the error for first rows of which none counts."""
    condition = "is free of NaN and infinity"
    if read.weights is not None:
        condition += " and weighs more than 0"
    problem = f"{draft.dataset.path}: none of the first {len(read)} rows {condition}"
    if draft.job.data.outside == "drop" and draft.spec.box is not None:
        remedy = "name the box that the rows lie in, or mend the data"
        return InputError(f"{problem} and lies in data.box; {remedy}")
    return InputError(f"{problem}; mend the data")


def _folded_inputs(draft: Draft, rows: RowBlock) -> FloatArray:
    """Return the inputs (n, d) of rows, those with a period folded into one."""
    return folded(rows.X, periods_of(draft.spec.sampler, draft.dataset.d))


def _most_sampled_rows(draft: Draft) -> int:
    return SAMPLE_BYTES // (8 * (draft.dataset.d + draft.dataset.q))


def _patterns(draft: Draft, *, narrow: bool) -> tuple[str, ...] | None:
    """Return the patterns of missing targets that have sums; None if all have.

    They are the commonest of the first leaf's rows (up to `SAMPLE_BYTES`). If these have no more
    patterns than there are sums for, but all rows do (`narrow`), the patterns that come first after
    them are added. Later rows change nothing.
    """
    dataset, spec, nan = draft.dataset, draft.spec, draft.job.data.nan
    if nan not in ("partial", "unlabelled") or dataset.labels is not None:
        return None
    count = max(SMALL_SAMPLE, _most_sampled_rows(draft))
    stop = min(draft.leaves[0].stop, dataset.first + count)
    counts = _count_patterns(spec.kept(dataset.block(dataset.first, stop)))
    kept = sorted(counts, key=lambda name: (-counts[name], name))
    if len(kept) <= MOST_PATTERNS and not narrow:
        return None
    for start, end in dataset.runs():
        if len(kept) >= MOST_PATTERNS:
            break
        found = _count_patterns(spec.kept(dataset.block(start, end)))
        kept += [name for name in found if name not in kept]
    return tuple(kept[:MOST_PATTERNS])


def _count_patterns(rows: RowBlock) -> Counter[str]:
    """Return how many rows have each pattern of targets, in the order of first appearance.

    Rows without any target are not counted.
    """
    rows = rows[rows.whole(partial=True)]
    row_masks = dict(patterns_of(np.isfinite(rows.Y)))
    in_order = sorted(row_masks, key=lambda name: int(np.argmax(row_masks[name])))
    return Counter({name: int(np.count_nonzero(row_masks[name])) for name in in_order})


def _find_lengthscales(draft: Draft, sample: RowBlock, scaling: Scaling) -> _KnownKernels:
    """Return the kernels with numbers for words.

    The word "median" becomes the median distance between rows of the `sample`. The words for tuned
    length-scales become those of the largest evidence on rows that are spread over all.
    """
    spec, dataset = draft.spec, draft.dataset
    if not any(spec.words):
        return _KnownKernels()
    X = scaling(sample.X)
    drawn = with_medians(draft.drawn_configs, X, sample.weights)
    fitted = []
    if spec.words[1] is not None:
        fitted = with_medians(draft.kernel_configs, X, sample.weights)
    if not spec.tuning:
        return _KnownKernels(drawn=drawn, fitted=fitted or None)

    check_all_finite(spec, dataset)
    rows, name = spread_rows(spec, dataset, dataset.n)
    most_rows, most_features = search_size(dataset.n)
    options: dict[str, Any] = {
        "X": scaling(_folded_inputs(draft, rows)),
        "Y": rows.Y,
        "n_features": min(most_features, spec.count),
        "seed": spec.seed,
        "rows": most_rows,
        "intercept": draft.job.solve.intercept,
        "observe": draft.observe,
        "weights": rows.weights,
        "classes": dataset.labels is not None,
    }
    tune = partial(tune_lengthscales, **options)
    tune_with_smoothness: Callable[..., Tuned] = partial(tune_smoothness, **options)
    if spec.folds.run == GROUPED:  # errors that rows of a group share look like a rough function
        tune_with_smoothness = partial(tune_lengthscales, each=True, **options)
    configs, searches = tuned_config([*drawn, *fitted], tune, tune_with_smoothness)

    split = len(drawn)
    status = [None if search is None else search.status for search in searches]
    comparisons = [search.smoothness for search in searches if search and search.smoothness]
    return _KnownKernels(
        drawn=configs[:split],
        fitted=configs[split:] or None,
        tuning_rows=name,
        status=tuple(status[split:] or status),
        smoothness=comparisons[0] if comparisons else None,
    )


def _survey_folds(draft: Draft, kernels: _KnownKernels, scaling: Scaling) -> _FoldSurvey:
    """Determine the fold rule, and score models on its folds, by a sample of all rows.

    The sample determines the length of a run of rows, if the spec leaves it to the constants, and
    the seed of few groups. The linear model and the multiples of tuned length-scales are scored on
    the folds of the pass, each of them held out in turn.
    """
    dataset, spec = draft.dataset, draft.spec
    if spec.folds.count == 1:
        return _FoldSurvey(kernels=kernels)
    runs = sample_runs(dataset.first, dataset.n)
    read = [spec.kept(dataset.block(start, stop)) for start, stop in runs]
    blocks = [block[block.whole()] for block in read]
    rows = RowBlock.joined(blocks)
    rows = replace(rows, X=scaling(_folded_inputs(draft, rows)))
    kernel = _fitted_kernels(draft, kernels)[0]
    first_look = look(kernel, rows.X, rows.Y, rows.numbers, spec.seed)

    rule = replace(spec.folds, count=draft.job.solve.folds.count, held=0)
    if spec.folds.run in (AS_SAMPLED, IN_BLOCKS):
        always = spec.folds.run == IN_BLOCKS
        rule = replace(rule, run=run_length(first_look, dataset.rows, rule.count, always=always))
    elif rule.run == GROUPED and draft.chose("solve.folds.by"):
        # Groups that the job names are assigned by their keys alone, whatever rows there are.
        groups = [block.groups for block in blocks if block.groups is not None]
        rule = rule.even(np.concatenate(groups))
    if rule.by_rows:
        fold_of = np.concatenate([rule.of(block) for block in blocks])
    else:
        fold_of = _leaf_numbers(draft, rows.numbers) % rule.count

    wants_multiples = bool(spec.tuning) and rule.run == GROUPED and kernels.fitted is None
    with pinned():
        if wants_multiples and kernels.drawn is not None:
            kernels = _multiply_lengthscales(draft, kernels, kernels.drawn, rows, fold_of)
        first_look = replace(first_look, linear=linear_r2(rows.X, rows.Y, fold_of))
    return _FoldSurvey(kernels=kernels, folds=rule, first_look=first_look)


def _leaf_numbers(draft: Draft, row_numbers: Rows) -> Rows:
    """Return the number of the leaf (n,) that each row is in."""
    starts = [leaf.start for leaf in draft.leaves]
    positions = np.searchsorted(starts, row_numbers, side="right") - 1
    return np.array([leaf.number for leaf in draft.leaves])[positions]


def _multiply_lengthscales(
    draft: Draft,
    kernels: _KnownKernels,
    drawn: Configs,
    rows: RowBlock,
    fold_of: Rows,
) -> _KnownKernels:
    """Return tuned kernels with the multiples of their length-scales that predict other folds best.

    Parameters
    ----------
    draft : Draft
        The draft of the job.
    kernels : _KnownKernels
        Kernels that are fitted with their own frequencies.
    drawn : Configs
        Those of `kernels`.
    rows : RowBlock
        Sampled rows with all targets, their inputs scaled.
    fold_of : (n,)
        The fold of each row.
    """
    spec = draft.spec
    has_classes = draft.dataset.labels is not None
    most_features = search_size(draft.dataset.n)[1]

    def best_multiple(kernel: OperatorKernel) -> float:
        setting = Setting(
            kernel,
            draft.dataset.d,
            m=min(most_features, spec.count),
            density=None,
            standardize=not has_classes,
            intercept=draft.job.solve.intercept,
            observe=draft.observe,
            one_scale=spec.one_scale,
            free_scale=has_classes,
        )
        return held_out_multiple(setting, rows, fold_of, spec.seed, spec.count)

    configs, multiples = multiplied(draft.drawn_configs, drawn, best_multiple)
    pairs = zip(kernels.status or (), multiples, strict=True)
    status = [_multiplied_status(ending, multiple) for ending, multiple in pairs]
    return replace(kernels, drawn=configs, status=tuple(status))


def _multiplied_status(status: str | None, multiple: float) -> str | None:
    """Return how a search ended, with the multiple that groups of rows led to, if it is not 1."""
    if status is None or multiple == 1:
        return status
    return f"{status}; times {multiple:g}, by groups that were held out"


def _fitted_kernels(draft: Draft, kernels: _KnownKernels) -> Sequence[OperatorKernel]:
    """Return the kernels that are fitted, with numbers for their length-scales."""
    configs = kernels.fitted or kernels.drawn or draft.kernel_configs
    return build_kernels(configs, draft.dataset.d)


def _class_weight(job: Job, dataset: Dataset) -> FloatArray | None:
    """Return the weight (q,) of each class's rows; None if the job asks for none.

    The weights of "balanced" are n / (K n_k), as in scikit-learn, of the counts (summed weights)
    when the first plan is made: rows that are appended later do not change them.
    """
    class_weight = job.solve.class_weight
    if class_weight == "none":
        return None
    if class_weight == "balanced":
        counts = np.array(class_counts(dataset), dtype=np.float64)
        is_seen = counts > 0
        balanced = counts.sum() / (len(counts) * np.where(is_seen, counts, 1.0))
        return np.where(is_seen, balanced, 1.0)
    weights = dict(class_weight)
    return np.array([weights.get(label, 1.0) for label in dataset.target_columns])
