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
    TOO_FEW,
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
    found = count_landmarks(known, rows.X, comparison.enough, plain.spec.seed)
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
        return Comparison.none(TOO_FEW, fitted=dataset.rows, features=count)
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


def kernel_distance(each: Sequence[Recipe], box: FloatArray) -> float:
    """The root mean square of what tr K(x, z) differs by from that of a recipe's features, over tr K(x, x), on pairs of
    points in a box, some of them about a length-scale apart: of recipes of several kernels the largest."""
    sides, zero = np.ptp(box, axis=0), np.zeros((1, box.shape[1]))
    distances = list[float]()
    for recipe in (replace(one, intercept=False).over(box) for one in each):
        drawn, lags, terms = recipe.draw(0), _lags(recipe.kernel, sides), recipe.kernel.terms()
        sizes = operator_weights(recipe.kernel, recipe.m, drawn.density).sizes
        made = drawn.phi.transform(lags) @ (drawn.phi.transform(zero)[0] * sizes)
        away = made - sum(weight * _trace_of(base, lags, recipe.p) for weight, base in terms)
        distances.append(float(np.sqrt(np.mean(away**2))) / recipe.kernel.trace(recipe.d, recipe.p))
    return max(distances)


def _lags(kernel: OperatorKernel, sides: FloatArray) -> FloatArray:
    """Differences (n, d) of pairs of points in a box: half of them at random, the others about a length-scale apart."""
    rng, each = np.random.default_rng(0), LAGS // (1 + len(kernel.terms()))
    anywhere = np.diff(rng.uniform(0.0, 1.0, (2, each, len(sides))), axis=0)[0] * sides
    near = [
        np.clip(0.7 / base.scalar.stretch(len(sides)) * rng.standard_normal(anywhere.shape), -sides, sides)
        for _, base in kernel.terms()
        if isinstance(base.scalar, Stretched)
    ]
    return np.concatenate([anywhere, *near])


def kernel_error(kernel: OperatorKernel, density: Density, recipe: Recipe) -> float:
    """Return how far features on a lattice may be from a kernel on the box, over k(x, x).

    That is the weight of all frequencies that are left out, and the largest sum of the kernel's copies: a bound, which
    is about reached. A constant that a free intercept takes, or that the weight of the frequency 0 makes up for, is no
    part of it.

    Parameters
    ----------
    kernel : OperatorKernel
        The kernel that is meant, fixed for the data's inputs and outputs.
    density : Density
        The frequencies of the features.
    recipe : Recipe
        What they were made by, for scaled inputs in a known box.
    """
    box = _continued(density, recipe)
    terms = [(weight, base) for weight, base in kernel.terms() if weight > 0]
    # Of several quantiles a kernel has more outputs than the targets that the features were drawn for.
    p = max(len(_output_matrix(base)) if isinstance(base, Decomposable) else recipe.p for _, base in terms)
    wanted, continued = np.zeros((2, p, p))  # K(0), and what all frequencies but 0 make of it
    copies = 0.0
    for weight, base in terms:
        scalar = base.scalar
        assert isinstance(scalar, Stretched)
        added = aliases(scalar, box, derivatives=not isinstance(base, Decomposable))
        own = weight * _matrix(base, added.at_zero)
        wanted += own
        continued += own + weight * _matrix(base, added.added_at_zero)
        taken = added.centre() if recipe.intercept else (1.0 - _zero_kept(density)) * added.constant
        copies += float(np.trace(own)) * (added.largest(taken) + _unseen(base, box, recipe))
    omega = density[0]
    is_zero = ~np.any(_lattice_points(omega), axis=1)
    weights = operator_weights(kernel, 2 * len(omega), density)
    gain, root = weights.gain[: len(omega)][~is_zero], weights.root
    if len(root) == 1:
        kept = float(np.sum(gain**2)) * (root[0].T @ root[0])
    else:
        psi = gain[:, None, None] * root[: len(omega)][~is_zero]
        kept = np.einsum("arp,arq->pq", psi, psi)
    left_out = continued - kept
    of_entries = float(np.abs(left_out).max() / np.abs(wanted).max())
    return max(of_entries, float(np.trace(left_out) / np.trace(wanted))) + copies / float(np.trace(wanted))


def _output_matrix(kernel: Decomposable) -> FloatArray:
    """Return A (p, p) as the features have it: the identity where it is yet to be learned."""
    root = kernel.root(np.zeros((1, 1)))[0]
    return np.asarray(root.T @ root)


def _matrix(base: BaseKernel, entries: FloatArray) -> FloatArray:
    """Return the value (p, p) that a kernel makes of k0, or of the entries (i <= j) of -d_i d_j k0."""
    if isinstance(base, Decomposable):
        return np.asarray(entries[0] * _output_matrix(base))
    d = round((np.sqrt(8 * len(entries) + 1) - 1) / 2)
    values = np.zeros((d, d))
    values[np.triu_indices(d)] = entries
    values = values + np.triu(values, 1).T
    return values if isinstance(base, CurlFree) else np.trace(values) * np.eye(d) - values


def _continued(density: Density, recipe: Recipe) -> LatticeBox:
    """Return the box, and the periods with which these frequencies continue it."""
    assert isinstance(recipe.sampler, Lattice)
    box = recipe.lattice_box
    points = np.abs(_lattice_points(density[0]))
    least = np.min(np.where(points > 0, points, np.inf), axis=0)
    seen = np.isfinite(least) & np.isfinite(box.periods)  # of too few frequencies some are 0 along an input
    periods = np.where(seen, 2.0 * np.pi / np.where(seen, least, 1.0), box.periods)
    return replace(box, periods=periods)


