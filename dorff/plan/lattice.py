"""Lattices of a job: the box that its inputs lie in, as the job says, as the store says, or as the rows are; passes in
its state whose sums serve it, of whatever kernel they were planned for; and the job's own features on the lattice of
such a pass."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod
from typing import Final, NamedTuple

import numpy as np

from dorff.data import Dataset, RowBlock
from dorff.data.nodes import group_attributes
from dorff.data.row_runs import subtract_runs
from dorff.errors import InputError
from dorff.features import FeatureMap, Recipe, modes_of, periods_of, sampler_of
from dorff.features.recipe import period_box
from dorff.kernels import FloatArray, OperatorKernel
from dorff.moments import Kind
from dorff.moments.exponentials import TensorExponentials, exponentials
from dorff.moments.toeplitz import grid_of, length_of
from dorff.passes import Config, Configs, Leaf, Pass, PassSpec, PassSums, RowsName, Tree, frozen_hash, load_pass
from dorff.passes.blocks import LATTICE_ROWS, alone_of, axes_of, extents_of
from dorff.passes.frozen import with_slack
from dorff.spec.job import Job
from dorff.storage.location import locate

_NOT_FINITE: Final = "has inputs that are not finite; give data.box, the least and the largest of each input"
#: What two passes with the same sums may differ in: what features and kernels they were planned for.
_FREE: Final = ("recipe", "sampler", "count", "words", "tuning")
#: And what of a job they differ by, else.
_KEYS = {"rows": "choice of arrays", "nan": "data.nan", "seed": "features.seed", "folds": "solve.select or folds"}
ANEW: Final = "rows are summed anew"
GROWTH: Final = 0.25  # of a side, that a box is larger by where it was too small
#: Seconds of a usual core for a row: beside the sums, for a number of a product of powers, for windows by dimensions.
BESIDE_SUMS, PRODUCT, WINDOW = 1.2e-7, 1e-10, (0.0, 8e-8, 2e-7, 1.5e-6)
Made = Callable[[FloatArray, Configs | None], Recipe]  # of a box in scaled inputs, and kernels; None: the job's own


def box_of(spec: PassSpec) -> FloatArray:
    """The box (2, d) of a pass of a lattice, in the inputs' own units."""
    return np.asarray(spec.recipe["box"], dtype=np.float64)


def given_box(job: Job, dataset: Dataset) -> FloatArray | None:
    """What the job says of it; all of it, where all inputs have a period."""
    sampler = job.features.sampler
    periods = periods_of({} if isinstance(sampler, str) else sampler.model_dump(), dataset.d)
    if job.data.box is None:
        return period_box(np.zeros((2, dataset.d)), periods) if np.isfinite(periods).all() else None
    box = np.array(job.data.box, dtype=np.float64).T
    if box.shape[1] != dataset.d:
        wanted = f"the least and the largest of each of the {dataset.d} inputs ({', '.join(dataset.input_columns)})"
        raise InputError(f"data.box: wanted {wanted}, got those of {box.shape[1]}; correct it")
    for name, low, high in zip(dataset.input_columns, *box, strict=True):
        if low > high:
            raise InputError(f"data.box: of {name} {low:g} is more than {high:g}; turn them")
    box = period_box(box, periods)
    if (ends := told_box(dataset)) is not None:
        _check_rows(job, dataset, box, period_box(ends, periods))
    return box


def _check_rows(job: Job, dataset: Dataset, box: FloatArray, ends: FloatArray) -> None:
    """InputError for a box that rows leave, or that none lies in where such are dropped. All rows ever have `ends`."""
    (low, high), (least, most), drops = with_slack(box), ends, job.data.outside == "drop"
    outside = (least > high) | (most < low) if drops else (least < low) | (most > high)
    remedy = "name the box that the rows lie in" if drops else "make it wider, or set data.outside: drop"
    if outside.any() and (drops or not dataset.first):
        at = int(np.argmax(outside))
        sides = [f"from {low!r} to {high!r}" for low, high in (box[:, at].tolist(), ends[:, at].tolist())]
        came = f"it is {sides[0]}, but {dataset.path} has values {sides[1]}"
        raise InputError(f"data.box: of {dataset.input_columns[at]} {came}; {remedy}")


