"""The grammar of JOB.yaml as types. Omitted keys take the values written here."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from dorff.spec import checks
from dorff.spec.cluster import Cluster, LocalCluster
from dorff.spec.data import ClassTargets, Data, Manifold
from dorff.spec.kernel import DecomposableSpec, Features, Kernel, Kernels, LearnedOutputSpec, MultiViewSpec, check_views
from dorff.spec.part import (
    ClassWeight,
    FilePath,
    FoldsBy,
    Idle,
    NotNegative,
    OneOf,
    Part,
    Positive,
    Ridges,
    Rows,
    within,
)
from dorff.spec.registry import CRITERIA, HELD_OUT, LOSSES, Keyed, NameOf

_ITERATIVE: Final = ("cg", "streaming")  # routes that factor no system
_DESCENTS: Final = ("sgd", "adam")  # solvers that go through the rows in batches
FIRST_RIDGES: Final = tuple(10.0**power for power in range(-8, 1))
STREAMING_RIDGE: Final = 1e-6


class Folds(Part):
    """Folds of leaves, of rows, of blocks (runs of rows), or of the groups that a column tells apart; assigned before
    the pass.

    `auto` is groups where the data have a column of that name; else blocks where rows of the first plan's sample tell
    the errors of those beside them, and rows where not. It is rows where `data.nan` is unlabelled: labels often stand
    in a few runs of the rows."""

    count: Annotated[int, Field(ge=2)] = 5
    by: FoldsBy = "auto"


def _compares(solve: "Solve", job: "Job") -> str:
    alone = job.criterion == "evidence" and job.trials == 1
    return "there is one kernel, count of features and ridge, and nothing to choose" if alone else ""


def _chooses(solve: "Solve", job: "Job") -> str:
    return "there is one ridge, for all outputs" if len(solve.ridges) == 1 and job.criterion != "kfold" else ""


def _deals(solve: "Solve", job: "Job") -> str:
    ways = "set select: kfold, or conformal: true" if job.classes is None else "set select: kfold, or calibrate: true"
    return "" if job.deals else f"select is {job.criterion}, and no rows are held out ({ways})"


def _unsure(solve: "Solve", job: "Job") -> str:
    if solve.descends:
        return f"solver: {solve.solver} keeps none"
    if solve.other_loss and solve.posterior is False:
        return "a fit by this loss keeps one where it is true alone"
    if job.classes is not None and not solve.other_loss:
        return "data.targets is classes, whose probabilities say how sure the model is"
    if solve.conformal:
        return "conformal: true keeps the posterior"
    return f"route: {solve.route} has none" if solve.route in _ITERATIVE and solve.posterior is False else ""


def _sharpens(solve: "Solve", job: "Job") -> str:
    if solve.descends:
        return f"solver: {solve.solver} makes no system whose digits could be lost"
    if solve.other_loss:
        return "with another loss than the square there is no such pass"
    if solve.route in _ITERATIVE:
        return f"route: {solve.route} never takes that pass"
    if job.features.precision == "mixed":
        return "with features.precision: mixed there is no such pass"
    if job.manifold:
        return "with manifold terms there is no such pass"
    return "a kernel of views has no such pass" if job.kernels[0].type == "multi_view" else ""


def _numbers(_: "Solve", job: "Job") -> str:
    known = "targets" in job.data.model_fields_set  # else the data tell, before anything is planned
    numbers = "it is for classes (data.targets: {classes: NAME}), and these are numbers"
    return numbers if known and job.classes is None else ""


def _classes(_: "Solve", job: "Job") -> str:
    return "" if job.classes is None else "it is for numbers, and data.targets is classes, which have probabilities"


def _of_squares(solve: "Solve", job: "Job") -> str:
    return "" if solve.other_loss or solve.descends else "loss is squared, whose least comes from one pass"


def _stepped(solve: "Solve", job: "Job") -> str:
    if solve.descends:
        return f"solver: {solve.solver} makes as many passes as epochs says"
    return _of_squares(solve, job)


def _unstepped(solve: "Solve", job: "Job") -> str:
    return "" if solve.descends else "it is for solver: sgd or adam, which go through the rows in batches"


def _mean(solve: "Solve", job: "Job") -> str:
    views = "of a kernel of views the targets see the mean" * (job.kernels[0].type == "multi_view")
    return _classes(solve, job) or views


class Solve(Part):
    """`folds` matters where rows are held out together: to choose (`select: kfold`; `loo` leaves out single rows, of
    2^15 at most), to calibrate, to be `conformal`.

    `ridge_per_output` chooses a ridge for each output of a kernel whose outputs fall apart. `posterior` keeps in the
    model what deviations need (`auto`: where it is small and exact; route cg has samples, of a lattice alone),
    `conformal` how wide bands must be on held-out rows. `route` is how the system is solved; `qr` allows one more pass
    where its condition asks for it. `class_weight` and `calibrate` are for classes.

    `observe` is C (q, p): the function has p outputs, the targets are C times them. `class_weight` given label by
    label is kept as (label, weight) pairs, labels as text.

    Another `loss` than the square is minimised by passes over the rows, from the least squares' fit on: by `solver`
    lbfgs, or newton, which makes a weighted Gram matrix of every other pass, until the objective is within about
    `tolerance` of its least, as a share of it. The kernel, the count and the terms' weights are then least squares'
    choice; the ridge is the best by the loss of rows held out.

    `solver` sgd or adam is for data that are too large for sums or many passes: after one pass for means and scales,
    `epochs` passes over shuffled rows, a step for each `batch` of them, with the square or any other loss. Its model
    is near the least, not at it: one kernel, one ridge, nothing held out."""

    ridge: Ridges = "auto"
    ridge_per_output: Annotated[bool, Idle(_chooses)] = False
    select: Annotated[str, NameOf(CRITERIA, "auto"), Idle(_compares)] = "auto"
    folds: Annotated[Folds, Idle(_deals)] = Folds()
    standardize: Annotated[bool | Literal["auto"], BeforeValidator(checks.switch)] = "auto"
    intercept: bool = True
    observe: Annotated[Rows | None, Idle(_mean, refused=True)] = None
    posterior: Annotated[bool | Literal["auto"], BeforeValidator(checks.switch), Idle(_unsure)] = "auto"
    conformal: Annotated[bool, Idle(_classes, refused=True)] = False
    route: Annotated[str, OneOf("auto", "direct", "cg", "streaming")] = "auto"
    qr: Annotated[bool, Idle(_sharpens)] = True
    class_weight: Annotated[ClassWeight, Idle(_numbers, refused=True)] = "none"
    calibrate: Annotated[bool, Idle(_numbers)] = True
    loss: Annotated[str | Part, Keyed(LOSSES)] = "squared"
    solver: Annotated[str, OneOf("auto", "lbfgs", "newton", *_DESCENTS), Idle(_of_squares)] = "auto"
    tolerance: Annotated[Positive, Idle(_stepped)] = 1e-4
    epochs: Annotated[int, within(1), Idle(_unstepped)] = 10
    batch: Annotated[int, within(1), Idle(_unstepped)] = 256

    @property
    def other_loss(self) -> bool:
        """Whether the loss is another than the square."""
        return self.loss != "squared"

    @property
    def descends(self) -> bool:
        """Whether batches of rows move the coefficients, and no sums are kept."""
        return self.solver in _DESCENTS

    @property
    def by_squares(self) -> bool:
        """Whether the coefficients are those of least squares, as a system has them."""
        return not (self.other_loss or self.descends)

    @property
    def ridges(self) -> tuple[float, ...]:
        """Every ridge asked for, in order; of `auto` those tried first, times k(x, x), of which streaming has one."""
        if self.ridge == "auto":
            return FIRST_RIDGES if self.route != "streaming" else (STREAMING_RIDGE,)
        return self.ridge if isinstance(self.ridge, tuple) else (self.ridge,)


def _unscored(publish: "Publish", job: "Job") -> str:
    scored = publish.holdout is not None or (job.criterion in HELD_OUT and not job.solve.other_loss)
    return "" if scored else "no rows are held out to score (name publish.holdout, or set solve.select: kfold)"


def _undigited(publish: "Publish", job: "Job") -> str:
    if job.solve.descends:
        return f"solver: {job.solve.solver} comes near the least, not to digits"
    steps = "another loss than the square is minimised by steps, of which solve.tolerance says how far"
    return steps * job.solve.other_loss


def _unkept(publish: "Publish", job: "Job") -> str:
    kept = job.deals and job.classes is None and (job.solve.route not in _ITERATIVE or job.posteriors > 0)
    return "" if kept else "no model of this job keeps rows"


class Publish(Part):
    """When a new model takes the place of the current one, and what is in it.

    Not where fewer than `digits` of the fitted values' digits are right, nor where the held-out score is more than
    `margin` below the current model's: both on the data set `holdout` where it is named (R2, or accuracy of classes),
    else R2 of each fit's own held-out rows (`select: kfold` or `loo`), in both cases what `dorff score` says, rows
    counting by `data.weights` where there are such (on `holdout` this job's, for both models). `keep` deletes all
    versions but that many of the last. `sample: false` leaves out the rows, held out, that a model keeps for its
    report."""

    digits: Annotated[NotNegative, Idle(_undigited)] = 3.0
    margin: Annotated[NotNegative | None, Idle(_unscored, refused=True)] = None
    holdout: FilePath | None = None
    keep: Annotated[int, Field(ge=1)] | None = None
    sample: Annotated[bool, Idle(_unkept)] = True


class Job(Part):
    """A whole job. `state` keeps durable moments and receipts, `model` the published versions. Of several kernels the
    best by `solve.select` is published; one pass serves all. Where the kernel has views `data.inputs` are their
    arrays, and need not be given."""

    data: Data
    kernel: Kernels = DecomposableSpec(type="decomposable")
    manifold: Manifold = ()
    features: Features = Features()
    solve: Solve = Solve()
    publish: Publish = Publish()
    cluster: Cluster = LocalCluster()
    state: FilePath
    model: FilePath

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return self.kernel if isinstance(self.kernel, tuple) else (self.kernel,)

    @property
    def classes(self) -> str | None:
        """The array of class codes, where targets are such."""
        return self.data.targets.classes if isinstance(self.data.targets, ClassTargets) else None

    @property
    def trials(self) -> int:
        """How many combinations of a kernel, a count of features, a ridge and weights of terms there are."""
        several = [self.kernels, self.features.counts, self.solve.ridges, *(term.weights for term in self.manifold)]
        return math.prod(map(len, several))

    @property
    def criterion(self) -> str:
        """What `solve.select` comes to: `auto` is k-fold where there is something to choose that it can choose."""
        if self.solve.select != "auto":
            return self.solve.select
        apart = all(isinstance(one, DecomposableSpec) and one.output == "identity" for one in self.kernels)
        return "gcv" if self.trials == 1 or (self.solve.ridge_per_output and not apart) else "kfold"

    @property
    def holds_out(self) -> bool:
        """Whether rows are held out to calibrate the probabilities of classes, or to see how wide bands must be."""
        return self.solve.conformal or (self.classes is not None and self.solve.calibrate)

    @property
    def deals(self) -> bool:
        """Whether rows are dealt to folds, to choose by or to hold some out."""
        return self.criterion == "kfold" or self.holds_out

    @property
    def posteriors(self) -> int:
        """How many a fit has to make, whatever it takes: conformal bands need one without the rows held out too."""
        if self.classes is not None or not self.solve.by_squares:
            return 0
        return 2 if self.solve.conformal else int(self.solve.posterior is True)

    @model_validator(mode="after")
    def _put_in_order(self) -> Self:
        """Puts in what follows from other keys, so that what is written says so too; refuses what does not agree."""
        given = (self.data.store, self.data.unlabelled, self.publish.holdout, self.state, self.model)
        places = [place for place in given if place is not None]
        if len(set(places)) < len(places):
            each = "data.store, data.unlabelled, publish.holdout, state and model"
            raise checks.Refusal(f"must give {each} a place each; two are the same, move one")
        first, folds = self.kernels[0], self.solve.folds
        if isinstance(first, MultiViewSpec) and "inputs" not in self.data.model_fields_set:
            object.__setattr__(self, "data", self.data.model_copy(update={"inputs": first.arrays}))
        if self.deals and self.data.nan == "unlabelled" and "by" not in folds.model_fields_set:
            dealt = self.solve.model_copy(update={"folds": folds.model_copy(update={"by": "rows"})})
            object.__setattr__(self, "solve", dealt)
        check_views((*self.kernels, *self.features.kernels), self.data.inputs)
        if self.solve.descends:
            _check_descent(self)
            off = {"route": "streaming"} | ({} if self.classes is None else {"calibrate": False})
            object.__setattr__(self, "solve", self.solve.model_copy(update=off))
        _check_manifold(self)
        _check_loss(self)
        if self.solve.conformal and self.solve.posterior is False:
            raise checks.Refusal("needs the posterior, but posterior is false; leave that out", key="solve.conformal")
        for key, problem in _idle_keys(self, refused=True):
            raise checks.Refusal(problem, key=key)
        return self

    @property
    def refusals(self) -> list[str]:
        """What it asks for in vain, and is refused for: of a job that has been read, once its targets are known."""
        return [f"{key} {problem}" for key, problem in _idle_keys(self, refused=True)]

    @property
    def warnings(self) -> list[str]:
        """What it asks for in vain, but is not refused for."""
        return [f"{key} {problem}" for key, problem in _idle_keys(self, refused=False)]


def _idle_keys(job: "Job", *, refused: bool) -> Iterator[tuple[str, str]]:
    """Keys that were set and have no effect on this job, and what is wrong: refused, or warned of (`Idle`)."""
    for place, part in _parts(job, ""):
        for key in sorted(part.model_fields_set):
            field, value = type(part).model_fields[key], getattr(part, key)
            rules = [rule for rule in field.metadata if isinstance(rule, Idle) and rule.refused == refused]
            if rules and value != field.get_default() and (why := rules[0].why(part, job)):
                yield f"{place}{key}", f"has no effect: {why}; leave it out"


def _parts(value: Any, place: str) -> Iterator[tuple[str, Part]]:
    """Every mapping of a job, with its dotted place before its keys."""
    if isinstance(value, Part):
        yield place, value
        for key in type(value).model_fields:
            yield from _parts(getattr(value, key), f"{place}{key}.")
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            alone = place == "manifold." and len(value) == 1  # written without a list, as a rule
            yield from _parts(item, place if alone else f"{place.removesuffix('.')}[{number}].")


def _check_manifold(job: "Job") -> None:
    """Refuses manifold terms of unknown views, and ways of solving or choosing that such terms have not."""
    if not job.manifold:
        return
    kernel, solve = job.kernels[0], job.solve
    names = tuple(view.name for view in kernel.views) if isinstance(kernel, MultiViewSpec) else ()
    for number, term in enumerate(job.manifold):
        if names and term.view is not None:
            key = f"manifold[{number}].view" if len(job.manifold) > 1 else "manifold.view"
            checks.KnownNames(names).name(term.view, key=key)
    if solve.route in _ITERATIVE:
        remedy = "set it to auto, or leave manifold out"
        raise checks.Refusal(f"is {solve.route}, which has no manifold terms; {remedy}", key="solve.route")
    if solve.ridge_per_output:
        problem = "solves for each output alone, which manifold terms do not allow"
        raise checks.Refusal(f"{problem}; leave it out, or manifold", key="solve.ridge_per_output")
    outputs = [one.output for one in job.kernels if isinstance(one, DecomposableSpec)]
    if any(output == "learned" or isinstance(output, LearnedOutputSpec) for output in outputs):
        remedy = "give a matrix, or covariance, or leave manifold out"
        raise checks.Refusal(f"is learned, which manifold terms do not allow; {remedy}", key="kernel.output")
    if job.trials > 1 and job.criterion not in HELD_OUT:
        problem = f"is {job.criterion}, which cannot choose among {job.trials} trials with manifold terms"
        remedy = "set solve.select: kfold, or ask for one ridge, weight, kernel and count"
        raise checks.Refusal(f"{problem} (it knows nothing of unlabelled rows); {remedy}", key="solve.select")


def _check_loss(job: "Job") -> None:
    """Refuses what a loss other than the square does not go with."""
    solve = job.solve
    if not solve.other_loss:
        return
    several = len(solve.ridges) > 1 or solve.ridge == checks.AUTO
    problems = {
        "select": (solve.select == "loo" or (several and solve.select not in (checks.AUTO, "kfold")))
        and "scores squares; set kfold, or leave it out",
        "route": solve.route in _ITERATIVE
        and not solve.descends
        and f"is {solve.route}, which keeps no sums to begin with; set it to auto",
        "ridge_per_output": solve.ridge_per_output and "goes with squares alone; leave it out",
        "conformal": solve.conformal and "goes with squares alone; take quantiles for bands",
    }
    for key, problem in problems.items():
        if problem:
            raise checks.Refusal(problem, key=f"solve.{key}")


def _check_descent(job: "Job") -> None:
    """Refuses what steps by batches of rows do not go with."""
    solve, features = job.solve, job.features
    calibrates = solve.calibrate and "calibrate" in solve.model_fields_set and job.classes is not None
    one = f"is a list of several, and {solve.solver} compares none; give one"
    problems = {
        "solve.ridge": isinstance(solve.ridge, tuple) and len(solve.ridge) > 1 and one,
        "kernel": len(job.kernels) > 1 and one,
        "features.count": len(features.counts) > 1 and one,
        "solve.select": solve.select in HELD_OUT and f"is {solve.select}, which holds rows out; leave it out",
        "solve.route": solve.route in ("direct", "cg")
        and f"keeps sums, which {solve.solver} has none of; leave it out",
        "solve.ridge_per_output": solve.ridge_per_output and "chooses by sums of rows; leave it out",
        "solve.posterior": solve.posterior is True and "needs a Gram matrix; leave it out, or use another solver",
        "solve.conformal": solve.conformal and "needs rows held out; take quantiles for bands",
        "solve.calibrate": calibrates and "needs rows held out; set it to false",
        "manifold": bool(job.manifold) and "is sums over graphs; leave it out, or use another solver",
        "features.precision": features.precision == "mixed" and "rounds sums; leave it out",
        "features.sampler": features.kind == "lattice" and "is for sums of rows; use orthogonal, or leave it out",
    }
    for key, problem in problems.items():
        if problem:
            raise checks.Refusal(f"{problem} (solve.solver: {solve.solver})", key=key)
