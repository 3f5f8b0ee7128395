"""The kernels of a job: its words made objects, its matrices read from their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from dorff import kernels
from dorff.errors import InputError
from dorff.kernels.scalar import FloatArray

_FILES: Final = ("matrix", "factor", "graph")


Configs = tuple[dict[str, Any], ...]
WORDS: Final = ("median", "tune", "tune each")


def build_kernels(configs: Sequence[dict[str, Any]], d: int) -> tuple[kernels.OperatorKernel, ...]:
    """The operator kernels of a job for d inputs; a length-scale that is a word is about 1, until rows tell it: one
    for each input where each will have its own, so that samplers see kernels that rotations change."""

    def about(scalar: dict[str, Any]) -> Any:
        return [1.0 + place / 64 for place in range(d)] if scalar["lengthscale"] == "tune each" else 1.0

    return tuple(kernels.from_config(_replaced(config, about)) for config in configs)


def with_medians(configs: Configs, X: FloatArray, weights: FloatArray | None) -> list[dict[str, Any]]:
    """The same kernels, the word median replaced by that of the distances between scaled inputs X (n, d)."""

    def median(scalar: dict[str, Any]) -> Any:
        if scalar["lengthscale"] != "median":
            return scalar["lengthscale"]
        return kernels.median_lengthscale(X, absolute=scalar["type"] == "laplacian", weights=weights)

    return [_replaced(config, median) for config in configs]


def _replaced(value: Any, number: Callable[[dict[str, Any]], Any]) -> Any:
    """The same configuration, each length-scale that is a word replaced."""
    if isinstance(value, dict):
        found = {key: _replaced(item, number) for key, item in value.items()}
        if found.get("lengthscale") in WORDS:
            found["lengthscale"] = number(found)
        return found
    return [_replaced(item, number) for item in value] if isinstance(value, list | tuple) else value


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
