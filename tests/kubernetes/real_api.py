"""`python tests/kubernetes/real_api.py CACHE`: deploy/kubernetes and `cluster: {type: kubernetes}` before a real API
server, with the Dask operator's own kinds and its controller. It is built into the folder CACHE the first time.

What it cannot show: that pods run. There is no kubelet, and what Kubernetes 1.20 is too old for is named below."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import yaml
from command_line import field, run, write_csv, write_job
from control_plane import Api, built, control_plane, started
from manifests import KUBERNETES, Document, build, identity, load, put
from test_kubernetes import environment
from test_manifests import PLANTED

from dorff.engine import kubernetes
from dorff.engine.clusters import credentials
from dorff.spec.reader import load_job

#: What Kubernetes 1.20 has by another version, and the fields that it does not have.
OLDER: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "CronJob": ("batch/v1beta1", ("/spec/jobTemplate/spec/podFailurePolicy",)),
    "PodDisruptionBudget": ("policy/v1beta1", ()),
}
OWN_RULES: Final = (
    "a read-only root",
    "no port 'web'",
)  # a server minds none of these
UNSAID: Final = ("/globalDefault",)  # a server keeps no false of it
_MEMORY: Final = "/spec/worker/spec/containers/0/resources/limits/memory"
#: What is planted in a DaskCluster.
CLUSTERS: Final = (
    ("/spec/worker/replica", 3), ("/spec/idleTimeout", "soon"), ("/spec/worker/replicas", "3"),
    ("/spec/worker/spec/containers/0/imge", "dorff"), ("/spec/worker/spec/containers/0/resources/limit", {}),
    (_MEMORY, "2Gigs"), ("/spec/worker/spec/containers/0/name", None), ("/spec/scheduler/service/ports/0/port", "8786"),
)  # fmt: skip
CORE, DASK, RBAC, PODS = (
    "/api/v1/namespaces/dorff",
    "/apis/kubernetes.dask.org/v1/namespaces",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/dorff",
    "/api/v1/namespaces/dorff/pods",
)
MAY: Final = (
    ("POST", f"{DASK}/dorff/daskclusters"), ("DELETE", f"{DASK}/dorff/daskclusters/x"), ("GET", PODS),
    ("GET", f"{CORE}/services/x"),
)  # fmt: skip
MAY_NOT: Final = (
    ("GET", f"{CORE}/secrets"), ("GET", f"{CORE}/secrets/dorff-tls"), ("POST", f"{CORE}/secrets"),
    ("GET", f"{CORE}/configmaps"), ("POST", f"{CORE}/configmaps"), ("GET", f"{CORE}/services"),
    ("POST", PODS), ("DELETE", f"{PODS}/x"), ("GET", f"{PODS}/x"), ("GET", f"{PODS}/x/log"), ("POST", f"{PODS}/x/exec"),
    ("POST", f"{CORE}/serviceaccounts/dorff/token"), ("GET", "/api/v1/pods"), ("GET", "/api/v1/nodes"),
    ("POST", f"{DASK}/default/daskclusters"), ("DELETE", f"{DASK}/default/daskclusters/x"),
    ("GET", f"{DASK}/dorff/daskclusters"), ("PATCH", f"{DASK}/dorff/daskclusters/x"),
    ("DELETE", f"{DASK}/dorff/daskclusters"), ("POST", f"{DASK}/dorff/daskjobs"),
    ("POST", "/apis/apps/v1/namespaces/dorff/deployments"), ("POST", f"{RBAC}/roles"), ("POST", f"{RBAC}/rolebindings"),
    ("PATCH", f"{RBAC}/roles/dorff"), ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
)  # fmt: skip
failures, passed = list[str](), list[str]()


def check(what: str, good: object, detail: object = "") -> None:
    print(f"{'ok' if good else 'FAILED':7}{what}{f': {detail}' if detail else ''}"[:300], flush=True)
    (passed if good else failures).append(what)


def pruned(sent: Any, stored: Any, at: str = "") -> Iterator[str]:
    """The fields that the server did not keep as they were sent."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        for key, value in sent.items():
            if key in stored:
                yield from pruned(value, stored[key], f"{at}/{key}")
            elif f"{at}/{key}" not in UNSAID:
                yield f"{at}/{key}"
    elif isinstance(sent, list) and isinstance(stored, list) and len(sent) <= len(stored):  # it may add some
        for number, (one, other) in enumerate(zip(sent, stored, strict=False)):
            yield from pruned(one, other, f"{at}/{number}")
    elif sent != stored:
        yield f"{at} as {stored!r}"


def older(document: Document) -> Document:
    """The object as Kubernetes 1.20 has it."""
    version, fields = OLDER.get(document["kind"], (document["apiVersion"], ()))
    document = copy.deepcopy(document) | {"apiVersion": version}
    for path in fields:
        *way, last = path.strip("/").split("/")
        at = document
        for key in way:
            at = at[key]
        del at[last]
    return document


