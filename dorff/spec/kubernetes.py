"""What `cluster: {type: kubernetes}` may say: pods, which the Dask operator starts for the fit."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from dorff.spec import checks
from dorff.spec.cluster import Bytes, ClusterSpec
from dorff.spec.part import OneOrMore
from dorff.spec.registry import CLUSTERS, Entry, lazily

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9./-]{0,251}[a-z0-9])?$")]
Names = Annotated[tuple[Name, ...], OneOrMore()]


class KubernetesCluster(ClusterSpec):
    """Dask workers as pods of `image`, which has the driver's packages. The Dask operator starts them for each fit and
    removes them at its end; the driver is a pod itself. A worker has a core, a thread and `memory` bytes, its pod a
    tenth more. `tls` is a secret with the files of `dorff credentials`; `claim` a volume claim, mounted at /srv/dorff;
    `env_from` are secrets whose keys become environment variables, such as an object store's; pods tolerate the taints
    `tolerations`."""

    on_this_machine: ClassVar[bool] = False
    type: Literal["kubernetes"] = "kubernetes"
    image: Annotated[str, Field(min_length=1), BeforeValidator(checks.text("the name of an image"))]
    workers: Annotated[int, Field(ge=1)] = 2
    memory: Bytes = 4 * 2**30
    namespace: Name | None = None  # the driver's own
    tls: Name = "dorff-tls"
    claim: Name | None = None
    env_from: Names = ()
    service_account: Name | None = None
    priority_class: Name | None = None
    tolerations: Names = ()


CLUSTERS.add(Entry("kubernetes", lazily("dorff.engine.kubernetes", "start_kubernetes"), KubernetesCluster))
