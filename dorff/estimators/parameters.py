"""Parameters in scikit-learn's words, of kernels too: `kernel__scalar__lengthscale`; kernels by their names."""

import inspect
import numbers
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Self, TypeAlias, cast

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from dorff.data import RowBlock
from dorff.errors import InputError, QualityWarning
from dorff.estimators.adapter import TIME_ORIGIN, adapt_inputs
from dorff.estimators.array_sums import Look, RowsRead, Run, Targets, sampled_runs, weights_of
from dorff.estimators.arrays import Deal, Deferred, Flags, Rows, dealt_by, finite_in
from dorff.estimators.columns import Columns
from dorff.features import FeatureMap, Recipe, with_lengthscale
from dorff.features.lengthscale_search import QUICK_BELOW, search_size, tune_lengthscales
from dorff.features.smoothness import NU, tune_smoothness
from dorff.frequencies import Orthogonal, Sampler
from dorff.kernels import (
    Decomposable,
    Matern,
    MultiView,
    OperatorKernel,
    Output,
    ScalarKernel,
    Sum,
    from_config,
    scalar_from_config,
)
from dorff.kernels.scalar import FloatArray, median_lengthscale
from dorff.model import Density
from dorff.moments import Kind, pinned
from dorff.plan.choosing import measure_lattice
from dorff.plan.sampled import held_out_multiple, left_out_runs, look, sample_runs
from dorff.solvers import LeftOut, Setting
from dorff.spec.checks import AUTO, nearest
from dorff.spec.registry import KERNELS, SCALARS, Entry, Registry

Kernel: TypeAlias = "OperatorKernel | ScalarKernel"
Parameters: TypeAlias = dict[str, Any]
Scaled: TypeAlias = Callable[[FloatArray], FloatArray]
_OPEN: Final = ("kernel", "sampler")  # parameters of estimators that have parameters of their own
TOO_LARGE: Final = "y has numbers so large that their squares overflow float64; rescale the targets"
_HUGE: Final = 1e150
_IN_PYTHON: Final = {  # remedies
    "set solve.ridge: auto": "set ridge='auto'",
    "set solve.folds.by: blocks, or name groups,": "give fit groups",
    "leave solve.folds.by out, or set it to blocks": "set cv='auto'",
    "set solve.select: auto": "leave criterion out",
    "leave lengthscale out": "give the kernel by its name",
    "raise features.count": "raise n_features",
    "raise solve.ridge": "raise ridge",
    "set solve.class_weight: balanced": "set class_weight='balanced'",
    " (dorff report)": "",
    "(a job: data.box)": "(or give Lattice a box)",
}


class Nested(BaseEstimator):  # type: ignore[misc]
    """An estimator whose kernel and sampler, which never change, have parameters: to set one makes another object."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = getattr(self, "manifold", None) is None
        return tags

    @property
    def input_kinds_(self) -> tuple[str, ...] | None:
        """What input columns are: "number", "time", "duration" or "time (calendar)"; None where all are numbers."""
        kinds: tuple[str, ...] | None = self.input_columns_.kinds
        return kinds

    def __setstate__(self, state: Parameters) -> None:
        """Restore a pickle; in one of an earlier version nothing is known of the columns, and all are numbers."""
        known = {} if "n_features_in_" not in state else {"input_columns_": Columns(), "target_columns_": Columns()}
        super().__setstate__(known | state)

    def _adapt_inputs(self, X: Any, *, reset: bool) -> Any:
        """Return inputs of any kind as numbers, and check of their columns what scikit-learn does not.

        With `reset` what is known of the columns is kept; else columns are held against
        that, and numbers converted to the units of the fit.
        """
        adapted = adapt_inputs(X)
        if reset:
            self.input_columns_, self.time_origin_ = adapted.columns, TIME_ORIGIN
        values = adapted.values if reset else adapted.converted_to(self.input_columns_, "X")
        if isinstance(values, Deferred):
            named = values
            if adapted.columns.names is not None:
                import pandas as pd  # slow to import, and only deferred columns with names need it

                names = list(adapted.columns.names)
                named = pd.DataFrame(np.empty((0, len(names))), columns=names)
            validate_data(self, named, skip_check_array=True, reset=reset)
        return values

    def _inputs(self, X: Any, *, reset: bool, read: Flags | None = None) -> Any:
        """What scikit-learn demands of adapted X, Zarr and Dask unread; only columns `read` (d,) if given, others 0."""
        if isinstance(X, Deferred):
            return X
        if read is None:
            return validate_data(self, X, dtype=np.float64, reset=reset)
        return finite_in(validate_data(self, X, dtype=np.float64, reset=reset, ensure_all_finite=False), read, "X", 0)

    def get_params(self, deep: bool = True) -> Parameters:
        """The parameters; with `deep` those of the kernel and the sampler too, as `kernel__scalar__lengthscale`. Terms
        and weights of a sum go by their numbers: `kernel__term0__scalar__lengthscale`, `kernel__weight0`."""
        own: Parameters = super().get_params(deep)
        for name in _OPEN if deep else ():
            own.update(_inside(own[name], name))
        return own

    def set_params(self, **params: Any) -> Self:
        """Sets parameters as `get_params` names them. Those of a kernel that is a name, or None, need its length-scale
        among them. InputError for one that there is not."""
        inner: dict[str, Parameters] = {name: {} for name in _OPEN}
        for key in list(params):
            name, _, rest = key.partition("__")
            if rest and name in _OPEN:
                inner[name][rest] = params.pop(key)
        super().set_params(**params)
        for name, changes in inner.items():
            if changes:
                setattr(self, name, changed(getattr(self, name), changes, name))
        return self


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """The seed that a number is, or that scikit-learn's random state gives."""
    if isinstance(random_state, numbers.Integral):
        if random_state < 0:
            raise InputError(f"random_state must be 0 or more, not {random_state}")
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def arguments(value: object) -> Parameters:
    """What a kernel, an output matrix or a sampler was made of, by its arguments' names; nothing of anything else."""
    if isinstance(value, Sum):
        terms = {f"term{number}": term for number, (_, term) in enumerate(value.parts)}
        weights = {f"weight{number}": weight for number, (weight, _) in enumerate(value.parts)}
        return {**terms, **weights, "concatenate": value.concatenate}
    if not isinstance(value, OperatorKernel | ScalarKernel | Output | Sampler) or isinstance(value, MultiView):
        return {}
    kept = vars(value)
    names = list(inspect.signature(type(value)).parameters)
    return {name: kept[name] for name in names} if all(name in kept for name in names) else {}


