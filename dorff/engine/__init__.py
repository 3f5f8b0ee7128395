"""Engines: where tasks run. What needs Dask is in modules of its own: a job may run without it."""

from dorff.engine.base import Engine, PeakMemory, SerialEngine, Task, open_engine, peak_memory, stopping_on_signals
