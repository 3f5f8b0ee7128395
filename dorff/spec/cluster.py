"""What `cluster` of a job may say: where the tasks run. Each type has a word in the registry."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from dorff.spec import checks
from dorff.spec.part import FilePath, Idle, Part
from dorff.spec.registry import CLUSTERS, Entry, Word, lazily

_TEXT = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([KMGTkmgt][Ii]?)?[Bb]\s*$"}
_BYTES = WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, _TEXT]})
Bytes = Annotated[int, BeforeValidator(checks.memory), _BYTES]


class ClusterSpec(Part):
    """The options of a type of cluster. `in_driver`: tasks run in the driver's own process. `on_this_machine`: its
    workers share the driver's memory and disk, and the plan counts them to what this machine has to hold. Elsewhere it
    has to hold the driver only."""

    in_driver: ClassVar[bool] = False
    on_this_machine: ClassVar[bool] = True

    if TYPE_CHECKING:  # what each type has besides, as an option or as a constant

        @property
        def type(self) -> str:
            """Its word in the registry."""

        @property
        def workers(self) -> int:
            """How many workers the plan counts on."""

        @property
        def memory(self) -> float:
            """Bytes a worker."""

    def of_work(self, seconds: float) -> ClusterSpec:
        """Where tasks run that take one core so many seconds, at a usual core's speed: there, unless it has another
        place for small ones."""
        return self


class LocalCluster(ClusterSpec):
    """Dask workers on this machine; `memory` is bytes a worker. Its scheduler listens on `host`, by TLS alone. A fit
    that one process has done before workers start runs in the driver; `small_jobs: workers` has workers for all."""

    START: ClassVar[float] = 4.0  # seconds more that a fit takes for having workers
    type: Literal["local"] = "local"
    workers: Annotated[int, Field(ge=1)] = 2
    memory: Bytes = 4 * 2**30
    host: str = "127.0.0.1"
    small_jobs: Literal["driver", "workers"] = "driver"

    def of_work(self, seconds: float) -> ClusterSpec:
        """The driver for what it has done before workers are there, by itself."""
        small = self.small_jobs == "driver" and seconds <= self.START
        return SerialCluster(memory=self.memory) if small else self


class SerialCluster(ClusterSpec):
    """One leaf after another in this process, without Dask; `memory` is bytes for the process."""

    in_driver: ClassVar[bool] = True
    workers: ClassVar[int] = 1
    type: Literal["serial"] = "serial"
    memory: Bytes = 4 * 2**30


class TLS(Part):
    """Files that let this client and a cluster know each other: the authority's certificate, ours and its key."""

    ca: FilePath
    cert: FilePath
    key: FilePath


def _plain(cluster: RemoteCluster, _: Any) -> str:
    return "" if cluster.encrypted else f"{cluster.address} is not encrypted (write tls://HOST:PORT)"


def _encrypted(cluster: RemoteCluster, _: Any) -> str:
    return f"{cluster.address} is encrypted" if cluster.encrypted else ""


class RemoteCluster(ClusterSpec):
    """A Dask cluster that runs already; its workers say how much memory they have, and it is planned as one of them.
    Off loopback its address begins with tls:// and `tls` names our credentials; tcp:// lets everybody in who can reach
    it, and is refused unless `plain_tcp` says that this is meant."""

    on_this_machine: ClassVar[bool] = False
    type: ClassVar[str] = "address"
    workers: ClassVar[int] = 1
    memory: ClassVar[float] = math.inf
    address: Annotated[
        str, BeforeValidator(checks.address), WithJsonSchema({"type": "string", "pattern": r"^[a-z]+://\S+$"})
    ]
    tls: Annotated[TLS | None, Idle(_plain, refused=True)] = None
    plain_tcp: Annotated[bool, Idle(_encrypted, refused=True)] = False

    @property
    def encrypted(self) -> bool:
        """Whether who listens on the way learns nothing, by TLS or because all is in one process."""
        return self.address.startswith(("tls://", "wss://", "inproc://"))


Cluster = Annotated[ClusterSpec, Word(CLUSTERS, default="local", later=("slurm",))]

CLUSTERS.add(
    Entry("local", lazily("dorff.engine.clusters", "start_local"), LocalCluster),
    Entry("serial", lazily("dorff.engine.base", "serial_engine"), SerialCluster),
    Entry("address", lazily("dorff.engine.clusters", "connect"), RemoteCluster, written="{address: tls://HOST:PORT}"),
)
