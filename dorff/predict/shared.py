"""What predicting and scoring have in common: the published model, its labels, its inputs."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from dorff.calibration import Calibration
from dorff.data import Dataset, Label
from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.store import load_model


def labels_of(model: Model) -> tuple[Label, ...] | None:
    """The labels of a classifier, one for each output; None of other models."""
    labels = model.info.get("labels")
    return None if labels is None else tuple(labels)


def outcome(model: Model, X: FloatArray) -> FloatArray:
    """What a model predicts: f, or the probabilities of a calibrated classifier."""
    calibration, f = model.info.get("calibration"), model.predict(X)
    return f if calibration is None else Calibration.of(calibration).probabilities(f)


def check_inputs(model: Model, dataset: Dataset) -> None:
    """InputError where the data's inputs are not the model's."""
    names = model.info.get("data", {}).get("inputs")
    given = list(dataset.input_columns)
    if names and given != names and sorted(given) == sorted(names):
        raise InputError(
            f"{dataset.path}: its inputs are {', '.join(given)}, but the model was fitted to {', '.join(names)}; "
            "give them in that order"
        )
    if dataset.d != model.d:
        raise InputError(
            f"{dataset.path}: has {dataset.d} input columns, but the model was fitted to {model.d}"
            f"{' (' + ', '.join(names) + ')' if names else ''}; give the same columns in the same order"
        )


def check_uncertain(model: Model, version: Path, wanted: str) -> None:
    """InputError, naming the option that was `wanted`, where a model cannot say how sure it is."""
    if labels_of(model) is not None:
        raise InputError(f"{wanted}: {version} is a classifier, whose probabilities say how sure it is; leave it out")
    if model.posterior is None:
        raise InputError(
            f"{wanted}: {version} keeps no posterior; set solve.posterior: true in its job and fit again (no row is "
            "read again). Only the route `direct` has one: set solve.route to it where the fit took another"
        )


def content(version: Path) -> str:
    """Names all that is in a model: its description holds the checksums of its arrays."""
    return hashlib.sha256((version / "zarr.json").read_bytes()).hexdigest()


@lru_cache(maxsize=2)
def cached_model(path: str, _content: str, *, posterior: bool = False) -> Model:
    """The model of a version, kept by the process that uses it for more than one run of rows."""
    return load_model(path, posterior=posterior)