def told_box(dataset: Dataset) -> FloatArray | None:
    """What the store says of it, where `dorff ingest` has written it."""
    if dataset.weights is not None or dataset.dropped:  # rows that weigh nothing may hold anything
        return None
    told = group_attributes(locate(dataset.path)).get("dorff", {}).get("ranges", {})
    try:
        box = np.concatenate([np.array(told[name], dtype=np.float64) for name in dataset.inputs], axis=1)
    except (KeyError, TypeError, ValueError):  # another tool's, or of other arrays
        return None
    return box if box.shape == (2, dataset.d) and np.isfinite(box).all() else None


@lru_cache(maxsize=8)
def seen_box(dataset: Dataset, stamp: str) -> FloatArray:
    """The least and the largest of each input: all inputs are read. `stamp` names the rows."""
    low, high = np.full(dataset.d, np.inf), np.full(dataset.d, -np.inf)
    for start, stop in dataset.runs():
        X = dataset.block(start, stop).weighty().X
        if np.isfinite(X).all():
            low, high = np.minimum(low, X.min(axis=0, initial=np.inf)), np.maximum(high, X.max(axis=0, initial=-np.inf))
        else:
            some = np.where(np.isfinite(X), X, np.nan)[np.isfinite(X).any(axis=1)]
            if len(some):
                low, high = np.fmin(low, np.nanmin(some, axis=0)), np.fmax(high, np.nanmax(some, axis=0))
    if not np.isfinite([low, high]).all():
        raise InputError(f"{dataset.path}: {_NOT_FINITE}")
    return np.array([low, high])


