"""What `cluster: {type: kubernetes}` may say: pods, which the Dask operator starts for the fit."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from dorff.spec import checks
from dorff.spec.cluster import Bytes, ClusterSpec
from dorff.spec.part import Idle, OneOrMore
from dorff.spec.registry import CLUSTERS, Entry, lazily

_PATTERN = r"^[a-z0-9]([a-z0-9./-]{0,251}[a-z0-9])?$"


def _name(value: object) -> object:
    if not isinstance(value, str) or not re.match(_PATTERN, value):
        raise checks.Refusal(f"must be a name in Kubernetes, came {checks.show(value)}; correct it")
    return value


Name = Annotated[str, BeforeValidator(_name), WithJsonSchema({"type": "string", "pattern": _PATTERN})]
Names = Annotated[tuple[Name, ...], OneOrMore()]


def _unmounted(cluster: KubernetesCluster, _: Any) -> str:
    return "" if cluster.claim else "there is no claim to mount (write claim: NAME)"


class KubernetesCluster(ClusterSpec):
    """Dask workers as pods of `image`, which has the driver's packages. The Dask operator starts them for each fit and
    removes them at its end; the driver is a pod itself. A worker has a core, a thread and `memory` bytes, its pod a
    tenth more. `tls` is a secret with the files of `dorff credentials`; `claim` a volume claim, mounted at `mount`;
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
    mount: Annotated[str, Field(pattern="^/."), Idle(_unmounted, refused=True)] = "/srv/dorff"
    env_from: Names = ()
    service_account: Name | None = None
    priority_class: Name | None = None
    tolerations: Names = ()


CLUSTERS.add(Entry("kubernetes", lazily("dorff.engine.kubernetes", "start_kubernetes"), KubernetesCluster))
