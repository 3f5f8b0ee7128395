"""`sampler: auto`: whether a lattice, and which, is closer to a job's kernels than random frequencies are; and how
far features on a lattice are from a kernel."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from dorff.data import Dataset
from dorff.errors import InputError
from dorff.features import Recipe, sampler_of
from dorff.frequencies import Lattice
from dorff.frequencies.aliasing import LatticeBox, aliases
from dorff.kernels import BaseKernel, CurlFree, Decomposable, FloatArray, OperatorKernel
from dorff.kernels.stretched import Stretched
from dorff.model.weights import Density, operator_weights
from dorff.moments import Kind
from dorff.plan.lattice import own_recipes, summable, told_box
from dorff.plan.lengthscale import lengthscale_words
from dorff.plan.sampled import sample_runs
from dorff.spec.job import Job
from dorff.spec.part import Part
from dorff.spec.registry import SAMPLERS

ERRORS: Final = (1e-6, 1e-3, 1e-2, 1e-1)  # the first where it takes few features, for rows with next to no noise
FEW_SHARE: Final = 0.25  # of the features that there may be
SIDES: Final = 4.0  # of the box, in length-scales, where these are not known yet
MOST_INPUTS: Final = 5  # that vary
FEW: Final = 2  # inputs, of which a lattice serves about any length-scale
WIDE: Final = 20  # standard deviations, beyond which a box is that of a few rows far away
LAGS: Final = 512
FAR: Final = 0.1  # from the kernel: features that predict something else
MOST_WANTED: Final = 2**16  # features that a lattice is said to need, times 2^d: some tens of MB to make them
#: How refusals begin that a lattice is the reason of: no rule, or too few of its leaves, which are large.
OF_LATTICES: Final = ("sampler: ", "solve.folds", "data.window")


class NotBetter(InputError):
    """Why a job's features are not on a lattice."""


def samplers() -> Iterator[Part]:
    """The lattices that `sampler: auto` may stand for, those of the least error first."""
    entry = SAMPLERS.get("lattice")
    assert entry is not None
    return (entry.options.model_validate({"type": "lattice", "error": error}) for error in ERRORS)


def few(each: Sequence[Recipe]) -> bool:
    """Whether recipes on a lattice take few of the features that there may be; of unknown length-scales, about 1."""
    usual = np.outer([0.0, SIDES], np.ones(each[0].d))
    known = each if each[0].lattice is not None else [one.over(usual) for one in each]
    return all(one.m <= FEW_SHARE * one.n_features for one in known)


def check_suited(job: Job, recipe: Recipe, dataset: Dataset) -> None:
    """NotBetter, with the reason, for a job with these features that is none for a lattice. Looks at no row."""
    recipe = replace(recipe, sampler=sampler_of(next(samplers()).model_dump(), recipe.kernel))
    if not summable(job, recipe):
        raise NotBetter("what the job asks for needs sums of the features' products")
    fields = [base for _, base in recipe.kernel.terms() if not isinstance(base, Decomposable)]
    if job.features.seed or any(base.measure is not None for base in fields):
        raise NotBetter("features.seed or a kernel's measure is given, for frequencies that are drawn")
    if len(job.features.counts) > 1 or job.features.kernels or recipe.kernel.concatenated:
        raise NotBetter("the job names counts to choose from, kernels to draw for, or a concatenated sum")
    unsaid = any(lengthscale_words([kernel.model_dump() for kernel in job.kernels])) or job.solve.standardize is True
    most = FEW if unsaid else MOST_INPUTS
    if dataset.d > most and told_box(dataset) is None and job.data.box is None:
        more = " whose length-scale is found from the rows" if unsaid else ""
        raise NotBetter(f"a lattice{more} is for {most} inputs or fewer that vary, here are {dataset.d}")


def check_better(each: Sequence[Recipe], dataset: Dataset, box: FloatArray, others: Recipe) -> str:
    """Why features on a lattice, `each` of one kernel, for inputs in a box (2, d) are better; NotBetter if not."""
    sides = np.ptp(box, axis=0)
    many = int(np.count_nonzero(sides))
    if each[0].lattice is not None:
        here, there = kernel_distance(each, box), kernel_distance([others], box)
        m, kind = max(one.m for one in each), others.sampler.config()["type"]
        why = f"{m} features of a lattice are {here:.2g} from the kernel, {others.m} of {kind} {there:.2g}"
        why += " (root mean square, over k(x, x))"
        if min(here, there) > FAR:
            why += ", so that neither are close: raise features.count"
        if here > there:
            raise NotBetter(why)
        return why
    if many > FEW:
        raise NotBetter(f"{many} inputs vary, and the length-scale is not known yet")
    X = np.concatenate([dataset.block(*run).weighty().X for run in sample_runs(dataset.first, dataset.n)])
    spread = np.std(X[np.isfinite(X).all(axis=1)], axis=0) if len(X) else sides
    if np.any(sides > WIDE * spread):
        raise NotBetter(f"few rows reach far: the box's side is more than {WIDE} standard deviations of an input")
    return f"no more than {FEW} inputs vary"


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
        The kernel that is meant, with its output matrices written out.
    density : Density
        The frequencies of the features.
    recipe : Recipe
        What they were made by, for scaled inputs in a known box.
    """
    box = _continued(density, recipe)
    terms = [(weight, base) for weight, base in kernel.terms() if weight > 0]
    wanted, continued = np.zeros((2, recipe.p, recipe.p))  # K(0), and what all frequencies but 0 make of it
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


def _matrix(base: BaseKernel, entries: FloatArray) -> FloatArray:
    """Return the value (p, p) that a kernel makes of k0, or of the entries (i <= j) of -d_i d_j k0."""
    if isinstance(base, Decomposable):
        return np.asarray(entries[0] * base.matrix)
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
