"""The types of a job: what JOB.yaml may say, read from a file or built in Python."""

from dorff.spec.cluster import TLS, ClusterSpec, LocalCluster, RemoteCluster, SerialCluster
from dorff.spec.job import (
    ClassTargets,
    Data,
    Features,
    Folds,
    Job,
    Publish,
    Solve,
)
from dorff.spec.kernel import (
    BoundedSpec,
    DecomposableSpec,
    FactorOutput,
    GraphOutput,
    LearnedOutputSpec,
    MatrixOutput,
    MultiViewSpec,
    SumSpec,
    TermSpec,
    VectorFieldSpec,
    ViewSpec,
)
from dorff.spec.manifold import GivenSpec, IdentitySpec, KnnSpec, ManifoldSpec
from dorff.spec.reader import load_job
