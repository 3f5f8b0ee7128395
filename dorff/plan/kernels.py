"""The kernels of a job: its words made objects, its matrices read from their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from dorff import kernels
from dorff.errors import InputError

_FILES: Final = ("matrix", "factor", "graph")


def build_kernel(config: dict[str, Any], median: dict[str, float] | None = None) -> kernels.OperatorKernel:
    """The operator kernel of a job's `kernel:`, the word median replaced by its value (1 before it is known)."""
    values = median or {}

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            found = {key: replaced(item) for key, item in value.items()}
            if found.get("lengthscale") == "median":
                found["lengthscale"] = values.get("absolute" if found["type"] == "laplacian" else "euclidean", 1.0)
            return found
        return [replaced(item) for item in value] if isinstance(value, list | tuple) else value

    return kernels.from_config(replaced(config))


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
