"""The kernels of a job: words made objects, arrays columns, files matrices; and `lengthscale: tune`."""

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dorff import kernels
from dorff.data import Dataset, RowBlock
from dorff.data.nodes import open_array
from dorff.data.units import unit_of_lengths
from dorff.errors import InputError
from dorff.features.lengthscale_search import ROWS, Tuned
from dorff.features.projected import mapped
from dorff.features.smoothness import NU
from dorff.kernels.scalar import FloatArray
from dorff.moments.blas import pinned
from dorff.passes import Config, Configs, PassSpec, RowsName
from dorff.passes.leaf import not_finite
from dorff.spec.checks import AUTO
from dorff.storage.location import locate

UNITS: Final = 64  # runs that are read, of `Dataset.unit_rows` rows each
ALL_INPUTS: Final = "all inputs"
MOST_SHOWN: Final = 12  # inputs that are named in a sentence
_ONE, _EACH = "tune", "tune each"
_SMOOTHNESS = "tune smoothness"  # `_EACH`, and whether the kernel is a Gaussian or a Matern kernel
_GAUSSIAN: Final = {"type": "gaussian", "lengthscale": AUTO}
LengthsInUnits = dict[str, dict[str, Any]]  #: by the name of an input: its `lengthscale` and `units`


def spread_rows(spec: PassSpec, dataset: Dataset, n: int, *, targets: bool = True) -> tuple[RowBlock, RowsName]:
    """Return at most `ROWS` rows, evenly spread over those up to number n, and the name of these rows and values.

    They are rows that a pass keeps, with finite inputs and, for `targets`, all targets. Up to 64 runs are read, evenly
    spread. n is the number of rows at the first plan: rows appended later change neither the length-scales nor the
    landmarks, and so a fit of the same rows all at once may find others (as with class_weight: balanced). InputError
    where no row counts, or one is to be refused.
    """
    starts = np.arange(dataset.first, n, dataset.unit_rows)
    starts = starts[_spread(len(starts), UNITS)]
    taken = []
    for start in starts.tolist():
        rows = spec.kept(dataset.block(start, min(start + dataset.unit_rows, n)))
        check_finite(spec, dataset, rows)
        at = np.flatnonzero(rows.whole() if targets else np.isfinite(rows.X).all(axis=1))
        taken.append(rows[at[_spread(len(at), -(-ROWS // len(starts)))]])
    rows = RowBlock.joined(taken)
    if not len(rows):
        wanted = "all inputs and targets" if targets else "all inputs"
        problem = f"needs rows of {dataset.path} with {wanted}, and found none"
        runs = f"{len(starts)} runs of {dataset.unit_rows}"
        if targets:
            raise InputError(f"kernel: lengthscale 'tune' {problem} in {runs}; give a number, or median")
        raise InputError(f"features.sampler: landmarks {problem} in {runs}; use orthogonal")
    rows = rows[_spread(len(rows), ROWS)]
    weights = np.ones(len(rows)) if rows.weights is None else rows.weights
    crc = zlib.crc32(weights.data, zlib.crc32(rows.Y.data, zlib.crc32(rows.X.data)))
    return rows, RowsName(dataset.first, n, crc)


def check_finite(spec: PassSpec, dataset: Dataset, rows: RowBlock) -> None:
    """Raise InputError at the first row that the pass will refuse, for NaN or infinity."""
    good = rows.whole()
    if spec.nan == "refuse" and not good.all():
        raise not_finite(dataset, rows, int(np.argmin(good)))


def check_all_finite(spec: PassSpec, dataset: Dataset) -> None:
    """Raise InputError as `check_finite` of all rows, which are read where some came with NaN or infinity: a search
    that would be in vain takes longer."""
    if spec.nan != "refuse" or not dataset.unusable:
        return
    for start, stop in dataset.runs():
        check_finite(spec, dataset, spec.kept(dataset.block(start, stop)))


def tunes(config: Config) -> bool | None:
    """Whether a kernel is tuned with one length-scale (False) or one for each input (True); None where it is not.
    InputError for a sum in which not all terms are tuned alike."""
    words = set(all_lengthscales(config))
    if not words & {_ONE, _EACH, _SMOOTHNESS}:
        return None
    if config["type"] == "multi_view":
        problem = "kernel: length-scales are tuned by the evidence of one kernel, not of several views"
        raise InputError(f"{problem}; give numbers, or median, which is of each view's own columns")
    if len(words) > 1:
        remedy = "write tune, or {tune: each}, in all of them, or a number in each"
        raise InputError(f"kernel: the terms of a sum are tuned together and share a length-scale; {remedy}")
    return _ONE not in words


def leaves_smoothness(config: Config) -> bool:
    """Return whether the rows are to tell if a kernel is a Gaussian or a Matern kernel."""
    return _SMOOTHNESS in all_lengthscales(config)


def with_gaussian(config: Config) -> Config:
    """Return the kernel over a Gaussian, where rows were to tell if it is."""
    leaves = leaves_smoothness(config)
    return _replaced(config, "lengthscale", _EACH) if leaves else config


def with_matern(config: Config) -> Config:
    """Return the kernel over a Matern kernel, where rows are to tell if it is."""
    return {**config, "scalar": {"type": "matern", "nu": NU, "lengthscale": _EACH}}


def tuned_config(
    configs: Sequence[Config], tune: Callable[..., Tuned], tune_smoothness: Callable[..., Tuned]
) -> tuple[list[Config], list[Tuned | None]]:
    """The kernels with numbers for the word tune, and what was found for each; None where nothing was to be. `tune` is
    `tune_lengthscales` of the rows, called with a kernel and `each`, `tune_smoothness` that function of them. Each
    kernel is tuned on its own; those that differ in output matrices alone, which tuning does not look at, are tuned
    once. On one BLAS thread, for the bits."""
    filled, searches, by_kernel = list(configs), list[Tuned | None](), dict[str, Tuned]()
    for at, config in enumerate(configs):
        if (each := tunes(config)) is None:
            searches.append(None)
            continue
        name = json.dumps(_replaced(config, "output", "identity"), sort_keys=True)
        if name not in by_kernel:
            kernel = kernels.from_config(_replaced(config, "lengthscale", 1.0))
            with pinned():
                by_kernel[name] = tune_smoothness(kernel) if leaves_smoothness(config) else tune(kernel, each=each)
        searches.append(by_kernel[name])
        if leaves_smoothness(config):
            filled[at] = {**config, "scalar": by_kernel[name].kernel.config()["scalar"]}
            continue
        numbers = by_kernel[name].lengthscale.tolist()

        def found(_: Config, columns: Sequence[int], numbers: list[float] = numbers) -> Any:
            return numbers[0] if len(numbers) == 1 else [numbers[column] for column in columns]

        filled[at] = _with_numbers(config, found, range(len(numbers)))
    return filled, searches


def multiplied(
    words: Sequence[Config], configs: Sequence[Config], multiple: Callable[[kernels.OperatorKernel], float]
) -> tuple[list[Config], list[float]]:
    """Kernels that were tuned where `words` say so, with length-scales times what `multiple` makes of each; and these
    numbers. Those that differ in output matrices alone have the same."""
    filled, factors, by_kernel = list(configs), [1.0] * len(configs), dict[str, float]()
    for at in (at for at, word in enumerate(words) if tunes(word) is not None):
        alone = _replaced(configs[at], "output", "identity")
        name = json.dumps(alone, sort_keys=True)
        if name not in by_kernel:
            by_kernel[name] = multiple(kernels.from_config(alone))
        if (factor := by_kernel[name]) != 1:  # all terms have the same
            longer = np.asarray(next(lengthscales(configs[at]))) * factor
            filled[at], factors[at] = _replaced(configs[at], "lengthscale", longer.tolist()), factor
    return filled, factors


def lengthscales_in_units(kernel: kernels.OperatorKernel, scale: FloatArray, dataset: Dataset) -> list[LengthsInUnits]:
    """Return the length-scales of each term of a kernel in the inputs' own units.

    Each has the `lengthscale` and the `units` of an input, None if the data know none, by the name of its column; by
    `ALL_INPUTS` if these are the same for several. A term without length-scales has none.
    """
    units = [unit_of_lengths(dataset.column_attributes.get(name, {})) for name in dataset.input_columns]
    found = list[LengthsInUnits]()
    for (_, term), lengths in zip(kernel.terms(), kernels.input_lengthscales(kernel, scale), strict=True):
        by_input = {at: {"lengthscale": length, "units": units[at]} for at, length in (lengths or {}).items()}
        values = list(by_input.values())
        partial = isinstance(term.scalar, kernels.Skeleton) and len(by_input) < dataset.d
        if len(values) > 1 and not partial and all(length == values[0] for length in values):
            found.append({ALL_INPUTS: values[0]})
        else:
            found.append({dataset.input_columns[at]: length for at, length in by_input.items()})
    return found


def lengths_text(lengths: LengthsInUnits, *, most: int = MOST_SHOWN) -> str:
    """Return length-scales in the inputs' own units as text: "lat 3.2 degrees_north, depth 40 m"."""
    shown = []
    for name, length in list(lengths.items())[:most]:
        words = ["" if name == ALL_INPUTS else name, f"{length['lengthscale']:.3g}", length["units"] or ""]
        shown.append(" ".join(word for word in words if word))
    return ", ".join(shown) + (", ..." if len(lengths) > most else "")


def lengthscale_words(value: Any) -> set[str]:
    """The words that stand for length-scales in configurations of kernels."""
    return {word for word in all_lengthscales(value) if word}


def concrete(config: Config, dataset: Dataset, *, alone: bool) -> Config:
    """The same kernel with matrices read in, columns for its views' arrays, and for `auto` the word that it comes to: a
    length-scale for each input, but one for all in vector fields, in skeletons, whose inputs are mostly alike as pixels
    are, and in sums, whose terms share it, and the median distance in views, which are not tuned. A scalar kernel that
    is `auto` is a Gaussian, or where the kernel is `alone` what rows tell."""
    if alone and config.get("scalar") == AUTO:
        config = {**config, "scalar": {"type": "gaussian", "lengthscale": _SMOOTHNESS}}
    config = mapped(config, lambda key, item: dict(_GAUSSIAN) if key == "scalar" and item == AUTO else item)
    word = {"decomposable": _EACH, "multi_view": "median"}.get(config["type"], _ONE)
    if config["type"] == "decomposable" and config["scalar"]["type"] == "skeleton":
        word = _ONE
    filled = mapped(config, lambda key, item: word if key == "lengthscale" and item == AUTO else item)
    return with_columns(read_matrices(filled), dataset)


def all_lengthscales(value: Any) -> Iterator[Any]:
    """Every length-scale in a configuration: a word, or None for numbers."""
    return (item if isinstance(item, str) else None for item in lengthscales(value))


def lengthscales(value: Any) -> Iterator[Any]:
    """Every length-scale in a configuration."""
    if isinstance(value, dict):
        for key, item in value.items():
            left_out = key == "scalar" and item == AUTO
            yield from [item] if key == "lengthscale" or left_out else lengthscales(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from lengthscales(item)


def _replaced(value: Any, name: str, put: Any) -> Any:
    return mapped(value, lambda key, item: put if key == name else item)


def _spread(n: int, count: int) -> npt.NDArray[np.intp]:
    """At most `count` numbers from 0 to n - 1, evenly spread."""
    return np.linspace(0, n - 1, min(count, n)).astype(np.intp)


def build_kernels(configs: Sequence[Config], d: int) -> tuple[kernels.OperatorKernel, ...]:
    """The operator kernels of a job for d inputs; a length-scale that is a word is about 1, until rows tell it: one
    for each input where each will have its own, so that samplers see kernels that rotations change."""

    def about(scalar: Config, columns: Sequence[int]) -> Any:
        return (
            [1.0 + place / 64 for place in range(len(columns))]
            if scalar["lengthscale"] in (_EACH, _SMOOTHNESS)
            else 1.0
        )

    return tuple(kernels.from_config(_with_numbers(config, about, range(d))) for config in configs)


def with_medians(configs: Configs, X: FloatArray, weights: FloatArray | None) -> list[Config]:
    """The same kernels, the word median replaced by that of distances between scaled inputs X (n, d)."""

    def median(scalar: Config, columns: Sequence[int]) -> Any:
        if scalar["lengthscale"] != "median":
            return scalar["lengthscale"]
        seen = X if len(columns) == X.shape[1] else X[:, columns]
        return kernels.median_lengthscale(seen, absolute=scalar["type"] == "laplacian", weights=weights)

    return [_with_numbers(config, median, range(X.shape[1])) for config in configs]


def _with_numbers(value: Any, number: Callable[[Config, Sequence[int]], Any], columns: Sequence[int]) -> Any:
    """The same, each length-scale that is a word replaced by `number` of its scalar kernel and the columns it sees."""
    if isinstance(value, dict):
        columns = value.get("columns") or columns  # an input space of a skeleton without columns has all
        replaced = {key: _with_numbers(item, number, columns) for key, item in value.items()}
        if isinstance(replaced.get("lengthscale"), str):
            replaced["lengthscale"] = number(replaced, columns)
        return replaced
    return [_with_numbers(item, number, columns) for item in value] if isinstance(value, list | tuple) else value


def with_columns(config: Config, dataset: Dataset) -> Config:
    """The same kernel; of views each with the columns of X (n, d) that its arrays are, in place of their names."""
    if config["type"] != "multi_view":
        return config
    columns = array_columns(dataset)
    views = []
    for view in config["views"]:
        seen = [one for name in np.atleast_1d(view["inputs"]).tolist() for one in columns[name]]
        views.append({"name": view["name"], "kernel": view["kernel"], "columns": seen})
    return {"type": "multi_view", "views": views}


def array_columns(dataset: Dataset) -> dict[str, range]:
    """The columns of X (n, d) that each array of inputs is."""
    at, columns = 0, dict[str, range]()
    for name in dataset.inputs:
        width = open_array(locate(dataset.path), name).columns
        columns[name] = range(at, at + width)
        at += width
    return columns


def read_matrices(config: Any) -> Any:
    """The same configuration with output matrices that are files read in."""
    files = ("matrix", "factor", "graph")
    return mapped(config, lambda key, item: read_matrix(Path(item)) if key in files and isinstance(item, str) else item)


def read_matrix(path: Path) -> list[list[float]]:
    text = path.suffix != ".npy"
    try:
        matrix = np.loadtxt(path, delimiter=",", ndmin=2) if text else np.load(path, allow_pickle=False)
        rows: list[list[float]] = np.asarray(matrix, dtype=np.float64).tolist()
        return rows
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a matrix of numbers in NPY or comma-separated text ({error})") from error
