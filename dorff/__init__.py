"""dorff: distributed operator-valued random Fourier features.

Public names are imported when first asked for: `import dorff` and a command's `--help` load neither Numba nor Dask."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dorff import frequencies, graphs, kernels
    from dorff.estimators import (
        DoublyStochasticClassifier,
        DoublyStochasticRegressor,
        ORFFClassifier,
        ORFFRegressor,
        RandomFeatures,
        StochasticORFFClassifier,
        StochasticORFFRegressor,
    )
    from dorff.features.lengthscale_search import tune_lengthscales
    from dorff.store.models import load_model

__all__ = [
    "DoublyStochasticClassifier",
    "DoublyStochasticRegressor",
    "ORFFClassifier",
    "ORFFRegressor",
    "RandomFeatures",
    "StochasticORFFClassifier",
    "StochasticORFFRegressor",
    "__version__",
    "frequencies",
    "graphs",
    "kernels",
    "load_model",
    "tune_lengthscales",
]

_HOMES = {  # of the names that are not rooms
    **{name: "dorff.estimators" for name in __all__ if name[0].isupper()},
    "load_model": "dorff.store",
    "tune_lengthscales": "dorff.features.lengthscale_search",
}


def __getattr__(name: str) -> object:
    """Import the public `name` (PEP 562); AttributeError for any other."""
    if name not in __all__:
        raise AttributeError(f"module 'dorff' has no attribute {name!r}")
    module = import_module(_HOMES.get(name, f"dorff.{name}"))
    return getattr(module, name) if name in _HOMES else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
