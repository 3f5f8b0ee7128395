"""What the columns of predictions are called, and the attributes that they have by the CF conventions.

A target `u` becomes `u_predicted`, `u_std`, `u_low_95` and `u_high_95`; of a model of quantiles `u_q5`. No
column is called as the measured one, so that both can be in one table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dorff.data.encoding import from_attributes
from dorff.errors.shown import printable
from dorff.model import Model
from dorff.model.losses import Quantiles
from dorff.predict.shared import labels_of


@dataclass(frozen=True, kw_only=True)
class OutputColumn:
    """A column of predictions, and the `target` that it is about; "" where that is a class."""

    name: str
    target: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


def output_columns(model: Model, array: str, *, noise: bool = False) -> list[OutputColumn]:
    """Return the columns of an array of predictions: `y`, `classes`, `std`, `low_95`, ...

    With `noise` standard deviations are those of targets, which are not f where the
    model was fitted to C f.
    """
    if array == "classes":
        return [OutputColumn(name="class_predicted", attributes={"long_name": "most probable class"})]
    if array == "y" and labels_of(model) is not None:
        return [_class_column(model, label) for label in _outputs(model)]
    if array == "std" and labels_of(model) is not None:
        return [_class_std_column(label) for label in _outputs(model)]
    if array == "y" and isinstance(model.loss, Quantiles):
        levels = model.loss.quantiles
        return [_quantile_column(model, target, level) for target in fitted_targets(model) for level in levels]
    of_function = array == "y" or (array == "std" and not noise)
    targets = _outputs(model) if of_function else fitted_targets(model)
    return [_column(model, target, array) for target in targets]


def fitted_targets(model: Model) -> list[str]:
    """Return the names of the targets that the model was fitted to: those of C f, not of f."""
    data = model.info.get("data", {})
    if names := data.get("fitted"):
        return list(names)
    return _outputs(model) if model.observe is None else [f"y{number}" for number in range(len(model.observe))]


def model_inputs(model: Model) -> list[str]:
    """Return the columns that the model's inputs were made of: `colour` of colour=red and colour=blue."""
    data = model.info.get("data", {})
    encodings = from_attributes(data.get("encoding", {}), "the model").values()
    made = {column: one.column for one in encodings for column in one.columns}
    return list(dict.fromkeys(made.get(name, name) for name in data.get("inputs", ())))


def percent(level: float) -> str:
    """0.95 -> 95."""
    return f"{100 * level:.10g}"


def _outputs(model: Model) -> list[str]:
    """Return the names of f's outputs; of a classifier the classes."""
    return list(model.info.get("data", {}).get("targets") or [f"y{number}" for number in range(model.p)])


def _class_column(model: Model, label: str) -> OutputColumn:
    label = printable(label)  # which data have as it is
    if "calibration" not in model.info and not model.loss.likelihood:
        return OutputColumn(name=f"{label}_decision", attributes={"long_name": f"decision value of class {label}"})
    attributes = {"long_name": f"probability of class {label}", "units": "1"}
    return OutputColumn(name=f"{label}_probability", attributes=attributes)


def _class_std_column(label: str) -> OutputColumn:
    label = printable(label)
    attributes = {"long_name": f"standard deviation of the probability of class {label}", "units": "1"}
    return OutputColumn(name=f"{label}_std", attributes=attributes)


def _quantile_column(model: Model, target: str, level: float) -> OutputColumn:
    known = _attributes(model, target)
    attributes = known | {"long_name": f"{percent(level)}% quantile of {known.get('long_name', target)}"}
    return OutputColumn(name=f"{target}_q{percent(level)}", target=target, attributes=attributes)


def _column(model: Model, target: str, array: str) -> OutputColumn:
    known = _attributes(model, target)
    if array == "y":
        return OutputColumn(name=f"{target}_predicted", target=target, attributes=known)
    called, attributes = known.get("long_name", target), dict[str, str]()
    if units := known.get("units", "").partition(" since ")[0]:  # a difference of times has no origin
        attributes["units"] = units
    if array == "std":
        attributes["long_name"] = f"standard deviation of {called}"
        if "standard_name" in known:  # CF conventions, appendix C
            attributes["standard_name"] = f"{known['standard_name']} standard_error"
    else:
        end, _, level = array.partition("_")
        attributes["units"] = known.get("units", "")
        attributes["long_name"] = f"{'lower' if end == 'low' else 'upper'} end of the {level}% band of {called}"
    return OutputColumn(name=f"{target}_{array}", target=target, attributes={k: v for k, v in attributes.items() if v})


def _attributes(model: Model, target: str) -> dict[str, str]:
    return dict(model.info.get("data", {}).get("column_attributes", {}).get(target, {}))


def duplicates(names: Sequence[str]) -> list[str]:
    """Return the names that come more than once."""
    return sorted({name for name in names if names.count(name) > 1})
