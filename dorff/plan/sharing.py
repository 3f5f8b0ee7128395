"""What a job's kernels ask of it; the features that serve every one; drawn for others than are fitted: how well."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from dorff.data import Dataset
from dorff.errors import InputError
from dorff.features import Recipe, sampler_of
from dorff.kernels import FloatArray, OperatorKernel, ScalarKernel, Spectral, mean_of, mixture
from dorff.model.losses import Loss, as_loss
from dorff.model.weights import Density, covered, effective_sample_size
from dorff.passes import Configs
from dorff.plan.lengthscale import read_matrix
from dorff.solvers import check_apart, check_output, learned_term
from dorff.solvers.by_loss import Minimisation, check_loss
from dorff.spec.checks import AUTO
from dorff.spec.job import Job

Kernels = Sequence[OperatorKernel]
#: The least effective sample size of a kernel that was not drawn for, as a share of that of frequencies of its own.
LEAST_SHARE: Final = 0.5
_AROUND: Final = (0.6, 1.0, 1.6)  # of a length-scale, for a mixture that serves all between them


def make_recipe(
    kernels: Kernels, dataset: Dataset, job: Job, observe: FloatArray | None, box: FloatArray | None = None
) -> Recipe:
    """The features that serve every kernel: of the one, or of the mixture of all; for scaled inputs in a box (2, d)."""
    d, p = dataset.d, dataset.q if observe is None else observe.shape[1]
    fixed = [kernel.fix(d, p, np.eye(p)) for kernel in kernels]
    kernel = mixture(fixed, d, p)
    chosen = job.features.sampler
    sampler = sampler_of(None if isinstance(chosen, str) else chosen.model_dump(), kernel, d)
    if len(fixed) > 1 and not (sampler.mixes or sampler.viewed) and len(sampler.laws(kernel, d, p)) > 1:
        problem = "kernel: a list of kernels of several spectra is served by a mixture of them"
        raise InputError(f"{problem}, which sampler {sampler.config()['type']} cannot draw; use iid, orthogonal or qmc")
    recipe = Recipe(kernel, sampler, d, p, max(job.features.counts), job.solve.intercept)
    return recipe if box is None else recipe.over(box)


def density_of(number: int, sources: Kernels, density: Density | None) -> Density | None:
    """Return the density of the features for one of several kernels that they were drawn for.

    Of a list with skeletons frequencies are drawn law by law: each serves the kernels that have its law, and a kernel
    has weights of 0 for the others.
    """
    if density is None or len(sources) == 1:
        return density
    omega, log_density, serves = density
    if serves is None:
        return density
    weights = [[weight for weight, _ in kernel.terms()] for kernel in sources]
    first = sum(weight > 0 for kernel in weights[:number] for weight in kernel)  # `mixture` leaves out the others
    own = np.zeros((len(weights[number]), len(omega)), dtype=np.bool_)
    positive = np.flatnonzero(np.array(weights[number]) > 0)
    own[positive] = serves[first : first + len(positive)]
    return omega, log_density, own


def observation(job: Job, dataset: Dataset, configs: Configs) -> FloatArray | None:
    """C (q, p) where targets are values of C f, the mean of the views for a multi-view kernel, else None."""
    if configs[0]["type"] == "multi_view":
        V = len(configs[0]["views"])
        return mean_of(V, range(V), dataset.q)
    if job.solve.observe is None:
        return None
    given = job.solve.observe
    C = np.array(read_matrix(given) if isinstance(given, Path) else given, dtype=np.float64)
    C = C[None] if C.ndim == 1 else C
    if C.ndim != 2 or len(C) != dataset.q or not np.all(np.isfinite(C)) or not np.any(C):
        wanted = f"a row for each of the {dataset.q} targets and a column for each output"
        raise InputError(f"solve.observe: must be a finite matrix, not zero, with {wanted}; it is {C.shape}")
    return C


def loss_of(job: Job) -> Loss:
    """The loss of a job."""
    loss = job.solve.loss
    return as_loss(loss if isinstance(loss, str) else loss.model_dump())


def _check_loss(job: Job, dataset: Dataset, candidates: Kernels) -> None:
    """InputError for a loss that does not go with the targets, or with a kernel's outputs."""
    loss, classes = loss_of(job), dataset.labels is not None
    if classes and loss.takes in ("numbers", "counts"):
        remedy = "take logistic, multinomial, hinge, squared_hinge or simplex"
        raise InputError(f"solve.loss: {loss.kind} is for numbers, but data.targets are classes; {remedy}")
    if not classes and loss.takes == "classes":
        remedy = "give data.targets: {classes: NAME}, or take another loss"
        raise InputError(f"solve.loss: {loss.kind} is for classes, but the targets are numbers; {remedy}")
    if job.solve.posterior is True and not loss.likelihood:
        problem = f"a fit by loss {loss.kind} has no posterior (Laplace's is of a likelihood)"
        raise InputError(f"solve.posterior: {problem}; leave it out, or take poisson, logistic or multinomial")
    if job.solve.posterior is True and job.solve.ridge != AUTO and 0.0 in job.solve.ridges:
        raise InputError("solve.posterior: at ridge 0 it has no bounds; give a ridge above 0, or leave posterior out")
    try:
        if not job.solve.descends:
            Minimisation(loss, job.solve.solver)
        for kernel in candidates:
            check_loss(loss, kernel, intercept=job.solve.intercept)
    except InputError as error:  # which names a parameter of an estimator
        raise InputError(f"solve.{error}") from None


