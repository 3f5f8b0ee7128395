"""Engines: where tasks run. What needs Dask is imported when it is first asked for: a job may run without it."""

from importlib import import_module
from typing import TYPE_CHECKING

from dorff.engine.base import Engine, PeakMemory, SerialEngine, Task, open_engine, peak_memory, stopping_on_signals

if TYPE_CHECKING:
    from dorff.engine.clusters import credentials, local_cluster
    from dorff.engine.dask import DaskEngine

_HOMES = {"DaskEngine": "dask", "credentials": "clusters", "local_cluster": "clusters"}


def __getattr__(name: str) -> object:
    """Import what needs Dask (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dorff.engine' has no attribute {name!r}")
    return getattr(import_module(f"dorff.engine.{_HOMES[name]}"), name)
