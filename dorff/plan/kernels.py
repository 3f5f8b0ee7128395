"""The kernels of a job: its words made objects, its views' arrays made columns, its matrices read from their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from dorff import kernels
from dorff.data import Dataset
from dorff.data.nodes import open_array
from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray
from dorff.passes import Configs
from dorff.spec.registry import Config
from dorff.storage.location import locate

_FILES: Final = ("matrix", "factor", "graph")


WORDS: Final = ("median", "tune", "tune each")


def build_kernels(configs: Sequence[Config], d: int) -> tuple[kernels.OperatorKernel, ...]:
    """The operator kernels of a job for d inputs; a length-scale that is a word is about 1, until rows tell it: one
    for each input where each will have its own, so that samplers see kernels that rotations change."""

    def about(scalar: Config, columns: Sequence[int]) -> Any:
        return [1.0 + place / 64 for place in range(len(columns))] if scalar["lengthscale"] == "tune each" else 1.0

    return tuple(kernels.from_config(_replaced(config, about, range(d))) for config in configs)


def with_medians(configs: Configs, X: FloatArray, weights: FloatArray | None) -> list[Config]:
    """The same kernels, the word median replaced by that of the distances between scaled inputs X (n, d), of the
    columns that a kernel sees."""

    def median(scalar: Config, columns: Sequence[int]) -> Any:
        if scalar["lengthscale"] != "median":
            return scalar["lengthscale"]
        seen = X if len(columns) == X.shape[1] else X[:, columns]
        return kernels.median_lengthscale(seen, absolute=scalar["type"] == "laplacian", weights=weights)

    return [_replaced(config, median, range(X.shape[1])) for config in configs]


def _replaced(value: Any, number: Callable[[Config, Sequence[int]], Any], columns: Sequence[int]) -> Any:
    """The same configuration, each length-scale that is a word replaced by what `number` makes of its scalar kernel
    and the columns that this sees."""
    if isinstance(value, dict):
        columns = value.get("columns", columns)
        replaced = {key: _replaced(item, number, columns) for key, item in value.items()}
        if replaced.get("lengthscale") in WORDS:
            replaced["lengthscale"] = number(replaced, columns)
        return replaced
    return [_replaced(item, number, columns) for item in value] if isinstance(value, list | tuple) else value


def with_columns(config: Config, dataset: Dataset) -> Config:
    """The same kernel; of several views each with the columns of X (n, d) that its arrays are, in place of their
    names."""
    if config["type"] != "multi_view":
        return config
    columns = array_columns(dataset)
    views = [
        {
            "name": view["name"],
            "kernel": view["kernel"],
            "columns": [one for name in _names(view["inputs"]) for one in columns[name]],
        }
        for view in config["views"]
    ]
    return {"type": "multi_view", "views": views}


def array_columns(dataset: Dataset) -> dict[str, range]:
    """The columns of X (n, d) that each array of inputs is."""
    at, columns = 0, dict[str, range]()
    for name in dataset.inputs:
        width = open_array(locate(dataset.path), name).columns
        columns[name] = range(at, at + width)
        at += width
    return columns


def _names(names: str | Sequence[str]) -> Sequence[str]:
    return (names,) if isinstance(names, str) else names


def read_matrices(config: Any) -> Any:
    """The same configuration with output matrices that are files read in."""
    if isinstance(config, dict):
        return {
            key: read_matrix(Path(value)) if key in _FILES and isinstance(value, str) else read_matrices(value)
            for key, value in config.items()
        }
    return [read_matrices(value) for value in config] if isinstance(config, list | tuple) else config


def read_matrix(path: Path) -> list[list[float]]:
    try:
        matrix = (
            np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path, delimiter=",", ndmin=2)
        )
        rows: list[list[float]] = np.asarray(matrix, dtype=np.float64).tolist()
        return rows
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a matrix of numbers in NPY or comma-separated text ({error})") from error
