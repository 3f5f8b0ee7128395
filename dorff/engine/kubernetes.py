"""Scheduler and workers as pods: a DaskCluster, of which the Dask operator makes them, from its start to its end. The
KubeCluster of dask-kubernetes talks to its scheduler without TLS, and waits for ever for an image that cannot be
pulled. So the resource is made here, and the API server is asked through kr8s, as KubeCluster does."""

import asyncio
import logging
import os
import re
import time
import uuid
import warnings
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import yaml
from jinja2 import Environment, StrictUndefined

from dorff.engine.base import stopping_on_signals
from dorff.engine.clusters import connect, security_for
from dorff.engine.dask import DaskEngine
from dorff.errors import DorffError, IncompleteError, InputError, StoppedError
from dorff.errors.stopping import stop_requested
from dorff.spec.cluster import KubernetesCluster, RemoteCluster

Resource = Mapping[str, Any]
Question = Callable[[Any], Awaitable[Any]]  # of the API server
START: Final = 600.0  # seconds until scheduler and a worker are there: a node may have to come, and pull the image
_LOOK: Final = 1.0  # seconds between looks at the pods
_END: Final = 5.0  # seconds for their end: after a signal there are not many
#: No pod that waits for one of these will start.
_FATAL: Final = re.compile("ImagePullBackOff|InvalidImageName|ErrImageNeverPull|(Create|Run).*Error|CrashLoopBackOff")
_REMEDIES: Final = {
    401: "renew the token or the certificate of the service account or the kubeconfig",
    403: "give the driver's service account the rights of deploy/kubernetes/components/operator/role.yaml",
    404: "install the Dask operator, and name a namespace that is there",
}
_log: Final = logging.getLogger(__name__)


def start_kubernetes(cluster: KubernetesCluster, patience: float) -> DaskEngine:
    """Workers in pods, which go however the start or the engine ends. InputError where there are no credentials, the
    API server refuses, or a pod cannot run; IncompleteError where it is silent, or no worker comes in `START` s."""
    try:
        security_for(RemoteCluster(address="tls://scheduler:8786"))
    except InputError as error:
        files = "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ..._CLIENT__CERT and ..._CLIENT__KEY"
        where = f"mount the secret '{cluster.tls}' in its pod and name its files in {files}"
        raise InputError(f"cluster.type kubernetes: the driver has no credentials; {where}") from error
    name = f"dorff-{uuid.uuid4().hex[:10]}"
    with ExitStack() as undo:
        with stopping_on_signals():
            end = partial(_end, cluster, name, patience)
            address = _ask(partial(_start, cluster, name, partial(undo.callback, end)), cluster, patience)
        engine = connect(RemoteCluster(address=address), patience, ours=True, wait=START, on_close=end)
        undo.pop_all()
    return engine


async def _start(cluster: KubernetesCluster, name: str, begin: Callable[[], object], api: Any) -> str:
    """The scheduler's address, when it and a worker are ready; `begin` is called when there may be pods."""
    begin()
    await _call(api, "POST", "daskclusters", json=resource(cluster, name, api.namespace))
    until = time.monotonic() + START
    while True:
        if stop_requested():
            raise StoppedError("stopped while pods started")
        pods = (await _call(api, "GET", "pods", params={"labelSelector": f"dask.org/cluster-name={name}"}))["items"]
        ready = {pod["metadata"]["labels"]["dask.org/component"] for pod in pods if _condition(pod, "Ready") == "True"}
        if ready >= {"scheduler", "worker"}:
            service = (await _call(api, "GET", f"services/{name}-scheduler"))["spec"]
            return f"tls://{service['clusterIP']}:{service['ports'][0]['port']}"
        states = [_state(pod, cluster) for pod in pods]
        if time.monotonic() > until:
            why = "; ".join(states) or "there are no pods: see that the Dask operator runs, and watches the namespace"
            raise IncompleteError(f"cluster.type kubernetes: no worker in {START:.0f} s ({why}); run again")
        await asyncio.sleep(_LOOK)


