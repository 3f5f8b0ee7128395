"""dorff: distributed operator-valued random Fourier features.

The public names are imported when they are first asked for, so that `import dorff` and a command's `--help`
load neither Numba nor Dask."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dorff import frequencies, graphs, kernels
    from dorff.estimators import ORFFClassifier, ORFFRegressor, RandomFeatures
    from dorff.features.lengthscale_search import tune_lengthscales
    from dorff.store.models import load_model

__all__ = [
    "ORFFClassifier",
    "ORFFRegressor",
    "RandomFeatures",
    "__version__",
    "frequencies",
    "graphs",
    "kernels",
    "load_model",
    "tune_lengthscales",
]

_HOMES = {
    "ORFFClassifier": "dorff.estimators",
    "ORFFRegressor": "dorff.estimators",
    "RandomFeatures": "dorff.estimators",
    "load_model": "dorff.store",
    "frequencies": "dorff.frequencies",
    "graphs": "dorff.graphs",
    "kernels": "dorff.kernels",
    "tune_lengthscales": "dorff.features.lengthscale_search",
}


def __getattr__(name: str) -> object:
    """Import the public `name` (PEP 562); AttributeError for any other."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dorff' has no attribute {name!r}")
    home = _HOMES[name]
    module = import_module(home)
    return module if home == f"dorff.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