def check_kernels(job: Job, dataset: Dataset, candidates: Kernels, observe: FloatArray | None) -> None:
    """InputError for kernels that do not go with the job's targets, or with how it chooses."""
    if job.solve.ridge_per_output and job.solve.select == "loo":
        raise InputError("solve.select: loo scores one ridge for all outputs; set kfold, or no ridge_per_output")
    if job.solve.other_loss:
        _check_loss(job, dataset, candidates)
    for kernel in candidates:
        check_output(kernel, observe)
        if job.solve.ridge_per_output:
            check_apart(kernel, observe)
        if dataset.labels is not None and kernel.vector_field:
            raise InputError("kernel: curl-free and divergence-free kernels are for fields, not for classes")
    if any([learned_term(kernel) for kernel in candidates]) and job.solve.descends:
        problem = f"kernel: output 'learned' is learned from sums of rows, which solver {job.solve.solver} has none of"
        raise InputError(f"{problem}; give a matrix, or covariance")
    if any([learned_term(kernel) for kernel in candidates]) and job.data.nan == "partial":
        raise InputError("kernel: output 'learned' needs rows that have all targets; set data.nan: drop")


def check_sharing(targets: Kernels, drawn_for: Kernels, recipe: Recipe) -> None:
    """InputError where features of the kernels `drawn_for`, whose mixture is the recipe's, can serve no other kernel.
    Looks at what a job says alone, before anything is drawn: `check_targets` says whether they serve it well."""
    if any(kernel.concatenated for kernel in (*targets, *drawn_for)):
        problem = "a concatenated sum has frequencies for each of its terms, which no other kernel can use"
        remedy = "leave concatenate out of `kernel` and `drawn_for`, or leave drawn_for out"
        raise InputError(f"features.drawn_for: {problem}; {remedy}")
    if not isinstance(recipe.scalar, Spectral) or recipe.scalar.sampler:
        if any(scalar != recipe.scalar for scalar in _scalars(targets)):
            problem = f"a {type(recipe.scalar).__name__} kernel serve that scalar kernel alone, with any output matrix"
            remedy = "give `kernel` the same one, or leave drawn_for out"
            raise InputError(f"features.drawn_for: the features of {problem}; {remedy}")
    elif not recipe.sampler.mixes:
        problem = "is a rule for one spectrum, whose points have no density to weigh them by for another"
        sampler = f"sampler {recipe.sampler.config()['type']}"
        raise InputError(f"features.drawn_for: {sampler} {problem}; use iid, orthogonal or qmc")
    elif odd := next((scalar for scalar in _scalars(targets) if not isinstance(scalar, Spectral)), None):
        problem = f"features.drawn_for: are frequencies of a spectrum, which {type(odd).__name__} has none of"
        raise InputError(f"{problem}; leave drawn_for out")
    elif own := next((scalar for scalar in _scalars(targets) if isinstance(scalar, Spectral) and scalar.sampler), None):
        problem = f"features.drawn_for: are frequencies of another law than those of {type(own).__name__}"
        raise InputError(f"{problem}, which {own.sampler} draws; leave drawn_for out")


