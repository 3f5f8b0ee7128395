"""A stand-in for what a Kubernetes cluster is to a driver: an API server of the few requests that `dorff` makes, the
Dask operator (its own functions make the Deployments), and a kubelet that runs their containers as processes here,
with the credentials, names and probes that pods would have.

What it cannot show: that a real API server, operator and kubelet do the same."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import parse_qs, urlsplit

from manifests import Document, problems
from places import PYTHONPATH

NAMESPACE: Final = "dorff-here"
_DASK: Final = str(Path(sys.executable).with_name("dask"))


def deployments(resource: Document) -> dict[str, Document]:
    """What the operator makes of a DaskCluster, by name: the scheduler's Deployment and each worker's."""
    from dask_kubernetes.operator.controller import controller

    name, spec = resource["metadata"]["name"], resource["spec"]
    labels: Any = resource["metadata"].get("labels", {})
    made = [controller.build_scheduler_deployment_spec(name, spec["scheduler"]["spec"], {}, labels)]
    for number in range(spec["worker"]["replicas"]):
        uuid = f"{number:010x}"
        pod = spec["worker"]["spec"]
        group = f"{name}-default"
        made.append(controller.build_worker_deployment_spec(group, NAMESPACE, name, uuid, pod, {}, labels))
    return {document["metadata"]["name"]: json.loads(json.dumps(document)) for document in made}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@final
class Cluster:
    """What the API server knows. `refused` gives the status of requests, by verb and resource; `waiting` is what all
    containers wait for instead of running, `unscheduled` why no pod has a node; with `operator` off nothing is made of
    a DaskCluster."""

    def __init__(self, folder: Path, tls: Path) -> None:
        self.folder, self.tls = folder, tls
        self.refused = dict[tuple[str, str], int]()
        self.waiting: Document | None = None
        self.unscheduled = ""
        self.operator = True
        self.silent = False
        self.asked = list[tuple[str, str]]()
        self.made = list[Document]()  # every DaskCluster that there was
        self.there = dict[str, Document]()
        self.processes = dict[str, subprocess.Popen[bytes]]()
        self._ports = dict[str, int]()
        self._ending = threading.Thread()

    def create(self, resource: Document) -> None:
        assert problems(resource) == []
        name = resource["metadata"]["name"]
        self.made.append(resource)
        self.there[name] = resource
        self._ports = {"8786": free_port(), "8787": free_port()}
        if self.operator and self.waiting is None and not self.unscheduled:
            for called, document in deployments(resource).items():
                self.processes[called] = self._run(document["spec"]["template"]["spec"])

    def delete(self, name: str) -> None:
        """Its pods are told to end; a real API server does not wait for them either."""
        del self.there[name]
        self._ending = threading.Thread(target=self.end)
        self._ending.start()

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def left(self) -> int:
        """How many DaskClusters and processes of their pods are there."""
        return len(self.there) + len(self.processes)

    def close(self) -> None:
        if self._ending.ident is not None:
            self._ending.join()
        self.end()

    def _run(self, pod: Document) -> subprocess.Popen[bytes]:
        """A pod's container; its secret is mounted elsewhere, and its name server is this."""
        (container,) = pod["containers"]
        values = {one["name"]: self._here(one["value"]) for one in container["env"]}
        words = [self._here(word) for word in container["args"]]
        words = [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word) for word in words]
        assert words[0] == "dask"
        paths = os.pathsep.join([PYTHONPATH, *filter(None, [os.environ.get("PYTHONPATH")])])
        values |= {key: value for key, value in os.environ.items() if key.startswith("OPENBLAS_")}  # the CPU's kernels
        values |= {"PATH": "/usr/bin:/bin", "PYTHONPATH": paths}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen([_DASK, *words[1:]], env=values, cwd=self.folder, stdout=log, stderr=log)

    def _here(self, word: str) -> str:
        word = re.sub(rf"//[\w-]+-scheduler\.{NAMESPACE}", "//127.0.0.1", word)
        for port, free in self._ports.items():
            word = re.sub(rf"\b{port}\b", str(free), word)
        return word.replace("/etc/dorff/tls", str(self.tls)).replace("=/tmp", f"={self.folder}")

    def pods(self, selector: str) -> list[Document]:
        key, _, wanted = selector.partition("=")
        made = [
            resource for resource in self.there.values() if self.operator and wanted == resource["metadata"]["name"]
        ]
        pods = []
        for resource in made:
            for name, document in deployments(resource).items():
                metadata = {**document["spec"]["template"]["metadata"], "name": f"{name}-x"}
                assert metadata["labels"][key] == wanted
                pods.append({"metadata": metadata, "status": self._status(name)})
        return pods

    def _status(self, name: str) -> Document:
        if self.unscheduled:
            condition = {"type": "PodScheduled", "status": "False", "message": self.unscheduled}
            return {"phase": "Pending", "conditions": [condition]}
        if self.waiting is not None:
            return {"phase": "Pending", "containerStatuses": [self.waiting]}
        process = self.processes[name]
        ready = process.poll() is None and (not name.endswith("-scheduler") or self._healthy())
        return {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}

    def _healthy(self) -> bool:
        """The scheduler's readiness probe."""
        return self.asks_scheduler("/health") == 200

    def asks_scheduler(self, path: str) -> int:
        """What its HTTP server answers, which probes and the operator ask; 0 where it does not."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports['8787']}{path}") as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    def service(self) -> Document:
        return {"spec": {"clusterIP": "127.0.0.1", "ports": [{"name": "tcp-comm", "port": self._ports["8786"]}]}}


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, status: int, body: object) -> None:
        text = (body if isinstance(body, str) else json.dumps(body)).encode()  # an API server's own pages are no JSON
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _handle(self, method: str) -> None:
        cluster, at = self.cluster, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if cluster.silent:
            threading.Event().wait(30)
            return
        if at.path == "/version/":
            return self._answer(200, {"gitVersion": "v1.34.0"})
        match = re.fullmatch(rf"/apis?/(kubernetes\.dask\.org/)?v1/namespaces/{NAMESPACE}/(\w+)(?:/([\w-]+))?", at.path)
        if match is None or self.headers["Authorization"] != "Bearer here":
            return self._answer(404, {"message": f"no {at.path}"})
        resource, name = match[2], match[3]
        verb = {"POST": "create", "DELETE": "delete", "GET": "get" if name else "list"}[method]
        cluster.asked.append((verb, resource))
        if status := cluster.refused.get((verb, resource)):
            return self._answer(status, {"message": f"{resource} is forbidden"} if status == 403 else "no such page")
        if verb == "create":
            cluster.create(json.loads(body))
            return self._answer(201, cluster.made[-1])
        if verb == "delete":
            if name not in cluster.there:
                return self._answer(404, {"message": f"{resource} {name} not found"})
            cluster.delete(name)
            return self._answer(200, {})
        if resource == "pods":
            return self._answer(200, {"items": cluster.pods(parse_qs(at.query)["labelSelector"][0])})
        return self._answer(200, cluster.service())

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def do_DELETE(self) -> None:
        self._handle("DELETE")


@contextmanager
def api_server(folder: Path, tls: Path) -> Iterator[tuple[Cluster, Path]]:
    """A cluster, and the kubeconfig that leads to it."""
    cluster = Cluster(folder, tls)
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "here", "user": {"token": "here"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here", "namespace": NAMESPACE}}],
    }  # fmt: skip
    (folder / "kubeconfig").write_text(json.dumps(config))
    try:
        yield cluster, folder / "kubeconfig"
    finally:
        server.shutdown()
        server.server_close()
        cluster.close()