def _unseen(base: BaseKernel, box: LatticeBox, recipe: Recipe) -> float:
    """Return by how much a kernel changes, over k(0), along inputs that vary by too little for the lattice."""
    assert isinstance(recipe.sampler, Lattice)
    assert recipe.sampler.sides is not None
    lags = np.diag(np.where(box.sides > 0, 0.0, recipe.sampler.sides))
    lags = lags[np.any(lags, axis=1)]
    if not len(lags):
        return 0.0
    origin = np.zeros((1, recipe.d))
    at_zero, values = base.gram(origin, origin)[0, 0], base.gram(lags, origin)[:, 0]
    return float(np.abs(values - at_zero).max(axis=(1, 2)).sum() / np.abs(at_zero).max())


def _lattice_points(omega: FloatArray) -> FloatArray:
    """Return frequencies (D, d) without what they are along constant inputs."""
    if omega.ndim == 2:
        return omega
    return np.where(np.ptp(omega, axis=1) == 0, omega[:, 0], 0.0)


def _zero_kept(density: Density) -> float:
    """Return the share of its weight that the frequency 0 has kept; 1 where there is none."""
    omega, log_density, _ = density
    is_zero = ~np.any(_lattice_points(omega), axis=1)
    if not is_zero.any() or is_zero.all():
        return 1.0
    by = log_density.reshape(len(log_density), -1)[:, 0]
    return float(np.exp(by[~is_zero][0] - by[is_zero][0]) * 2.0)


def with_feature_error(setting: Setting, recipe: Recipe, features: FeatureMap) -> Setting:
    """Return the setting of drawn features with what is known of how far they are from its kernel.

    Of landmarks that they leave out a part of k(x, x), of a lattice which share of it, of one sample of frequencies
    that either half of them estimates the kernel. `recipe` is of scaled inputs.
    """
    density, missing = setting.density, 0.0
    if recipe.on_lattice and density is not None and density[2] is None:
        fixed = setting.kernel.fix(recipe.d, recipe.p, np.eye(recipe.p))
        missing = max(kernel_error(fixed, density, recipe), 0.0)
    halves = recipe.sampler.sampled and estimates_in_parts(features, density)
    unequal = features.phi.unequal_weights if isinstance(features.phi, Projected) else None
    return replace(
        setting, landmarks=recipe.landmarks is not None, missing=missing, halves=halves, unequal_weights=unequal
    )


def shortfall(
    kernel: OperatorKernel, density: Density, of: Recipe, *, sums: Kind, auto: bool
) -> tuple[float, list[str]]:
    """The error as above, and a sentence where it is more than was wanted. Where the sampler was left to dorff (`auto`)
    one that others have about as well is none to speak of. `of` is what all kernels share: the lattice, and features
    of their own on it where `sums` are of exponentials, else the features."""
    reached, error, m = kernel_error(kernel, density, of), of.sampler.config()["error"], 2 * len(density[0])
    if reached <= max(2.0 * error, m**-0.5 * auto):
        return reached, []
    takes, needed = "", 2 * m
    most = (MOST_WANTED >> of.d) // (1 if of.lattice is None else len(of.lattice.beside))
    with suppress(InputError):  # a lattice for other kernels serves this one by chance
        while needed <= most:
            more = of.further(needed)
            more = own_recipes(more, [kernel])[0] if sums is Kind.TOEPLITZ else more
            law = more.draw(0).density
            if law is not None and kernel_error(kernel, law, more) <= 2.0 * error:
                takes = f", which takes about {more.m:,}" if more.m > m else ""
                break
            takes, needed = f", which takes more than {needed:,}", 2 * needed
    few = f"the lattice's {m:,} features may be off the kernel by {reached:.1g}, {error:g} was wanted{takes}"
    return reached, [f"{few}; raise features.count" + ", or set features.sampler: {type: orthogonal}" * auto]


def worst(recipe: Recipe, kernels: Sequence[OperatorKernel], *, sums: Kind, auto: bool) -> list[str]:
    """The sentence for the kernel that features are the furthest from, of those that there is one for."""
    each = own_recipes(recipe, kernels) if sums is Kind.TOEPLITZ else [recipe] * len(kernels)
    fixed = [kernel.fix(recipe.d, recipe.p, np.eye(recipe.p)) for kernel in kernels]
    laws = [one.draw(0).density for one in each]
    pairs = [(kernel, law, at) for at, (kernel, law) in enumerate(zip(fixed, laws, strict=True)) if law is not None]
    for kernel, law, at in sorted(pairs, key=lambda pair: -kernel_error(pair[0], pair[1], each[pair[2]])):
        if text := shortfall(kernel, law, recipe, sums=sums, auto=auto)[1]:
            return [f"kernel[{at}]: {one}" if len(kernels) > 1 else one for one in text]
    return []


def _trace_of(base: BaseKernel, lags: FloatArray, p: int) -> FloatArray:
    """tr K(x, z) (n,) for differences x - z (n, d)."""
    zero = np.zeros((1, lags.shape[1]))
    if isinstance(base, Decomposable):
        return np.asarray(base.scalar.gram(lags, zero)[:, 0] * base.trace(lags.shape[1], p))
    return np.asarray(np.trace(base.gram(lags, zero)[:, 0], axis1=1, axis2=2))
