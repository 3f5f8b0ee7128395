"""Engines: where tasks run."""

from dorff.engine.base import Engine, SerialEngine, Task, stopping_on_signals
from dorff.engine.clusters import credentials, local_cluster, open_engine
from dorff.engine.dask import DaskEngine
from dorff.engine.worker import PeakMemory, peak_memory
