"""The types of a job: what JOB.yaml may say, read from a file or built in Python."""

from dorff.spec.job import (
    CurlFreeSpec,
    Data,
    DecomposableSpec,
    DivergenceFreeSpec,
    Features,
    Folds,
    GaussianSpec,
    Job,
    LocalCluster,
    MatrixOutput,
    RemoteCluster,
    SamplerSpec,
    SerialCluster,
    Solve,
    SumSpec,
    Term,
)
from dorff.spec.reader import load_job

__all__ = [
    "CurlFreeSpec",
    "Data",
    "DecomposableSpec",
    "DivergenceFreeSpec",
    "Features",
    "Folds",
    "GaussianSpec",
    "Job",
    "LocalCluster",
    "MatrixOutput",
    "RemoteCluster",
    "SamplerSpec",
    "SerialCluster",
    "Solve",
    "SumSpec",
    "Term",
    "load_job",
]
