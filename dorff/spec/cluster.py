"""What `cluster` of a job may say: where the tasks run. Each type has a word in the registry."""

import math
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from dorff.errors.shown import show
from dorff.spec import checks
from dorff.spec.part import HARMLESS, FilePath, Idle, OneOrMore, Part, Positive
from dorff.spec.registry import CLUSTERS, Entry, Word, lazily
from dorff.spec.trust import Declares, Guarded
from dorff.storage.location import is_remote

_TEXT = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([KMGTkmgt][Ii]?)?[Bb]\s*$"}
_BYTES = WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, _TEXT]})
Bytes = Annotated[int, BeforeValidator(checks.memory), _BYTES, HARMLESS]
Workers = Annotated[int, Field(ge=1), HARMLESS]
_ELSEWHERE = Guarded("machines that tasks are sent to")
_QUEUE = Guarded("machines, or who pays for them")
_NETWORK = Guarded("a network that others may listen on")
_FILE = Guarded("a file of credentials")
_SECRET = Guarded("a secret of the cluster's")
_PODS = Guarded("rights or machines of pods")
_ADDRESS = WithJsonSchema({"type": "string", "pattern": f"^({checks.ADDRESS})$"})
_WALLTIME = r"(?!(0+-)?0+:00:)(\d{1,3}-)?\d{1,3}:[0-5]\d:[0-5]\d"
_Name = Annotated[str, Field(pattern="^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
_Namespace = Annotated[str, Field(pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
_Taint = Annotated[str, Field(pattern="^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")]
_TLS = "is not encrypted (write tls://HOST:PORT)"
_PLAIN = Idle(lambda one, _: "" if one.encrypted else f"{one.address} {_TLS}", refused=True)
_ENCRYPTED = Idle(lambda one, _: f"{one.address} is encrypted" if one.encrypted else "", refused=True)


class ClusterSpec(Part, Declares):
    """The options of a type of cluster, each of which declares what it is (`dorff.spec.trust`).

    `in_driver`: tasks run in the driver's own process. `on_this_machine`: its workers share the driver's memory and
    disk, and the plan counts them to what this machine has to hold. Elsewhere it has to hold the driver only."""

    in_driver: ClassVar[bool] = False
    on_this_machine: ClassVar[bool] = True

    if TYPE_CHECKING:  # of each type, an option or a constant: its word, the workers planned for, bytes of each

        @property
        def type(self) -> str: ...

        @property
        def workers(self) -> int: ...

        @property
        def memory(self) -> float: ...

    @property
    def lifetime(self) -> float:
        """Seconds after which a worker ends, to save what it has."""
        return math.inf

    def of_work(self, seconds: float) -> "ClusterSpec":
        """Where tasks run that take a usual core so many seconds: there, unless it has another place for small ones."""
        return self


class LocalCluster(ClusterSpec):
    """Dask workers on this machine; `memory` is bytes a worker. Its scheduler listens on `host`, by TLS alone. A fit
    that one process has done before workers start runs in the driver; `small_jobs: workers` has workers for all."""

    START: ClassVar[float] = 4.0  # seconds more that a fit takes for having workers
    type: Annotated[Literal["local"], HARMLESS] = "local"
    workers: Workers = 2
    memory: Bytes = 4 * 2**30
    host: Annotated[str, Guarded("an address to listen on", free=("127.0.0.1", "::1", "localhost"))] = "127.0.0.1"
    small_jobs: Annotated[Literal["driver", "workers"], HARMLESS] = "driver"

    def of_work(self, seconds: float) -> "ClusterSpec":
        """The driver for what it has done before workers are there, by itself."""
        return SerialCluster(memory=self.memory) if self.small_jobs == "driver" and seconds <= self.START else self


class SerialCluster(ClusterSpec):
    """One leaf after another in this process, without Dask; `memory` is bytes for the process."""

    in_driver: ClassVar[bool] = True
    workers: ClassVar[int] = 1
    type: Annotated[Literal["serial"], HARMLESS] = "serial"
    memory: Bytes = 4 * 2**30


class TLS(Part, Declares):
    """Files that let this client and a cluster know each other: the authority's certificate, ours and its key."""

    ca: Annotated[FilePath, _FILE]
    cert: Annotated[FilePath, _FILE]
    key: Annotated[FilePath, _FILE]


class RemoteCluster(ClusterSpec):
    """A Dask cluster that runs already, planned as one worker; a fit asks how much memory the workers have.
    Off loopback its address begins with tls:// and `tls` names our credentials; tcp:// lets everybody in who can reach
    it, and is refused unless `plain_tcp` says that this is meant."""

    on_this_machine: ClassVar[bool] = False
    type: ClassVar[str] = "address"
    workers: ClassVar[int] = 1
    memory: ClassVar[float] = math.inf
    address: Annotated[
        str, BeforeValidator(checks.address), _ADDRESS, Guarded("a machine whose answers and tasks are code")
    ]
    tls: Annotated[TLS | None, _PLAIN, HARMLESS] = None  # its keys are guarded
    plain_tcp: Annotated[bool, _ENCRYPTED, Guarded("a connection that nobody vouches for")] = False

    @property
    def encrypted(self) -> bool:
        """Whether who listens on the way learns nothing, by TLS or because all is in one process."""
        return self.address.startswith(("tls://", "wss://", "inproc://"))


def _walltime(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(_WALLTIME, value):
        return value
    wanted = 'must be a time in quotes, "HH:MM:SS" or "DAYS-HH:MM:SS", of a minute at least'
    raise checks.Refusal(f"{wanted}, came {show(value)}; correct it")


_SCHEMA = WithJsonSchema({"type": "string", "pattern": f"^{_WALLTIME}$"})
_Word = Annotated[str, Field(pattern=r"^(\w[\w.,:@+-]*)?$")]
#: Options of sbatch that dorff sets, with their short forms: by the key of the cluster that says them, where one does.
_OWN = {"walltime": "time t", "memory": "mem mem-per-cpu mem-per-gpu", "queue": "partition p", "account": "account A"}
_OWN |= {"folder": "output o error e", "workers": "array a ntasks n cpus-per-task c"}
_OWN |= {"": "job-name J requeue no-requeue wait W clusters M test-only"}


def _directive(value: str) -> str:
    for option in value.split():
        long = option[2:].partition("=")[0] if option.startswith("--") else ""
        for key, names in _OWN.items():  # sbatch takes the beginning of a long name for it
            if any(option[:2] == f"-{name}" or (long and name.startswith(long)) for name in names.split()):
                remedy = f"use cluster.{key}" if key else "take it out"
                raise checks.Refusal(f"has {option}, which dorff sets; {remedy}")
    return value


def _shared(value: Path) -> Path:
    if is_remote(value) or re.search(r"[^\w./+=@,:-]", str(value.absolute())):
        wanted = "a folder that the nodes see, whose path has but letters, digits and ./_+=@,:-"
        raise checks.Refusal(f"must be {wanted}; came '{value}'; name another")
    return value


_Directive = Annotated[str, Field(pattern=r"^-\S.*$"), AfterValidator(_directive)]


class SlurmCluster(ClusterSpec):
    """Jobs of Slurm's, one worker of one core each, which the driver asks for, replaces where they are lost and
    cancels at the end. `memory` is bytes a job, `queue` a partition, `walltime` as Slurm writes it: a worker ends
    before it, at a block's end, and another goes on. `directives` are other options of sbatch. All speak by TLS, over
    `interface`. `folder`, which the nodes see too, holds credentials while a fit runs, and what failed jobs printed.
    `wait`: seconds that a fit is without a running job before it gives up."""

    on_this_machine: ClassVar[bool] = False
    type: Annotated[Literal["slurm"], _ELSEWHERE]
    workers: Workers = 2
    memory: Bytes = 4 * 2**30
    walltime: Annotated[str, BeforeValidator(_walltime), _SCHEMA, HARMLESS] = "01:00:00"
    queue: Annotated[_Word, _QUEUE] = ""
    account: Annotated[_Word, _QUEUE] = ""
    directives: Annotated[tuple[_Directive, ...], OneOrMore(), Guarded("options that run code on the nodes")] = ()
    interface: Annotated[_Word, _NETWORK] = ""
    folder: Annotated[
        FilePath,
        Field(validate_default=True),
        AfterValidator(_shared),
        Guarded("a place for credentials, which nobody else may write to", always=True),
    ] = Path("slurm")
    wait: Annotated[Positive, HARMLESS] = 600.0

    @property
    def lifetime(self) -> int:
        """From its job's start; some seconds before the walltime."""
        parts = reversed(re.findall(r"\d+", self.walltime))
        walltime = sum(int(part) * unit for part, unit in zip(parts, (1, 60, 3600, 86400), strict=False))
        return walltime - max(20, min(120, walltime // 6))


class MPICluster(ClusterSpec):
    """The processes of `mpirun -n N dorff fit JOB.yaml`, or of srun: rank 0 schedules, rank 1 is the driver, all
    others are workers of `memory` bytes each. They speak by TLS, over `interface`."""

    on_this_machine: ClassVar[bool] = False
    workers: ClassVar[int] = 1
    type: Annotated[Literal["mpi"], _ELSEWHERE]
    memory: Bytes = 4 * 2**30
    interface: Annotated[_Word, _NETWORK] = ""


class KubernetesCluster(ClusterSpec):
    """Dask workers as pods of `image`, which has the driver's packages. The Dask operator starts them for each fit and
    removes them at its end; the driver is a pod itself. A worker has a core, a thread and `memory` bytes, its pod a
    tenth more. `tls` is a secret with the files of `dorff credentials`; `claim` a volume claim, mounted at /srv/dorff;
    `env_from` are secrets whose keys become environment variables, such as an object store's; pods tolerate the taints
    `tolerations`."""

    on_this_machine: ClassVar[bool] = False
    type: Annotated[Literal["kubernetes"], _ELSEWHERE] = "kubernetes"
    image: Annotated[
        str,
        Field(pattern=r"^\S+$"),
        BeforeValidator(partial(checks.text, "the name of an image")),
        Guarded("the code that pods run"),
    ]
    workers: Workers = 2
    memory: Bytes = 4 * 2**30
    namespace: Annotated[_Namespace | None, _PODS] = None  # the driver's own
    tls: Annotated[_Name, _SECRET] = "dorff-tls"
    claim: Annotated[_Name | None, Guarded("a volume of the cluster's")] = None
    env_from: Annotated[tuple[_Name, ...], OneOrMore(), _SECRET] = ()
    service_account: Annotated[_Name | None, _PODS] = None
    priority_class: Annotated[_Name | None, _PODS] = None
    tolerations: Annotated[tuple[_Taint, ...], OneOrMore(), _PODS] = ()


Cluster = Annotated[ClusterSpec, Word(CLUSTERS, default="local")]

CLUSTERS.add(
    Entry("local", lazily("dorff.engine.clusters", "start_local"), LocalCluster),
    Entry("serial", lambda *_: lazily("dorff.engine.base", "SerialEngine")(), SerialCluster),
    Entry("slurm", lazily("dorff.engine.jobqueue", "start_slurm"), SlurmCluster),
    Entry("mpi", lazily("dorff.engine.mpi", "start_mpi"), MPICluster),
    Entry("kubernetes", lazily("dorff.engine.kubernetes", "start_kubernetes"), KubernetesCluster),
    Entry("address", lazily("dorff.engine.clusters", "connect"), RemoteCluster, written="{address: tls://HOST:PORT}"),
)