def changed(value: object, changes: Parameters, name: str) -> Any:
    """Another of the same kind with some `arguments`, of what is in it too, replaced: {"scalar__lengthscale": 2.0}.
    `name` is its own, for messages. InputError for arguments that it has not."""
    if isinstance(value, str) or (value is None and name == "kernel"):
        return _changed_by_name(value or "gaussian", changes)
    own, inner = arguments(value), dict[str, Parameters]()
    for key, new in changes.items():
        first, _, rest = key.partition("__")
        if first not in own:
            has = f"{nearest(first, own)}it has {', '.join(own)}" if own else "it has none"
            kind = "None" if value is None else f"of type {type(value).__name__}"
            raise InputError(f"{name}__{first} is no parameter: {name} is {kind}; {has}")
        if rest:
            inner.setdefault(first, {})[rest] = new
        else:
            own[first] = new
    for first, rests in inner.items():
        own[first] = changed(own[first], rests, f"{name}__{first}")
    if isinstance(value, Sum):
        parts = [(own[f"weight{number}"], own[f"term{number}"]) for number in range(len(value.parts))]
        return Sum(parts, concatenate=own["concatenate"])
    return type(value)(**own)


def _changed_by_name(value: str, changes: Parameters) -> Kernel:
    one, other = (changed(_built(value, lengthscale), changes, "kernel") for lengthscale in (1.0, 2.0))
    if one.config() != other.config():
        inside = "" if isinstance(_built(value, 1.0), ScalarKernel) else "scalar__"
        problem = f"kernel is {value!r}, whose length-scale comes from the data"
        remedy = f"give kernel__{inside}lengthscale too"
        raise InputError(f"{problem}, which a kernel with other parameters has not; {remedy}")
    return cast(Kernel, one)


def _inside(value: object, name: str) -> Iterator[tuple[str, Any]]:
    for key, item in arguments(value).items():
        yield f"{name}__{key}", item
        yield from _inside(item, f"{name}__{key}")


def named_kernel(name: str, X: FloatArray | None = None, weights: FloatArray | None = None) -> Kernel:
    """The kernel that a word of JOB.yaml stands for: a scalar one, or an operator-valued one over a Gaussian. Its
    length-scale is the median distance of scaled inputs X (n, d) of `weights` (n,); 1 where there are none. InputError
    for a word that there is not, or that needs more."""
    return _built(name, 1.0 if X is None else median_lengthscale(X, absolute=name == "laplacian", weights=weights))


def _built(name: str, lengthscale: float) -> Kernel:
    scalars, operators = _alone(SCALARS, "lengthscale"), _alone(KERNELS, "scalar")
    if name not in scalars and name not in operators:
        names = [*scalars, *operators]
        remedy = f"of those that need no more than a length-scale the name will do: {', '.join(names)}"
        raise InputError(f"kernel must be one of dorff.kernels, not {name!r}; {nearest(name, names)}{remedy}")
    entry = scalars.get(name, scalars["gaussian"])
    of_length = {"lengthscale": lengthscale} if "lengthscale" in entry.options.model_fields else {}
    scalar = {"type": entry.name, **of_length}
    return scalar_from_config(scalar) if name in scalars else from_config({"type": name, "scalar": scalar})


def _alone(registry: Registry, given: str) -> dict[str, Entry]:
    """The entries that need no option but `given`."""
    needs = {
        entry: {name for name, field in entry.options.model_fields.items() if field.is_required()}
        for entry in registry.entries()
    }
    return {entry.name: entry for entry, names in needs.items() if names <= {"type", given}}