def _end(cluster: KubernetesCluster, name: str, patience: float) -> None:
    """Have scheduler and workers removed, with the resource that they belong to; try for `_END` seconds."""
    until = time.monotonic() + _END
    while True:
        try:
            _ask(lambda api: _call(api, "DELETE", f"daskclusters/{name}"), cluster, min(patience, _END / 3), gone=True)
            return
        except DorffError as error:
            if isinstance(error, InputError) or time.monotonic() > until:
                return _log.warning("pods may be left: kubectl delete daskcluster %s (%s)", name, error)
        time.sleep(_LOOK / 2)


def _ask(question: Question, cluster: KubernetesCluster, patience: float, *, gone: bool = False) -> Any:
    """Ask the API server, by the kubeconfig or the service account that is there; what is asked for may be `gone`."""
    try:
        import httpx
        import kr8s.asyncio
    except ImportError as error:
        raise InputError("cluster.type kubernetes needs kr8s; pip install 'dorff[kubernetes]'") from error

    async def asked() -> Any:
        with warnings.catch_warnings(action="ignore"):  # of versions that kr8s has not been tried with
            try:
                api = await asyncio.wait_for(kr8s.asyncio.api(), patience)
            except (TypeError, ValueError, LookupError, FileNotFoundError, yaml.YAMLError) as error:
                remedy = "run the driver in a pod with a service account, or name a kubeconfig in KUBECONFIG"
                problem = f"cluster.type kubernetes: there is no API server to ask ({error})"
                raise InputError(f"{problem}; {remedy}") from error
        api.timeout, api.namespace = patience, cluster.namespace or api.namespace
        return await question(api)

    try:
        return asyncio.run(asked())
    except (OSError, httpx.HTTPError, kr8s.APITimeoutError, kr8s.ServerError) as error:
        # httpx has a second line: where to read about a status
        status, why = getattr(getattr(error, "response", None), "status_code", 500), str(error).partition("\n")[0]
        if gone and status == 404:
            return None
        if status < 500 and status != 429:  # too many requests
            remedy = _REMEDIES.get(status, "look at it")
            raise InputError(f"cluster.type kubernetes: the API server refuses ({why}); {remedy}") from error
        raise IncompleteError(f"cluster.type kubernetes: no answer of the API server ({why}); run again") from error


async def _call(api: Any, method: str, url: str, **options: Any) -> Any:
    version = "kubernetes.dask.org/v1" if url.startswith("dask") else "v1"
    async with api.call_api(method, version=version, namespace=api.namespace, url=url, **options) as answer:
        return answer.json()


def _condition(pod: Resource, kind: str, key: str = "status") -> str:
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((str(one.get(key, "")) for one in conditions if one["type"] == kind), "")


def _state(pod: Resource, cluster: KubernetesCluster) -> str:
    """What a pod waits for. InputError where that will not come."""
    name = pod["metadata"]["name"]
    for one in pod.get("status", {}).get("containerStatuses") or ():
        waiting = one.get("state", {}).get("waiting") or {}
        last = (one.get("lastState") or {}).get("terminated") or {}
        ended = f"it ended with {last['exitCode']}, {last.get('reason', '')}" if last else ""
        why = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"), ended)))
        if _FATAL.fullmatch(waiting.get("reason", "")):
            remedy = "correct the image, which has dorff and can be pulled there, the secrets or the memory"
            raise InputError(f"cluster.image {cluster.image}: pod {name} cannot run ({why}); {remedy}")
        if waiting:
            return f"{name}: {why}"
    return f"{name}: {_condition(pod, 'PodScheduled', 'message') or pod.get('status', {}).get('phase', 'new')}"


def resource(cluster: KubernetesCluster, name: str, namespace: str) -> Resource:
    """The DaskCluster; it belongs to the driver's pod, where that is known, and goes with it."""
    text = Path(__file__).with_name("daskcluster.yaml.j2").read_text(encoding="utf-8")
    owner = os.environ.get("DORFF_POD_NAME"), os.environ.get("DORFF_POD_UID")
    template = Environment(undefined=StrictUndefined, autoescape=False).from_string(text)
    return cast(Resource, yaml.safe_load(template.render(cluster=cluster, name=name, namespace=namespace, owner=owner)))
