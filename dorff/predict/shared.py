"""What predicting and scoring have in common: the published model, its labels, its inputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil

from dorff.data import Dataset, Label
from dorff.data.encoding import with_encoded_times
from dorff.data.units import ColumnAttributes, conversion_notices
from dorff.errors import DoesNotFitError, InputError
from dorff.kernels import FloatArray, MultiView
from dorff.model import Model, evaluation_bytes
from dorff.plan.costs import DRIVER_BYTES, SHARED_BYTES, WORKER_BYTES
from dorff.store import load_model, model_arrays

Notice = Callable[[str], None]


def labels_of(model: Model) -> tuple[Label, ...] | None:
    """The labels of a classifier, one for each output; None of other models."""
    labels = model.info.get("labels")
    return None if labels is None else tuple(labels)


@dataclass(frozen=True)
class ModelInputs:
    """What is read for a prediction: `arrays`, their `columns` in X, and for which `views`; None of these for all."""

    arrays: tuple[str, ...]
    columns: tuple[int, ...] | None = None
    views: tuple[int, ...] | None = None

    @classmethod
    def of(cls, model: Model, inputs: str | Sequence[str] | None, views: Sequence[str] | None) -> "ModelInputs":
        """`inputs` are the names of the arrays in order, the model's own if None, or `x` where it does not say.
        InputError for views that the model does not have, or whose arrays it does not know."""
        given = None if inputs is None else (inputs,) if isinstance(inputs, str) else tuple(inputs)
        if views is None:
            return cls(given or tuple(name for name, _ in _arrays(model, None).values()) or ("x",))
        if not isinstance(model.kernel, MultiView):
            raise InputError("views: the model's kernel is not multi-view; leave views out")
        chosen, parts = model.kernel.chosen(views), _arrays(model, views)
        if not parts:
            raise InputError("views: the model does not say which arrays its views are; give all inputs, no views")
        columns = tuple(column for start, (_, stop) in parts.items() for column in range(start, stop))
        return cls(given or tuple(name for name, _ in parts.values()), columns, chosen)

    def full(self, X: FloatArray, d: int) -> FloatArray:
        """X (n, d) as the model takes it, with NaN in columns that were not read."""
        if self.columns is None:
            return X
        filled = np.full((len(X), d), np.nan)
        filled[:, self.columns] = X
        return filled


def _arrays(model: Model, views: Sequence[str] | None) -> dict[int, tuple[str, int]]:
    """By first column in X: the arrays that the views see (all if None), and their ends; {} if the model says none."""
    kernel, kept = model.kernel, model.info.get("data", {}).get("views")
    if not isinstance(kernel, MultiView) or kept is None:
        return {}
    chosen = kernel.chosen(views)
    try:
        starts = {start: name for view in kept for name, start in zip(view["inputs"], view["columns"], strict=True)}
        wanted = {start for view in chosen for start in kept[view]["columns"]}
    except (LookupError, TypeError, ValueError) as error:
        raise InputError("the model's views say no arrays of inputs and their first columns; fit it again") from error
    if not all(type(at) is int and 0 <= at < model.d and isinstance(name, str) for at, name in starts.items()):
        raise InputError(f"the model's views say arrays that do not begin in its {model.d} columns; fit it again")
    ends = dict(pairwise([*sorted(starts), model.d]))
    return {start: (starts[start], ends[start]) for start in sorted(wanted)}


def planned_workers(model: Model, dataset: Dataset, numbers: int, *, rows: int, most: int) -> tuple[int, int, int]:
    """How many workers, `most` at most, this machine can hold, the most memory of one of them, and of all processes
    together; one worker is the driver itself. Each loads the model as it is here, with its posterior or without, and
    evaluates it at runs of rows; of each row and output come `numbers`. DoesNotFitError where not one can be held."""
    arrays = {name: value.nbytes for name, value in model_arrays(model).items()}
    weights = 8 * model.feature_map.m * (model.operator_weights.shape[2] + 2 * model.p)
    made = numbers * max(model.p, 1 if model.observe is None else len(model.observe))
    reading = 3 * dataset.unit_bytes() * -(-rows // dataset.unit_rows) + 8 * rows * (4 * made + 2 * model.d)
    squares = model.feature_map.phi.square_numbers(model.p) if model.posterior is not None else 0
    evaluation = evaluation_bytes(model.feature_map.m, squares=squares)
    # Of an array its file and a copy are there while it is read.
    own = sum(arrays.values())
    own += max(2 * max(arrays.values()), weights + evaluation + reading)
    light = sum(size for name, size in arrays.items() if not name.startswith("posterior_"))
    machine, alone = psutil.virtual_memory().total, DRIVER_BYTES + own
    for workers in range(most, 1, -1):
        peak = DRIVER_BYTES + light + workers * (WORKER_BYTES - SHARED_BYTES + own)
        if peak <= machine:
            return workers, WORKER_BYTES + own, peak
    if alone > machine:
        problem = f"the model needs {alone / 2**20:.0f} MiB to be evaluated, this machine has {machine / 2**20:.0f}"
        remedy = "use a larger one, or leave out what needs the posterior (--std, --bands, --coverage)"
        raise DoesNotFitError(f"{problem}; {remedy}")
    return 1, alone, alone


def outcome(model: Model, X: FloatArray, views: Sequence[int] | None = None) -> FloatArray:
    """What a model predicts: f, the probabilities of a calibrated classifier, or what its loss makes of f."""
    return model.outcome(model.predict(X, views=views))


def expected(model: Model, X: FloatArray, views: Sequence[int] | None = None) -> FloatArray:
    """What a model takes its targets to be, (n, q): the probabilities of a calibrated classifier, or what its loss
    makes of C f."""
    if model.info.get("calibration") is not None:
        return outcome(model, X, views)
    return model.loss.outcome(model.observed(model.predict(X, views=views)))


def in_model_units(model: Model, dataset: Dataset, sight: ModelInputs) -> Dataset:
    """Return the data with inputs, and targets that are numbers, in the units that the model was fitted in.

    InputError where they cannot be converted. Columns go by their place, as they do for the model.
    """
    data = model.info.get("data", {})
    kept = with_encoded_times(data.get("column_attributes", {}), data.get("encoding", {}), dataset.path)
    own = with_encoded_times(dataset.column_attributes, dataset.encoding, dataset.path)
    inputs, columns = list(data.get("inputs", ())), sight.columns
    if columns is not None and inputs:
        inputs = [inputs[column] for column in columns]
    targets = [] if dataset.labels is not None else list(dataset.target_columns)
    # Of C f the model's own outputs are none of the targets.
    fitted = targets if model.observe is not None else data.get("fitted", data.get("targets", ()))
    wanted: ColumnAttributes = {}
    for given, names in ((list(dataset.input_columns), inputs), (targets, fitted)):
        known = names if len(names) == len(given) else given
        wanted |= {column: kept.get(name, {}) for column, name in zip(given, known, strict=True)}
    wanted = {column: attributes for column, attributes in wanted.items() if not column.startswith("=")}
    return replace(dataset, column_attributes=own).converted(wanted)


def tell_conversions(dataset: Dataset, notice: Notice | None) -> None:
    """Call `notice` with sentences about the units that a data set's columns are converted to."""
    for sentence in conversion_notices([dataset.conversions]):
        if notice is not None:
            notice(sentence)


