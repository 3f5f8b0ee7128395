"""`sampler: auto`: which features are closest to a job's kernels, once rows told their length-scales; and how far
features on a lattice are from a kernel.

A lattice is taken where it is close enough for so many rows: its sums serve every kernel that it covers, and a row
costs the same whatever the number of features. Else landmarks, where on a sample they predict rows that were held out
at least as well as random features do, and leave out less of the kernel than the lattice does; else whichever of a
lattice and random features is closer to the kernel.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

import numpy as np

from dorff.data import Dataset
from dorff.errors import InputError
from dorff.features import FeatureMap, Projected, Recipe, estimates_in_parts, sampler_of
from dorff.features.lengthscale_search import search_size
from dorff.frequencies import Lattice
from dorff.frequencies.aliasing import LatticeBox, aliases
from dorff.kernels import BaseKernel, CurlFree, Decomposable, FloatArray, OperatorKernel
from dorff.kernels.stretched import Stretched
from dorff.model.weights import Density, operator_weights
from dorff.moments import Kind
from dorff.plan.constants import Survey, scaled_rows, survey_rows, surveyed_kernels, surveyed_recipe
from dorff.plan.draft import Draft, draft_of
from dorff.plan.landmark_choice import (
    Comparison,
    check_landmarks,
    compare_samplers,
    count_landmarks,
)
from dorff.plan.lattice import box_of, is_suitable, own_recipes, told_box
from dorff.plan.lengthscale import lengthscale_words
from dorff.plan.resolving import Resolved, begun_specs
from dorff.solvers import Setting
from dorff.spec.job import Job
from dorff.spec.part import Part
from dorff.spec.registry import SAMPLERS

ERRORS: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # of lattices that are tried
USUAL_ERROR: Final = 1e-3  # of a lattice for which landmarks are no choice
FEW_SHARE: Final = 0.25  # of the features that there may be
MOST_INPUTS: Final = 5  # that vary
FEW: Final = 2  # inputs, of which a lattice serves about any length-scale
LAGS: Final = 512
FAR: Final = 0.1  # from the kernel: features that predict something else
MOST_WANTED: Final = 2**16  # features that a lattice is said to need, times 2^d: some tens of MB to make them
#: How refusals begin that a lattice is the reason of: no rule, or too few of its leaves, which are large.
OF_LATTICES: Final = ("sampler: ", "solve.folds", "data.window")
NEXT_TO_NOTHING: Final = 1e-5  # of k(x, x), that a lattice may leave out of whatever is fitted
MOST_LANDMARKS: Final = 4096  # that are chosen by themselves


class NotBetter(InputError):
    """Why a job's features are not on a lattice, or not of landmarks."""


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A draft, how many features it has, the share of k(x, x) that they leave out, and why it is taken."""

    draft: Draft
    features: int
    missing: float
    why: str

    def chosen(self) -> Draft:
        """Return the draft, with the reason beside its sampler."""
        resolved = [
            replace(choice, why=self.why) if choice.key == "features.sampler" else choice
            for choice in self.draft.resolved
        ]
        return replace(self.draft, resolved=tuple(resolved))


def suitable_drafts(resolved: Resolved, plain: Draft) -> Iterator[Draft]:
    """Yield the drafts of a job that leaves the sampler to dorff, the best first.

    `plain` is the one with random features, which comes last, for those whose memory the others do not fit. Raises
    InputError for a job that cannot be done.
    """
    survey, why = survey_rows(plain), list[str]()
    known = surveyed_recipe(plain, survey)
    comparison: Comparison | None = None
    candidates = list[_Candidate]()
    try:
        _check_landmarks(resolved.job, plain, known)
        comparison = _compare(plain, known, survey)
    except NotBetter as refused:
        why.append(f"landmarks: {_reason(refused)}")
    try:
        candidates.append(_on_lattice(resolved, plain, survey, comparison))
    except InputError as refused:
        if not isinstance(refused, NotBetter) and not str(refused).startswith(OF_LATTICES):
            raise
        why.append(f"lattice: {_reason(refused)}")
    close = comparison is not None and any(
        candidate.missing <= max(comparison.enough, NEXT_TO_NOTHING) and candidate.features < comparison.fitted
        for candidate in candidates
    )
    if comparison is not None and not close:
        if comparison.prefers_landmarks:
            candidates.append(_of_landmarks(resolved, plain, survey, comparison))
        else:
            why.append(f"landmarks: {comparison.sentence}")
    for candidate in sorted(candidates, key=attrgetter("missing")):
        yield candidate.chosen()
    text = "; ".join(why or ["no other features fit the memory"])
    yield plain.with_choice("features.sampler", plain.recipe.sampler.config(), text)


def begun_drafts(resolved: Resolved, plain: Draft) -> Iterator[Draft]:
    """Yield every draft that a job's state may have been begun with: by what is in it, and by random features.

    Those come last: where the job chose others first, and later named random features for a while, they are no choice.
    """
    why = "as the sums in the state are"
    kinds = ("landmarks", "lattice")
    configs = [spec.sampler for spec in begun_specs(resolved.job) if spec.sampler.get("type") in kinds]
    distinct = {json.dumps(config, sort_keys=True): config for config in configs}
    for config in distinct.values():
        entry = SAMPLERS.get(config["type"])
        assert entry is not None
        options = entry.options.model_validate(config)
        with suppress(InputError):  # no rule for this job, so that none was begun with it
            yield draft_of(resolved.filled("features.sampler", options, why))
    yield plain.with_choice("features.sampler", plain.recipe.sampler.config(), why)


def _reason(refused: InputError) -> str:
    return str(refused).partition(";")[0].removeprefix("sampler: ")


def _options(word: str, **options: float) -> Part:
    entry = SAMPLERS.get(word)
    assert entry is not None
    return entry.options.model_validate({"type": word, **options})


def _lattices() -> Iterator[Part]:
    """The lattices that `sampler: auto` may stand for, those of the least error first."""
    return (_options("lattice", error=error) for error in ERRORS)


def _on_lattice(resolved: Resolved, plain: Draft, survey: Survey, comparison: Comparison | None) -> _Candidate:
    """The draft with features on the lattice that is closest to the kernels; InputError where random ones are.

    Of lattices those of the largest error that is small `enough` have the fewest features; where that is more than
    there may be, those of larger ones. Without a comparison the least error is tried where it takes few features.
    """
    _check_lattice(resolved.job, plain.recipe, plain.dataset)
    tried = list[tuple[Draft, list[Recipe]]]()
    for error in ERRORS if comparison is None else _errors_from(comparison.enough):
        draft = draft_of(resolved.filled("features.sampler", _options("lattice", error=error), ""))
        recipes = own_recipes(surveyed_recipe(draft, survey), surveyed_kernels(draft, survey))
        many = any(recipe.m > FEW_SHARE * recipe.n_features for recipe in recipes)
        if comparison is None and error < USUAL_ERROR and (error > ERRORS[0] or many):
            continue
        tried.append((draft, recipes))
        if not any(recipe.cut for recipe in recipes):
            break
    box = survey.scaling(box_of(tried[0][0].own))
    distances = [kernel_distance(recipes, box) for _, recipes in tried]
    best = int(np.argmin(distances))
    draft, recipes = tried[best]
    random = kernel_distance([surveyed_recipe(plain, survey)], box)
    m, kind = max(recipe.m for recipe in recipes), plain.recipe.sampler.config()["type"]
    why = f"{m} features of a lattice are {distances[best]:.2g} from the kernel"
    why += f", {plain.recipe.m} of {kind} {random:.2g} (root mean square, over k(x, x))"
    if min(distances[best], random) > FAR:
        why += ", so that neither are close: raise features.count"
    if distances[best] > random:
        raise NotBetter(why)
    missing = max(_lattice_missing(recipe) for recipe in recipes)
    return _Candidate(draft=draft, features=m, missing=missing, why=why)


def _errors_from(enough: float) -> tuple[float, ...]:
    """Return the errors of lattices to be tried, beginning with the largest that is small enough."""
    first = max((error for error in ERRORS if error <= enough), default=ERRORS[0])
    return tuple(error for error in ERRORS if error >= first)


def _lattice_missing(recipe: Recipe) -> float:
    """Return the share of k(x, x) that features on a lattice leave out, or get wrong."""
    kernel = recipe.kernel.fix(recipe.d, recipe.p, np.eye(recipe.p))
    law = recipe.draw(0).density
    return 0.0 if law is None else max(kernel_error(kernel, law, recipe), 0.0)


def _check_lattice(job: Job, recipe: Recipe, dataset: Dataset) -> None:
    """Raise NotBetter, with the reason, for a job with these features that is none for a lattice. Looks at no row."""
    recipe = replace(recipe, sampler=sampler_of(next(_lattices()).model_dump(), recipe.kernel))
    if not is_suitable(job, recipe):
        raise NotBetter("what the job asks for needs sums of the features' products")
    _check_unseeded(job, recipe)
    if len(job.features.counts) > 1 or job.features.kernels or recipe.kernel.concatenated:
        raise NotBetter("the job names counts to choose from, kernels to draw for, or a concatenated sum")
    unsaid = any(lengthscale_words([kernel.model_dump() for kernel in job.kernels])) or job.solve.standardize is True
    most = FEW if unsaid else MOST_INPUTS
    if dataset.d > most and told_box(dataset) is None and job.data.box is None:
        more = " whose length-scale is found from the rows" if unsaid else ""
        raise NotBetter(f"a lattice{more} is for {most} inputs or fewer that vary, here are {dataset.d}")


def _check_unseeded(job: Job, recipe: Recipe) -> None:
    """Raise NotBetter for a job that says how frequencies are to be drawn."""
    fields = [base for _, base in recipe.kernel.terms() if not isinstance(base, Decomposable)]
    if job.features.seed or any(base.measure is not None for base in fields):
        raise NotBetter("features.seed or a kernel's measure is given, for frequencies that are drawn")


def _check_landmarks(job: Job, plain: Draft, known: Recipe) -> None:
    """Raise NotBetter, with the reason, for a job that landmarks do not suit."""
    _check_unseeded(job, plain.recipe)
    if len(job.kernels) > 1 or job.features.kernels:
        raise NotBetter("they are of one kernel, and the job lists several, or some to draw for")
    if known.n_features > MOST_LANDMARKS:
        raise NotBetter(f"features.count is {known.n_features}, of which rows of a sample are too few")
    try:
        check_landmarks(known)
    except InputError as refused:
        raise NotBetter(_reason(refused)) from refused


def _of_landmarks(resolved: Resolved, plain: Draft, survey: Survey, comparison: Comparison) -> _Candidate:
    """The draft with features of landmarks: as many as leave out little, where the job does not name a number."""
    rows, known = scaled_rows(plain, survey, targets=False), surveyed_recipe(plain, survey)
    found = count_landmarks(known, rows.X, comparison.enough_of_landmarks, plain.spec.seed)
    if plain.chose("features.count"):
        why = f"of {known.n_features:,} at most: so many leave out {found.missing:.1g} of k(x, x)"
        resolved = resolved.filled("features.count", found.count, why)
    draft = draft_of(resolved.filled("features.sampler", _options("landmarks"), ""))
    return _Candidate(draft=draft, features=draft.recipe.m, missing=found.missing, why=comparison.sentence)


def _compare(plain: Draft, known: Recipe, survey: Survey) -> Comparison:
    """Predict the folds of a sample by landmarks and by random features of the known length-scales."""
    dataset = plain.dataset
    most_rows, columns = search_size(dataset.n)
    count = min(columns, known.n_features)
    try:
        rows = scaled_rows(plain, survey, targets=True)
    except InputError:  # none has all targets
        return Comparison.none(fitted=dataset.rows, features=count, most_features=known.n_features)
    classes = dataset.labels is not None
    setting = Setting(
        surveyed_kernels(plain, survey)[0],
        dataset.d,
        count,
        None,
        not classes,
        plain.job.solve.intercept,
        plain.observe,
        one_scale=plain.spec.one_scale,
        free_scale=classes,
    )
    fold_of = survey.folds.of(rows) if survey.folds is not None and survey.folds.by_rows else None
    seed, fitted = plain.spec.seed, dataset.rows
    return compare_samplers(setting, known, rows, fold_of, most_rows=most_rows, fitted=fitted, seed=seed)


def kernel_distance(recipes: Sequence[Recipe], box: FloatArray) -> float:
    """Return how far features are from their kernels, over tr K(x, x).

    That is the root mean square of the error of tr K(x, z) over pairs of points, of which some are
    about a length-scale apart.

    Parameters
    ----------
    recipes : sequence of Recipe
        The features, each of a kernel of its own. The largest distance is returned.
    box : (2, d)
        The box that the points lie in.
    """
    return max(_trace_distance(recipe, box) for recipe in recipes)


def _trace_distance(recipe: Recipe, box: FloatArray) -> float:
    """Return the `kernel_distance` of one recipe."""
    recipe = replace(recipe, intercept=False).over(box)
    drawn = recipe.draw(0)
    lags = _lags(recipe.kernel, np.ptp(box, axis=0))
    origin = np.zeros((1, box.shape[1]))
    sizes = operator_weights(recipe.kernel, recipe.m, drawn.density).sizes
    estimates = drawn.phi.transform(lags) @ (drawn.phi.transform(origin)[0] * sizes)
    terms = recipe.kernel.terms()
    errors = estimates - sum(weight * _traces(base, lags, recipe.p) for weight, base in terms)
    return float(np.sqrt(np.mean(errors**2))) / recipe.kernel.trace(recipe.d, recipe.p)


def _lags(kernel: OperatorKernel, sides: FloatArray) -> FloatArray:
    """Return differences (n, d) of points in a box of `sides` (d,).

    An equal number are of random points, and about a length-scale long for each term.
    """
    rng = np.random.default_rng(0)
    count = LAGS // (1 + len(kernel.terms()))
    uniform = np.diff(rng.uniform(0.0, 1.0, (2, count, len(sides))), axis=0)[0] * sides
    lags = [uniform]
    for _, base in kernel.terms():
        if isinstance(base.scalar, Stretched):
            spread = 0.7 / base.scalar.stretch(len(sides))
            normal = spread * rng.standard_normal(uniform.shape)
            lags.append(np.clip(normal, -sides, sides))
    return np.concatenate(lags)


def _traces(base: BaseKernel, lags: FloatArray, p: int) -> FloatArray:
    """Return tr K(x, z) (n,) for the differences x - z (n, d)."""
    origin = np.zeros((1, lags.shape[1]))
    if isinstance(base, Decomposable):
        return np.asarray(base.scalar.gram(lags, origin)[:, 0] * base.trace(lags.shape[1], p))
    return np.asarray(np.trace(base.gram(lags, origin)[:, 0], axis1=1, axis2=2))


def kernel_error(kernel: OperatorKernel, density: Density, recipe: Recipe) -> float:
    """Return a bound of the error of features on a lattice, over k(x, x), which is about reached.

    That is the weight of all frequencies that are left out, and the largest sum of the copies of
    the kernel that a lattice adds. It does not contain a constant that a free intercept or the
    weight of the frequency 0 makes up for.

    Parameters
    ----------
    kernel : OperatorKernel
        The kernel, fixed for the data's inputs and outputs.
    density : Density
        The frequencies of the features, and their densities.
    recipe : Recipe
        The recipe of the features, for scaled inputs in a known box.
    """
    box = _periodic_box(density, recipe)
    terms = [(weight, base) for weight, base in kernel.terms() if weight > 0]
    p = max(_output_count(base, recipe) for _, base in terms)
    at_zero = np.zeros((p, p))  # K(0)
    all_frequencies = np.zeros((p, p))  # the part of K(0) of all frequencies of the lattice but 0
    zero_lost = 1.0 - _zero_kept(density)
    copies = 0.0
    for weight, base in terms:
        scalar = base.scalar
        assert isinstance(scalar, Stretched)
        added = aliases(scalar, box, derivatives=not isinstance(base, Decomposable))
        value = weight * _kernel_matrix(base, added.at_zero)
        at_zero += value
        all_frequencies += value + weight * _kernel_matrix(base, added.added_at_zero)
        constant = added.centre() if recipe.intercept else zero_lost * added.constant
        size = float(np.trace(value))
        copies += size * (added.largest(constant) + _constant_input_error(base, box, recipe))

    left_out = all_frequencies - _weight_of_frequencies(kernel, density)
    largest_entry = float(np.abs(left_out).max() / np.abs(at_zero).max())
    trace = float(np.trace(left_out) / np.trace(at_zero))
    return max(largest_entry, trace) + copies / float(np.trace(at_zero))


def _output_count(base: BaseKernel, recipe: Recipe) -> int:
    """Return the number of outputs: of several quantiles a kernel has more than its recipe."""
    return len(_output_matrix(base)) if isinstance(base, Decomposable) else recipe.p


def _output_matrix(kernel: Decomposable) -> FloatArray:
    """Return A (p, p) as the features have it: the identity if it is yet to be learned."""
    root = kernel.root(np.zeros((1, 1)))[0]
    return np.asarray(root.T @ root)


def _kernel_matrix(base: BaseKernel, entries: FloatArray) -> FloatArray:
    """Return the value (p, p) of a kernel.

    Parameters
    ----------
    base : BaseKernel
        The kernel.
    entries : (1,) or (d (d + 1) / 2,)
        The value of k0 for decomposable kernels, else those of -d_i d_j k0 for i <= j.
    """
    if isinstance(base, Decomposable):
        return np.asarray(entries[0] * _output_matrix(base))
    d = round((np.sqrt(8 * len(entries) + 1) - 1) / 2)
    hessian = np.zeros((d, d))
    hessian[np.triu_indices(d)] = entries
    hessian = hessian + np.triu(hessian, 1).T
    if isinstance(base, CurlFree):
        return hessian
    return np.asarray(np.trace(hessian) * np.eye(d) - hessian)


def _weight_of_frequencies(kernel: OperatorKernel, density: Density) -> FloatArray:
    """Return the part (p, p) of K(0) that all frequencies of the features but 0 add up to."""
    omega = density[0]
    is_zero = ~np.any(_lattice_points(omega), axis=1)
    weights = operator_weights(kernel, 2 * len(omega), density)
    gain = weights.gain[: len(omega)][~is_zero]
    if len(weights.root) == 1:
        root = weights.root[0]
        return np.asarray(float(np.sum(gain**2)) * (root.T @ root))
    psi = gain[:, None, None] * weights.root[: len(omega)][~is_zero]
    return np.asarray(np.einsum("arp,arq->pq", psi, psi))


def _periodic_box(density: Density, recipe: Recipe) -> LatticeBox:
    """Return the box of the inputs, with the periods that these frequencies give it."""
    assert isinstance(recipe.sampler, Lattice)
    box = recipe.lattice_box
    points = np.abs(_lattice_points(density[0]))
    steps = np.min(np.where(points > 0, points, np.inf), axis=0)
    # If there are few frequencies, all of them may be 0 along an input.
    has_step = np.isfinite(steps) & np.isfinite(box.periods)
    periods = np.where(has_step, 2.0 * np.pi / np.where(has_step, steps, 1.0), box.periods)
    return replace(box, periods=periods)


def _constant_input_error(base: BaseKernel, box: LatticeBox, recipe: Recipe) -> float:
    """Return the change of a kernel along inputs that vary too little for the lattice.

    It is relative to k(0).
    """
    assert isinstance(recipe.sampler, Lattice)
    assert recipe.sampler.sides is not None
    lags = np.diag(np.where(box.sides > 0, 0.0, recipe.sampler.sides))
    lags = lags[np.any(lags, axis=1)]
    if not len(lags):
        return 0.0
    origin = np.zeros((1, recipe.d))
    at_zero = base.gram(origin, origin)[0, 0]
    changes = np.abs(base.gram(lags, origin)[:, 0] - at_zero)
    return float(changes.max(axis=(1, 2)).sum() / np.abs(at_zero).max())


def _lattice_points(omega: FloatArray) -> FloatArray:
    """Return frequencies (D, d) without their components along constant inputs."""
    if omega.ndim == 2:
        return omega
    return np.where(np.ptp(omega, axis=1) == 0, omega[:, 0], 0.0)


def _zero_kept(density: Density) -> float:
    """Return the share of its weight that the frequency 0 has kept; 1 if it is not there."""
    omega, log_density, _ = density
    is_zero = ~np.any(_lattice_points(omega), axis=1)
    if not is_zero.any() or is_zero.all():
        return 1.0
    log_densities = log_density.reshape(len(log_density), -1)[:, 0]
    ratio = np.exp(log_densities[~is_zero][0] - log_densities[is_zero][0])
    return float(ratio * 2.0)  # any other frequency stands for its negative too


def with_feature_error(setting: Setting, recipe: Recipe, features: FeatureMap) -> Setting:
    """Return a setting with what is known of the error of its features.

    Landmarks leave out a part of k(x, x) that depends on x; a lattice leaves out the same share
    everywhere. If frequencies are one sample, either half of them estimates the kernel.

    Parameters
    ----------
    setting : Setting
        The setting of the drawn features.
    recipe : Recipe
        Their recipe, for scaled inputs.
    features : FeatureMap
        The drawn features.
    """
    density, missing = setting.density, 0.0
    if recipe.on_lattice and density is not None and density[2] is None:
        fixed = setting.kernel.fix(recipe.d, recipe.p, np.eye(recipe.p))
        missing = max(kernel_error(fixed, density, recipe), 0.0)
    phi = features.phi
    return replace(
        setting,
        landmarks=recipe.landmarks is not None,
        missing=missing,
        halves=recipe.sampler.sampled and estimates_in_parts(features, density),
        unequal_weights=phi.unequal_weights if isinstance(phi, Projected) else None,
    )


@dataclass(frozen=True, kw_only=True)
class LatticeError:
    """The `kernel_error` of features on a lattice, and a warning if more features are needed."""

    error: float
    warning: str | None


def measure_lattice(
    kernel: OperatorKernel,
    density: Density,
    recipe: Recipe,
    *,
    sums: Kind,
    auto: bool,
) -> LatticeError:
    """Measure the error of features on a lattice.

    Parameters
    ----------
    kernel : OperatorKernel
        The kernel, fixed for the data's inputs and outputs.
    density : Density
        The frequencies of its features, and their densities.
    recipe : Recipe
        The recipe that all kernels share: of the lattice if `sums` are of exponentials, where each
        kernel has features of its own, else of the features.
    sums : Kind
        The kind of the sums of the pass.
    auto : bool
        Whether the sampler is chosen automatically. An error that other samplers have about as
        well is no reason for a warning then.
    """
    error = kernel_error(kernel, density, recipe)
    wanted = recipe.sampler.config()["error"]
    m = 2 * len(density[0])
    tolerance = 2.0 * wanted
    if auto:
        tolerance = max(tolerance, m**-0.5)
    if error <= tolerance:
        return LatticeError(error=error, warning=None)

    problem = f"the lattice's {m:,} features may be off the kernel by {error:.1g}"
    need = f"{wanted:g} was wanted{_needed_features(kernel, recipe, m=m, sums=sums)}"
    remedy = "raise features.count"
    if auto:
        remedy += ", or set features.sampler: {type: orthogonal}"
    return LatticeError(error=error, warning=f"{problem}, {need}; {remedy}")


def _needed_features(kernel: OperatorKernel, recipe: Recipe, *, m: int, sums: Kind) -> str:
    """Return words for how many features the wanted error takes, if that is more than m."""
    wanted = recipe.sampler.config()["error"]
    most_features = MOST_WANTED >> recipe.d
    if recipe.lattice is not None:
        most_features //= len(recipe.lattice.beside)
    words, count = "", 2 * m
    with suppress(InputError):  # a lattice for other kernels serves this one by chance
        while count <= most_features:
            larger = recipe.further(count)
            if sums is Kind.TOEPLITZ:
                larger = own_recipes(larger, [kernel])[0]
            density = larger.draw(0).density
            if density is not None and kernel_error(kernel, density, larger) <= 2.0 * wanted:
                return f", which takes about {larger.m:,}" if larger.m > m else ""
            words, count = f", which takes more than {count:,}", 2 * count
    return words


def warn_of_lattice(
    recipe: Recipe,
    kernels: Sequence[OperatorKernel],
    *,
    sums: Kind,
    auto: bool,
) -> list[str]:
    """Return the warning for the kernel whose features have the largest error; empty without one.

    Parameters
    ----------
    recipe, sums, auto
        As of `measure_lattice`.
    kernels : sequence of OperatorKernel
        The kernels of the job.
    """
    recipes = [recipe] * len(kernels)
    if sums is Kind.TOEPLITZ:
        recipes = own_recipes(recipe, kernels)
    fixed = [kernel.fix(recipe.d, recipe.p, np.eye(recipe.p)) for kernel in kernels]
    densities = [own.draw(0).density for own in recipes]
    errors = dict[int, float]()
    for number, density in enumerate(densities):
        if density is not None:
            errors[number] = kernel_error(fixed[number], density, recipes[number])

    for number in sorted(errors, key=lambda number: -errors[number]):
        density = densities[number]
        assert density is not None
        warning = measure_lattice(fixed[number], density, recipe, sums=sums, auto=auto).warning
        if warning is not None:
            return [f"kernel[{number}]: {warning}" if len(kernels) > 1 else warning]
    return []