def summed(spec: PassSpec, dataset: Dataset) -> PassSpec:
    """The same pass, of features on a lattice, whose sums are those of exponentials."""
    read = max(dataset.unit_rows, LATTICE_ROWS // dataset.unit_rows * dataset.unit_rows)
    return replace(spec, sums=Kind.TOEPLITZ, block_rows=LATTICE_ROWS, read_rows=read)


def is_suitable(job: Job, recipe: Recipe) -> bool:
    """Whether features on one lattice go with what a job asks for.

    Sums of exponentials serve it if its loss is the square (`summable`); other losses evaluate the features.
    """
    plain = not job.manifold and job.features.precision == "double" and job.solve.route != "streaming"
    return recipe.on_lattice and recipe.kernel.V == 1 and plain


def summable(job: Job, recipe: Recipe) -> bool:
    """Whether a job can do with sums of exponentials: features on one lattice, and nothing that needs others' sums."""
    return is_suitable(job, recipe) and not job.solve.other_loss


@dataclass(frozen=True)
class Settled:
    """The job's own pass and the one that is made, now that the inputs' box is known: that of a pass in the state which
    serves the job, or its own. The recipe, of a job whose first rows have nothing to say of it; and where the box is
    from, if not from the job. `unlike` says why sums in the state do not serve it, if there are some; `outgrown` that
    they would, but for new rows outside of their box."""

    own: PassSpec
    spec: PassSpec
    recipe: Recipe
    why: str
    unlike: tuple[str, ...] = ()
    outgrown: bool = False

    def ends(self, columns: Sequence[str]) -> dict[str, list[float]]:
        """The least and the largest of each input, by its name."""
        return dict(zip(columns, np.transpose(self.own.recipe["box"]).tolist(), strict=True))


def settled(job: Job, dataset: Dataset, own: PassSpec, recipe: Recipe, made: Made, leaves: Sequence[Leaf]) -> Settled:
    if len(counts := job.features.counts) > 1:
        problem = f"of a lattice it is a ceiling, of which each kernel takes what it needs; came {len(counts)} of them"
        raise InputError(f"features.count: {problem}; give {max(counts)} alone")
    wanted = summed(own, dataset) if summable(job, recipe) else own
    earlier, grown, unlike = begun(job, dataset, wanted, made, leaves)
    periods = periods_of(own.sampler, dataset.d)
    of_rows = "the least and the largest of the rows"
    of_rows += " (0 and the period of an input that has one)" if np.isfinite(periods).any() else ""
    box, why = given_box(job, dataset) if earlier is None else box_of(earlier.spec), ""
    if box is None and grown is not None:
        why = "wider than that of the sums in the state, which new rows are outside of: all are summed anew"
        box = grown
    if box is None:
        box, why = told_box(dataset), f"{of_rows}, as the store says"
    if box is None:
        box, why = seen_box(dataset, dataset.stamp(dataset.first, dataset.n)), f"{of_rows}, all of which were looked at"
    box = period_box(box, periods)
    if not own.standardize and not any(own.words):
        recipe = made(box, None)
    ends = {"box": box.tolist(), "outside": job.data.outside}
    if earlier is not None and job.data.box is None:
        why = "that of the sums in the state"
    rows = dataset.n if earlier is None else earlier.spec.recipe.get("rows", 0)
    question = {**recipe.question(), **ends, "rows": rows}
    own, wanted = (replace(spec, recipe=question, sampler=recipe.sampler.config()) for spec in (own, wanted))
    if earlier is None:
        return Settled(own, wanted, recipe, why, unlike, outgrown=grown is not None)
    return Settled(own, earlier.spec, recipe.on(modes_of(earlier.features)) if recipe.lattice else recipe, why)


def begun(
    job: Job, dataset: Dataset, wanted: PassSpec, made: Made, leaves: Sequence[Leaf]
) -> tuple[Pass | None, FloatArray | None, tuple[str, ...]]:
    """The pass in the job's state of the least sums that serve it; None where there is none. Where rows have come that
    are outside of the box of each, a box for all of them, with room for more. And, where none serves, why the one that
    is most like it does not. It is of the same rows, folds and targets, its first rows are what they were, and the
    lattice is fine and wide enough for the kernels. Its box is the one that the job names, if it names one."""
    state, given, serving, reasons = locate(job.state), given_box(job, dataset), list[Pass](), list[str]()
    for place in sorted(one.parent for one in state.glob("*/plan.json")) if state.exists() else ():
        with suppress(InputError, OSError):  # it is damaged, or of another version
            frozen = load_pass(place, frozen_hash(place) or "")
            if frozen.spec.sums is not wanted.sums or alone_of(frozen.constants.features) is None:
                continue  # of features' products, or of views, whose lattices are apart
            if (reason := _unlike(frozen, job, dataset, wanted, made, given)) == "":
                serving.append(frozen)
            elif frozen.spec.store == wanted.store and wanted.sums is Kind.TOEPLITZ:
                reasons.append(reason)
    serving.sort(key=lambda one: int(np.prod(extents_of(modes_of(one.features)))))
    nearest = min(reasons, key=lambda one: (one.count(", "), one), default="")  # of few keys, the lattice itself first
    text = f"{ANEW}, as sums that the state had do not serve this job: {nearest}"
    unlike = (text,) if reasons and not serving else ()
    if given is not None or job.data.outside == "drop":
        return serving[0] if serving else None, None, unlike
    ends: FloatArray | None = None
    for frozen in serving:
        box, periods = box_of(frozen.spec), periods_of(frozen.spec.sampler, dataset.d)
        ends = period_box(_ends(frozen, dataset, leaves), periods)
        if np.all(ends[0] >= box[0]) and np.all(ends[1] <= box[1]):
            return frozen, None, ()
        ends = np.array([np.minimum(ends[0], box[0]), np.maximum(ends[1], box[1])])
        ends += GROWTH * np.ptp(ends, axis=0) * np.array([ends[0] < box[0], ends[1] > box[1]]) * [[-1.0], [1.0]]
    return None, ends, unlike


def _ends(frozen: Pass, dataset: Dataset, leaves: Sequence[Leaf]) -> FloatArray:
    """The least and the largest of each input, of rows that the pass has neither summed nor been planned for.

    If none of them counts, as after `drop` of the last source, the pass's own box.
    """
    if (ends := told_box(dataset)) is not None:
        return ends
    missing = Tree(PassSums.at(frozen), dataset, leaves).missing()
    start = max(frozen.spec.recipe.get("rows", 0), min((leaf.start for leaf in missing), default=dataset.n))
    if not subtract_runs(start, dataset.n, dataset.dropped):
        return box_of(frozen.spec)
    return seen_box(dataset.window(start), dataset.stamp(start, dataset.n))


def _unlike(frozen: Pass, job: Job, dataset: Dataset, wanted: PassSpec, made: Made, given: FloatArray | None) -> str:
    """Why the sums of a pass do not serve a job; "" where they do."""
    spec, constants = frozen.spec, frozen.constants
    free = _FREE if any(wanted.words) else (*_FREE, "seed")  # by which rows tell length-scales
    was, own = replace(spec, **{name: getattr(wanted, name) for name in free}).config(), wanted.config()
    words = json.loads(json.dumps([wanted.words, wanted.tuning]))  # what stands for them was found for other ones
    others = {
        "data.outside": spec.recipe["outside"] != job.data.outside,
        "data.box": given is not None and job.data.box is not None and not np.array_equal(box_of(spec), given),
        "features.sampler.tolerance": spec.sampler["tolerance"] > wanted.sampler["tolerance"],
        "features.sampler.periods": spec.sampler.get("periods") != wanted.sampler["periods"],
        "scaling of inputs": spec.one_scale != wanted.one_scale and spec.standardize is wanted.standardize,
        "kernel, whose length-scale the rows tell": any(wanted.words) and [[*spec.words], spec.tuning] != words,
    }
    has_other_labels = spec.rows.get("labels") != wanted.rows.get("labels")
    names = _KEYS | ({"rows": "set of class labels"} if has_other_labels else {})
    keys = [names.get(key, f"solve.{key}") for key in own if was[key] != own[key] and key != "one_scale"]
    if keys := keys + [key for key in others if others[key]]:
        return f"they are of another {', '.join(keys)}"
    recipe = made(_scaled(box_of(spec), constants.features), constants.drawn if any(wanted.words) else None)
    try:
        if recipe.on(modes_of(constants.features)).cut and not recipe.cut:
            return "on their lattice this kernel needs more than features.count, on one of its own it does not"
        return "" if same_sample(frozen, dataset) else "the first rows have other values"
    except InputError:
        return "their lattice is too coarse or too narrow for this kernel (one pass serves all that a job lists)"


def same_sample(frozen: Pass, dataset: Dataset) -> bool:
    """Whether the rows that a pass has its constants from are what they were, or have left the window: these stay."""
    sample = frozen.constants.sample
    if sample.first < dataset.first:
        return True
    stop = sample.first + sample.rows
    return stop <= dataset.n and sample == named(dataset.block(sample.first, stop))


def named(rows: RowBlock) -> RowsName:
    """What names rows by number and value."""
    return RowsName(int(rows.numbers[0]), len(rows), rows.checksums())


def _scaled(box: FloatArray, features: FeatureMap) -> FloatArray:
    return np.asarray((box - features.center) / features.scale)


def own_features(frozen: Pass, made: Made, configs: Configs | None, *, words: bool) -> Pass:
    """The pass as it is for these kernels: with features of theirs on the lattice of the pass."""
    constants, box = frozen.constants, box_of(frozen.spec)
    recipe = made(_scaled(box, constants.features), configs)
    drawn = recipe.on(modes_of(constants.features)).draw(frozen.spec.seed)
    features = FeatureMap(drawn.phi, constants.features.center, constants.features.scale)
    own = replace(constants, features=features, draw=drawn)
    if not words:
        same = np.array_equal(drawn.density[0], constants.density[0]) if drawn.density and constants.density else False
        own = replace(own, drawn=None, fitted=None, tuned=None, distances=constants.distances if same else None)
    return replace(frozen, constants=own)


def check_covered(frozen: Pass, configs: Configs, made: Made) -> None:
    """InputError for a kernel that the frequencies (or lattice), made for others, are too few or too far apart for."""
    features, box = frozen.constants.features, box_of(frozen.spec)
    lattice = modes_of(features) if frozen.spec.sums is Kind.TOEPLITZ else alone_of(features)
    if lattice is not None:
        for config in configs:
            recipe = made(_scaled(box, features), [config])
            with _covering(recipe.kernel):
                recipe.on(lattice)


def own_recipes(recipe: Recipe, kernels: Sequence[OperatorKernel]) -> list[Recipe]:
    """Those of kernels that share a lattice, each with frequencies of its own on it; InputError as above."""
    shared, each = recipe if recipe.lattice is None else recipe.on(recipe.lattice), list[Recipe]()
    for kernel in (one.fix(recipe.d, recipe.p, np.eye(recipe.p)) for one in kernels):
        with _covering(kernel):
            each.append(replace(shared, kernel=kernel))
    return each


@contextmanager
def _covering(kernel: OperatorKernel) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        scalars = " + ".join(str(base.scalar.config()) for _, base in kernel.terms())
        needs = (
            f"{scalars} needs frequencies that lie closer together, or reach further, than those of features.drawn_for"
        )
        raise InputError(f"kernel: {needs}; list it there too, or leave drawn_for out") from error


def scaled_recipe(frozen: Pass, sampler: Config, recipe: Recipe) -> Recipe:
    """A recipe with what a sampler's `config` is for the scaled inputs of a pass."""
    own = replace(recipe, sampler=sampler_of(sampler, recipe.kernel))
    return own.over(_scaled(box_of(frozen.spec), frozen.constants.features))


class LatticeCosts(NamedTuple):
    """Of sums of exponentials: bytes of one fold's and pattern's sums on disk, and of a leaf's as it is summed, for
    each fold and pattern and once; seconds a row on a usual core; and points of the grid that products are made on."""

    packed: int
    each: int
    once: int
    seconds: float
    points: int


def lattice_costs(alone: Sequence[Recipe], spec: PassSpec) -> LatticeCosts:
    """What the pass needs of the lattice that these recipes share; of one that is not known yet, the most it may."""
    recipe, q, each = alone[0], spec.rows["q"], [one.lattice for one in alone]
    if not (lattices := [modes for modes in each if modes is not None]):
        varied = max(int(np.count_nonzero(np.ptp(box_of(spec), axis=0))), 1)
        side = ceil((2.0 * recipe.frequencies) ** (1.0 / varied) / 2.0)
        extents, reach = (4 * side,) * varied, (side,) * varied
    else:
        furthest = np.max([(np.abs(modes.modes) // modes.every).max(axis=0) for modes in lattices], axis=0)
        reach = tuple(furthest[axes_of(lattices[0])].tolist())
        extents = extents_of(lattices[0])
    empty = exponentials(extents, q, recipe.sampler.config()["tolerance"])  # whose memory nobody touches
    held, sums = sum(piece.size for piece in empty.held()), length_of(extents, q)
    rows = 8 * LATTICE_ROWS * 6 * (len(extents) + 1 + q)
    summing = PRODUCT * held if isinstance(empty, TensorExponentials) else WINDOW[len(extents)] * (1 + q) / 3
    each_fold, once = 8 * (held + sums + q * q), 8 * (3 * held + 4 * sums) + rows
    return LatticeCosts(8 * sums, each_fold, once, BESIDE_SUMS + summing, prod(grid_of(reach)))