def check_targets(
    targets: Kernels, drawn_for: Kernels, *, recipe: Recipe, density: Density | None, seed: int
) -> list[float | None]:
    """The effective sample size of each target, in frequencies; None for features that are no plain sample of any.
    `density` is of what the recipe, of the mixture of `drawn_for`, drew with the seed. InputError for a target that is
    none of those drawn for and whose effective sample size is below half of that of frequencies of its own (see
    `sample_sizes`). The error of the kernel, far from x = z, goes with the root: up to 1.4 times that of its own."""
    plain = recipe.sampler.mixes and recipe.sampler.sampled and isinstance(recipe.scalar, Spectral)
    if density is None or density[2] is not None or not plain:
        return [None] * len(targets)
    d, p = recipe.d, recipe.p
    mixes = [_mix(recipe, kernel.fix(d, p, np.eye(p))) for kernel in drawn_for]
    sizes: list[float | None] = []
    for kernel in targets:
        target = kernel.fix(d, p, np.eye(p))
        size = effective_sample_size(target, density)
        mix = _mix(recipe, target)
        if not any(one.keys() == mix.keys() and all(abs(one[k] - mix[k]) < 1e-9 for k in mix) for one in mixes):
            own = replace(recipe, kernel=target).draw(seed).density
            assert own is not None  # a sampler that mixes tells its density
            size, most = sample_sizes(target, recipe, density, own)
            if size < LEAST_SHARE * most:
                raise InputError(
                    f"kernel: {_name(kernel)} is too far from what the frequencies were drawn for: its effective "
                    f"sample size is {size:.0f} of {len(density[0])} frequencies, less than half of the {most:.0f} "
                    "that as many of its own have; draw for it too: list it in features.drawn_for beside the others, "
                    f"or length-scales around it: [{_around(kernel)}]"
                )
        sizes.append(size)
    return sizes


def sample_sizes(target: OperatorKernel, recipe: Recipe, density: Density, own: Density) -> tuple[float, float]:
    """The effective sample size of the target on what the recipe drew, and on its `own`, as many drawn for it. The
    first is the lesser of what the frequencies say themselves and of what the target's own say (`covered`). The second
    is D where the target's law is its trace measure; where weights vary even so, as those of a curl-free kernel's
    unbounded measure, it is less: D d / (d + 2) for the Gaussian."""
    seen = len(density[0]) * covered(target, own, _log_density(recipe, own[0]))
    return max(1.0, min(effective_sample_size(target, density), seen)), effective_sample_size(target, own)


def _around(kernel: OperatorKernel) -> str:
    lengthscale = np.asarray(_scalars([kernel])[0].config()["lengthscale"])
    lengthscales = [", ".join(f"{number:.3g}" for number in np.atleast_1d(factor * lengthscale)) for factor in _AROUND]
    return ", ".join(f"{{... lengthscale: {f'[{text}]' if lengthscale.ndim else text}}}" for text in lengthscales)


def _mix(recipe: Recipe, kernel: OperatorKernel) -> dict[Any, float]:
    """The share of each law that the kernel's own frequencies would come from."""
    laws = recipe.sampler.laws(kernel, recipe.d, recipe.p)
    total = sum(law.share for law in laws)
    return {(law.scalar, law.measure): law.share / total for law in laws}


def _log_density(recipe: Recipe, omega: FloatArray) -> FloatArray:
    """The log (D,), at any omega (D, d), of the density that the recipe draws from."""
    counts = [law["count"] for law in recipe.question()["laws"]]
    laws = recipe.sampler.laws(recipe.kernel, recipe.d, recipe.p)
    parts = [np.log(size / sum(counts)) + law.log_density(omega) for law, size in zip(laws, counts, strict=True)]
    return np.asarray(np.logaddexp.reduce(parts, axis=0))


def _scalars(targets: Kernels) -> list[ScalarKernel]:
    return [base.scalar for kernel in targets for _, base in kernel.terms()]


def _name(kernel: OperatorKernel) -> str:
    """Types and scalar kernels of the terms, without their matrices."""
    terms = [(base.config()["type"], base.scalar.config()) for _, base in kernel.terms()]
    names = [
        f"{kind} {' '.join(f'{key} {value}' if key != 'type' else str(value) for key, value in scalar.items())}"
        for kind, scalar in terms
    ]
    return " + ".join(names)