def is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def runs_read(n: int, *, tunes: bool, looks: bool) -> list[Run]:
    """The runs of n rows that constants come from, with those for `tuned` and for `looked_at`."""
    return [*sampled_runs(n), *(_tuning_runs(n) if tunes else ()), *(sample_runs(0, n) if looks else ())]


def _tuning_runs(n: int) -> list[Run]:
    return sample_runs(0, n, 128 if n >= QUICK_BELOW else 32, 64)


def serves_matern(sampler: Sampler | None) -> bool:
    """Return whether a sampler, or the default one, has features of a Matern kernel."""
    with suppress(InputError):
        Recipe.of(Matern(1.0, nu=NU), Orthogonal() if sampler is None else sampler, d=1, n_features=2)
        return True
    return False


def tuned(
    kernel: OperatorKernel, read: RowsRead, scaled: Scaled, *, n: int, smoothness: bool, **options: Any
) -> OperatorKernel:
    """The kernel with the length-scales of most evidence on some of n rows: one for each input, or one of a vector
    field. As it is where it has none, and where no row has all targets. With `smoothness` a decomposable Gaussian
    kernel may become a Matern kernel."""
    if not _has_lengthscale(kernel):
        return kernel
    runs = _tuning_runs(n)
    some_x, some_y = read[runs]
    weights = weights_of(options.pop("weights"), runs)
    whole = _whole(some_y) & (True if weights is None else weights > 0)
    if not whole.any():
        return kernel
    rows, m = search_size(n)
    options |= {"rows": rows, "n_features": m, "weights": weights}
    if smoothness and isinstance(kernel, Decomposable):
        return tune_smoothness(kernel, scaled(some_x), some_y, **options).kernel
    return tune_lengthscales(kernel, scaled(some_x), some_y, each=not kernel.vector_field, **options).kernel


def looked_at(
    kernel: OperatorKernel, read: RowsRead, scaled: Scaled, weights: FloatArray | None, *, n: int, seed: int
) -> Look:
    """What a sample of n rows tells, and which it is, as of a job."""
    rows = whole_rows(read, sample_runs(0, n), scaled, weights)
    return look(kernel, rows.X, rows.Y, rows.numbers, seed), rows


def whole_rows(read: RowsRead, runs: Sequence[Run], scaled: Scaled, weights: FloatArray | None) -> RowBlock:
    """Return the rows of some runs that have all targets and a weight above 0, their inputs scaled."""
    some_x, some_y = read[runs]
    numbers = np.concatenate([np.arange(start, stop) for start, stop in runs])
    return RowBlock(numbers, scaled(some_x), some_y, weights_of(weights, runs))[_whole(some_y)].weighty()


def told_by_folds(setting: Setting, looked: Look, deal: Deal, seed: int, count: int) -> OperatorKernel:
    """A kernel that was `tuned`, with the multiple of its length-scales that tells sampled rows of other folds best,
    where these are of groups; as it is where it has none. The fit has `count` features."""
    kernel, (_, rows) = setting.kernel, looked
    if dealt_by(deal) != "groups" or not _has_lengthscale(kernel):
        return kernel
    with pinned():
        multiple = held_out_multiple(setting, rows, deal.of_rows(rows.numbers), seed, count)
    lengthscale = next(base.scalar.config()["lengthscale"] for _, base in kernel.terms())
    return kernel if multiple == 1 else with_lengthscale(kernel, np.asarray(lengthscale) * multiple)


def _has_lengthscale(kernel: OperatorKernel) -> bool:
    return any("lengthscale" in base.scalar.config() for _, base in kernel.terms())


def in_python(sentence: str) -> str:
    """A sentence of a job's fit, its remedies in the words of estimators."""
    for words, own in _IN_PYTHON.items():
        sentence = sentence.replace(words, own)
    return sentence


def warn_of_few_features(kernel: OperatorKernel, density: Density | None, recipe: Recipe, *, stacklevel: int) -> None:
    """Warn where a lattice has too few for its error."""
    if recipe.on_lattice and density is not None and density[2] is None:
        found = measure_lattice(kernel, density, recipe, sums=Kind.GRAM, auto=False)
        if found.warning is not None:
            warnings.warn(in_python(found.warning), QualityWarning, stacklevel=stacklevel)


def left_out_rows(features: FeatureMap, X: Rows, Y: Targets, weights: FloatArray | None, *, partial: bool) -> LeftOut:
    """Rows of X (n, d), Y (n, q) of `weights` (n,) that leave-one-out leaves out: all where they are not too many."""
    runs = left_out_runs(0, int(X.shape[0]), int(X.shape[1] + Y.shape[1]))
    some_x, some_y = RowsRead.of(X, Y, runs, partial=partial)[runs]
    w = weights_of(weights, runs)
    there = np.isfinite(some_y).any(axis=1)
    return LeftOut(features, some_x[there], some_y[there], np.ones(there.sum()) if w is None else w[there])


def _whole(targets: FloatArray) -> Flags:
    """Which rows have all targets (k, q). InputError for numbers too large to be summed."""
    if np.any(np.abs(targets) > _HUGE):
        raise InputError(TOO_LARGE)
    return np.asarray(np.isfinite(targets).all(axis=1))