def check_inputs(model: Model, dataset: Dataset, sight: ModelInputs) -> None:
    """InputError where the data's inputs are not the model's, or not those of the views."""
    names, columns = model.info.get("data", {}).get("inputs"), sight.columns
    if names and columns is not None:
        names = [names[column] for column in columns]
    given = list(dataset.input_columns)
    if names and given != names and sorted(given) == sorted(names):
        problem = f"{dataset.path}: its inputs are {', '.join(given)}, but the model was fitted to {', '.join(names)}"
        raise InputError(f"{problem}; give them in that order")
    for name, each in model.info.get("data", {}).get("encoding", {}).items():
        given = dataset.encoding.get(name, each)
        if given != each and not ("time" in given and "time" in each):  # times are converted
            remedy = "ingest it again, with --like and the model"
            raise InputError(f"{dataset.path}: its input {name} is encoded otherwise than the model's; {remedy}")
    d = model.d if columns is None else len(columns)
    if dataset.d != d:
        fitted = f"{d}{' (' + ', '.join(names) + ')' if names else ''}{'' if columns is None else ' in these views'}"
        problem = f"{dataset.path}: has {dataset.d} input columns, but the model was fitted to {fitted}"
        raise InputError(f"{problem}; give the same columns in the same order")


def check_uncertain(model: Model, version: Path, wanted: str, *, of_targets: bool) -> None:
    """Raise InputError, naming the option that was `wanted`, where a model cannot say how sure it is.

    What is wanted is either of what the model predicts or (`of_targets`) of new targets, whose noise is in it.
    """
    if of_targets or not model.loss.likelihood:
        _check_noise(model, version, wanted)
    if model.posterior is None and model.loss.likelihood:
        remedy = "set solve.posterior: true in its job and fit again, or leave it out"
        raise InputError(f"{wanted}: {version} keeps no posterior; {remedy}")
    if model.posterior is None:
        remedy = "set solve.posterior: true in its job and fit again (sums that are kept are used again)"
        route = "Route `direct` has one, and `cg` of features on a lattice: set solve.route if the fit took another"
        raise InputError(f"{wanted}: {version} keeps no posterior; {remedy}. {route}")


def _check_noise(model: Model, version: Path, wanted: str) -> None:
    """Raise InputError where a model has no deviations of new targets."""
    if labels_of(model) is not None:
        why = "is a classifier, whose probabilities say how sure it is"
        deviations = "of the probabilities there are with loss multinomial or logistic and posterior: true"
        raise InputError(f"{wanted}: {version} {why} (deviations {deviations}); leave it out")
    if model.loss.kind == "quantiles":
        remedy = "its quantiles are bands (predict: a column for each; score: the share below each); leave it out"
        raise InputError(f"{wanted}: {version} has no deviations, but {remedy}")
    if model.loss.kind != "squared":
        why = f"was fitted by loss {model.loss.kind}, with no noise of targets"
        remedy = "ask for --std alone, of what it predicts" if model.loss.likelihood else "leave it out"
        raise InputError(f"{wanted}: {version} {why}; {remedy}")


@lru_cache(maxsize=2)
def cached_model(path: str, _content: str, *, posterior: bool = False) -> Model:
    """The model of a version, kept by the process that uses it for more than one run of rows."""
    return load_model(path, posterior=posterior)