def wrong(api: Api, document: Document, **options: str) -> str:
    """What the server says against an object; empty where it keeps it as it is."""
    status, answer = api.ask("POST", api.place(document), document, **options)
    if status == 201:
        return ", ".join(f"unknown field {one}" for one in pruned(document, answer))
    return f"{status} {answer['message']}"


def overlay(name: str) -> list[Document]:
    return build(KUBERNETES / "overlays" / name)


def check_overlay(api: Api, name: str) -> None:
    """Each object is created; what an earlier overlay has left is removed before."""
    for document in overlay(name):
        document = older(document)
        if document["kind"] == "Namespace" and api.ask("GET", f"/api/v1/namespaces/{identity(document)[1]}")[0] == 200:
            continue  # its end would be a controller's work
        api.ask("DELETE", f"{api.place(document)}/{identity(document)[1]}", propagationPolicy="Background")
        problem = wrong(api, document)
        check(f"{name}: {' '.join(identity(document))}", not problem, problem)


def check_planted(api: Api) -> None:
    objects = overlay("workers")
    for kind, path, value, rule in PLANTED:
        if path.startswith(OLDER.get(kind, ("", ()))[1]):
            print(f"-      {path} is not asked: Kubernetes 1.20 has no such field")
            continue
        document = older(next(one for one in objects if one["kind"] == kind))
        document["metadata"]["name"] = "planted"
        before = wrong(api, document, dryRun="All")
        put(document, path, value)
        problem, own = wrong(api, document, dryRun="All"), rule.startswith(OWN_RULES)
        words = "taken, a rule of ours alone" if own else "refused"
        check(f"{kind} {path} {value!r} is {words}", (problem != before) is not own, problem)


def check_clusters(api: Api, cluster: Any) -> None:
    for path, value in CLUSTERS:
        document: Any = kubernetes.resource(cluster, "dorff-1", "dorff")
        before = wrong(api, document, dryRun="All")
        put(document, path, value)
        problem = wrong(api, document, dryRun="All")
        words = "taken: no pattern is in the CRD" if path == _MEMORY else "refused"
        check(f"DaskCluster {path} {value!r} is {words}", (problem != before) is (path != _MEMORY), problem)


def check_rights(api: Api, name: str, may: tuple[tuple[str, str], ...]) -> None:
    """Requests by the driver's own token: 403 is a right that it does not have."""
    driver = api.of("dorff", "dorff")
    for method, path in MAY + MAY_NOT:
        body = {"apiVersion": "v1", "kind": "Nothing"} if method in ("POST", "PATCH") else None
        status, _ = driver.ask(method, path, body)
        allowed = (method, path) in may
        words = "may" if allowed else "may not"
        check(f"{name}: the driver {words} {method} {path}", (status != 403) is allowed, status)


Process = subprocess.Popen[bytes]
Meet = Callable[[Process, Document], None]


def until(true: Callable[[], Any], seconds: float = 600) -> Any:
    end = time.monotonic() + seconds
    while not (value := true()) and time.monotonic() < end:
        time.sleep(0.1)
    return value


def items(api: Api, path: str, **parameters: str) -> list[Any]:
    return api.ask("GET", path, **parameters)[1].get("items") or []


def clusters(api: Api) -> list[Any]:
    return items(api, f"{DASK}/dorff/daskclusters")


class Scene(NamedTuple):
    """The server, as its administrator; a folder with a job, its data and the driver's credentials."""

    api: Api
    folder: Path

    def check_fit(self, whose: Api, what: str, code: int, words: str, meet: Meet | None = None) -> None:
        """A fit of the overlay's cluster, with somebody's rights. `meet` is given the process and the DaskCluster that
        it has made; without it pods are waited for for 3 s."""
        start = 3 if meet is None else 300
        program = f"from dorff.engine import kubernetes; kubernetes.START = {start}; from dorff.cli import main; main()"
        env = environment(self.folder / "tls", whose.kubeconfig(self.folder / "kubeconfig", "dorff"))
        log = self.folder / "fit.log"
        with started([sys.executable, "-c", program, "fit", "job.yaml"], log, **env) as process:
            if meet is not None and until(lambda: clusters(self.api) or process.poll() is not None):
                for there in clusters(self.api):
                    meet(process, there)
            ended = until(lambda: process.poll() is not None)
        lines = [line for line in log.read_text().splitlines() if line] or ["nothing"]
        good = ended and process.returncode == code and words in lines[-1] and "Traceback" not in "".join(lines)
        check(f"{what} ends with {code}", good, f"{process.returncode}, {lines[-1]}")
        check(f"{what} leaves no DaskCluster", until(lambda: not clusters(self.api)))
        for left in clusters(self.api):
            self.api.ask("DELETE", f"{DASK}/dorff/daskclusters/{left['metadata']['name']}")

    def check_made(self, process: Process, there: Document) -> None:
        """What the operator makes of a DaskCluster, and the policies that are about its pods; then the pods, which a
        controller would make, and an image that their kubelet would not get."""
        name, apps = there["metadata"]["name"], "/apis/apps/v1/namespaces/dorff/deployments"
        count = 1 + there["spec"]["worker"]["replicas"]
        selector = {"labelSelector": f"dask.org/cluster-name={name}"}
        until(lambda: len(items(self.api, apps, **selector)) >= count)
        made = [one["spec"]["template"] for one in items(self.api, apps, **selector)]
        check("the operator makes a Deployment for the scheduler and each worker", len(made) == count, len(made))
        labels = [one["metadata"]["labels"] for one in made]
        for policy in items(self.api, "/apis/networking.k8s.io/v1/namespaces/dorff/networkpolicies"):
            called, wanted = policy["metadata"]["name"], policy["spec"]["podSelector"].get("matchLabels", {}).items()
            number = sum(wanted <= one.items() for one in labels)
            expected = {"dorff-driver": 0, "dorff-operator": 1}.get(called, count)
            check(f"network policy {called} is about {expected} of its pods", number == expected, number)
        service = self.api.ask("GET", f"{CORE}/services/{name}-scheduler")[1].get("spec", {})
        check("the operator makes a Service, with an address", service.get("clusterIP"), service.get("clusterIP"))
        selects = service.get("selector", {"": ""}).items()
        check("its Service selects the scheduler alone", sum(selects <= one.items() for one in labels) == 1)
        waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
        for number, one in enumerate(made):
            named = {"name": f"{name}-{number}", "namespace": "dorff", "labels": one["metadata"]["labels"]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": one["spec"]}
            check(
                f"pod {number} of its Deployments is kept as it is sent", not (problem := wrong(self.api, pod)), problem
            )
            state = {"name": one["spec"]["containers"][0]["name"], "image": "", "imageID": "", "ready": False}
            status = {"containerStatuses": [{**state, "restartCount": 0, **waiting}]}
            self.api.ask("PATCH", f"{PODS}/{name}-{number}/status", {"status": status})


def main(cache: Path) -> None:
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is started ends too
    cache.mkdir(parents=True, exist_ok=True)
    server = built(cache)
    print(f"{server}: of Debian 12's source, Kubernetes 1.20")
    for kind, (version, fields) in OLDER.items():
        print(f"{kind}: sent as {version}{''.join(f', without {one}' for one in fields)}")
    with tempfile.TemporaryDirectory() as name, control_plane(server, Path(name)) as api:
        folder = Path(name)
        credentials(folder / "tls")
        write_csv(folder / "sea.csv", field(300))
        run("ingest", "sea.csv", "sea.zarr", "--inputs", "a,b", "--targets", "u,v", cwd=folder)
        (text,) = (one["data"]["job.yaml"] for one in overlay("operator") if one["kind"] == "ConfigMap")
        write_job(folder / "job.yaml", cluster=yaml.safe_load(text)["cluster"])
        cluster: Any = load_job(folder / "job.yaml").cluster
        scene = Scene(api, folder)
        scene.check_fit(api, "a fit where there is no operator", 3, "install the Dask operator")
        crds = files("dask_kubernetes") / "operator" / "deployment" / "helm" / "dask-kubernetes-operator" / "crds"
        for document in [document for file in crds.iterdir() for document in load(file.read_text())]:
            check(f"CRD {identity(document)[1]}", not (problem := wrong(api, document)), problem)
        assert until(lambda: api.ask("GET", f"{DASK}/default/daskclusters")[0] == 200)
        check_overlay(api, "one-pod")
        check_rights(api, "one-pod", ())
        driver = api.of("dorff", "dorff")
        scene.check_fit(driver, "a fit without rights", 3, "role.yaml")
        scene.check_fit(api.with_token("none"), "a fit whose token is none", 3, "(Unauthorized); renew the token")
        for name in ("workers", "operator-s3", "operator"):
            check_overlay(api, name)
        check_planted(api)
        check_clusters(api, cluster)
        check_rights(api, "operator", MAY)
        driver = api.of("dorff", "dorff")
        scene.check_fit(driver, "a fit whose pods do not come", 5, "there are no pods")

        def stop(process: Process, there: Document) -> None:
            sent = kubernetes.resource(cluster, there["metadata"]["name"], "dorff")
            check("the DaskCluster is kept as it is sent", not (lost := list(pruned(sent, there))), lost)
            process.terminate()

        scene.check_fit(driver, "a fit that is told to end", 5, "stopped", stop)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "dorff"}}
        assert not wrong(api, account)  # a controller would make it
        kopf = [sys.executable, "-m", "kopf", "run", "-m", "dask_kubernetes.operator.controller", "--standalone"]
        config = api.kubeconfig(folder / "operator", "dorff")
        with started([*kopf, "--namespace", "dorff"], folder / "kopf.log", KUBECONFIG=str(config)):
            scene.check_fit(driver, "a fit without its image", 3, "ImagePullBackOff: no such image", scene.check_made)
    print(f"{len(passed)} passed, {len(failures)} failed, {time.monotonic() - begun:.0f} s")
    for what in failures:
        print(f"FAILED {what}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python tests/kubernetes/real_api.py FOLDER: where the API server is, or is to be built")
    main(Path(sys.argv[1]))
