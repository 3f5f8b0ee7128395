"""`cluster: {type: kubernetes}`: what the operator is asked for, which rights that takes, a fit by workers in pods;
what is refused, in one sentence, with nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from api_server import NAMESPACE, Cluster, api_server, deployments
from command_line import CURL, DORFF, field, run, write_csv, write_job
from manifests import KUBERNETES, Document, amount, build, identity, missed_in_pod, problems
from processes import until
from table import Trial

from dorff import load_model
from dorff.data import ingest
from dorff.engine import Task, kubernetes, open_engine
from dorff.engine.clusters import credentials
from dorff.errors import IncompleteError, InputError, StoppedError
from dorff.spec.cluster import KubernetesCluster

FULL = {
    "image": "registry.example.org/dorff:1", "workers": 3, "memory": "2GiB", "namespace": "there", "tls": "ours",
    "claim": "rows", "env_from": ["s3", "more"], "service_account": "worker",
    "priority_class": "low", "tolerations": ["cloud.google.com/gke-spot", "CriticalAddonsOnly", "example.com/gpu_type"],
}  # fmt: skip


def spec(**options: Any) -> KubernetesCluster:
    return KubernetesCluster.model_validate({"image": "dorff", **options})


def asked(cluster: KubernetesCluster) -> Any:
    return kubernetes.resource(cluster, "dorff-1", cluster.namespace or NAMESPACE)


def test_every_key_is_in_the_pods() -> None:
    full = asked(spec(**FULL))
    worker, scheduler = (full["spec"][kind]["spec"] for kind in ("worker", "scheduler"))
    (container,) = worker["containers"]
    for pod in (worker, scheduler):
        assert pod["containers"][0]["image"] == FULL["image"]
        assert {"name": "tls", "secret": {"secretName": "ours", "defaultMode": 0o440}} in pod["volumes"]
        assert (pod["serviceAccountName"], pod["priorityClassName"]) == ("worker", "low")
        assert [one["key"] for one in pod["tolerations"]] == FULL["tolerations"]
    assert full["spec"]["worker"]["replicas"] == 3 and full["spec"]["idleTimeout"] == 4 * 3600
    assert "tls://dorff-1-scheduler.there:8786" in container["args"]
    assert f"--memory-limit={2 * 2**30}" in container["args"] and "--nthreads=1" in container["args"]
    assert 1.05 * 2 * 2**30 < amount(container["resources"]["limits"]["memory"]) < 1.2 * 2 * 2**30
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "rows"}} in worker["volumes"]
    assert {"name": "data", "mountPath": "/srv/dorff"} in container["volumeMounts"]
    assert container["envFrom"] == [{"secretRef": {"name": name}} for name in ("s3", "more")]
    least = asked(spec())["spec"]["worker"]["spec"]
    assert not {"serviceAccountName", "priorityClassName"} & set(least) and least["tolerations"] == []


def test_a_pod_that_is_known_owns_what_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ownerReferences" not in asked(spec())["metadata"]
    monkeypatch.setenv("DORFF_POD_NAME", "now-x7")
    monkeypatch.setenv("DORFF_POD_UID", "0-1")
    owners = asked(spec())["metadata"]["ownerReferences"]
    assert owners == [{"apiVersion": "v1", "kind": "Pod", "name": "now-x7", "uid": "0-1"}]


def overlay() -> list[Document]:
    return build(KUBERNETES / "overlays" / "operator")


@pytest.mark.parametrize("options", [FULL, {}])
def test_the_operator_makes_pods_of_it_that_are_let_in(options: dict[str, Any]) -> None:
    """They keep the rules of the namespace, and its network policies and its budget are about them."""
    resource = asked(spec(**options))
    assert problems(resource) == []
    made = deployments(resource)
    assert len(made) == 1 + resource["spec"]["worker"]["replicas"]
    for document in made.values():
        assert problems(document) == []
        assert list(missed_in_pod(document["spec"]["template"]["spec"])) == []
    every = [document["spec"]["template"]["metadata"]["labels"] for document in made.values()]
    selected = {}
    for document in overlay():
        if document["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
            selector = document["spec"].get("podSelector", document["spec"].get("selector"))
            wanted = selector.get("matchLabels", {})
            selected[document["metadata"]["name"]] = sum(wanted.items() <= labels.items() for labels in every)
    assert selected == {
        "nobody": len(made), "dorff": len(made), "dorff-operator": 1, "dorff-worker": len(made) - 1, "dorff-driver": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("image", "", "the name of an image"),
        ("tls", "Not_A_Name", "should match pattern"),
        ("claim", "a b", "should match pattern"),
        ("claim", "x.y/z", "should match pattern"),
        ("namespace", "a/b", "should match pattern"),
        ("namespace", "a.b", "should match pattern"),
        ("namespace", "a" * 64, "should match pattern"),
        ("tolerations", ["a/b/c"], "should match pattern"),
        ("image", "dorff:1\n", "should match pattern"),
        ("env_from", ["ok", 3], "valid string"),
        ("workers", 0, "greater than or equal to 1"),
        ("memory", "2Gigs", "2Gigs"),
        ("worker", 3, "did you mean 'workers'"),
    ],
)
def test_values_that_are_none_are_refused(key: str, value: object, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        spec(**{key: value})


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    credentials(folder)
    return folder


@pytest.fixture
def cluster(tmp_path: Path, tls: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster that this process may ask, and whose pods know its credentials."""
    monkeypatch.setattr(kubernetes, "_LOOK", 0.1)
    named = {"ca-file": "ca", "client.cert": "cert", "client.key": "key"}
    with (
        api_server(tmp_path, tls) as (cluster, kubeconfig),
        dask.config.set({f"distributed.comm.tls.{key}": str(tls / f"{name}.pem") for key, name in named.items()}),
    ):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield cluster


def add(one: int, other: int) -> int:
    return one + other


@pytest.mark.process
def test_workers_in_pods_do_tasks_with_the_rights_of_the_role(cluster: Cluster) -> None:
    """What is asked of the API server is what the Role allows: no more, and no less."""
    results: list[Any] = []
    with open_engine(spec(workers=2, memory="1GiB")) as engine:
        until(lambda: engine.threads == 2)
        engine.run([Task(add, (1, 2)), Task(add, (3, 4))], lambda _, result: results.append(result) or ())
        assert len(cluster.processes) == 3
        assert (
            cluster.asks_scheduler("/api/v1/check_idle") == 200
            and cluster.asks_scheduler("/info/main/workers.html") == 404
        )
    assert sorted(results) == [3, 7]
    assert cluster.there == {} and len(cluster.made) == 1
    until(lambda: not cluster.processes)
    (role,) = (document for document in overlay() if document["kind"] == "Role")
    allowed = {(verb, kind) for rule in role["rules"] for kind in rule["resources"] for verb in rule["verbs"]}
    assert set(cluster.asked) == allowed
    (binding,) = (document for document in overlay() if document["kind"] == "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert ("ServiceAccount", binding["subjects"][0]["name"]) in {identity(document) for document in overlay()}


def environment(tls: Path, kubeconfig: Path) -> dict[str, str]:
    named = {"CA_FILE": "ca", "CLIENT__CERT": "cert", "CLIENT__KEY": "key"}
    files = {f"DASK_DISTRIBUTED__COMM__TLS__{key}": str(tls / f"{name}.pem") for key, name in named.items()}
    return files | {"KUBECONFIG": str(kubeconfig)}


@pytest.mark.process
def test_a_fit_by_pods_is_that_of_one_process_to_the_last_bit(tmp_path: Path, tls: Path) -> None:
    write_csv(tmp_path / "sea.csv", field(3000))
    assert run("ingest", "sea.csv", "sea.zarr", "--inputs", "a,b", "--targets", "u,v", cwd=tmp_path).returncode == 0
    write_job(tmp_path / "serial.yaml", state="runs/serial", model="models/serial")
    pods = {"type": "kubernetes", "image": "dorff", "workers": 2, "memory": "1GiB"}
    write_job(tmp_path / "pods.yaml", cluster=pods, state="runs/pods", model="models/pods")
    assert run("fit", "serial.yaml", cwd=tmp_path).returncode == 0
    with api_server(tmp_path, tls) as (cluster, kubeconfig):
        done = run("fit", "pods.yaml", "--json", cwd=tmp_path, env=environment(tls, kubeconfig))
        assert done.returncode == 0, done.stderr + (tmp_path / "log").read_text()
        assert not json.loads(done.stdout)["in_driver"]
        assert cluster.there == {} and len(cluster.made) == 1
        until(lambda: not cluster.processes)
    ours, theirs = (load_model(tmp_path / "models" / name) for name in ("pods", "serial"))
    assert np.array_equal(ours.coefficients, theirs.coefficients)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_driver_that_is_told_to_end_while_pods_start_leaves_none(
    tmp_path: Path, tls: Path, number: signal.Signals, trial: Trial
) -> None:
    write_csv(tmp_path / "sea.csv", field(300))
    assert run("ingest", "sea.csv", "sea.zarr", "--inputs", "a,b", "--targets", "u,v", cwd=tmp_path).returncode == 0
    write_job(tmp_path / "job.yaml", cluster={"type": "kubernetes", "image": "dorff"})
    with api_server(tmp_path, tls) as (cluster, kubeconfig):
        cluster.unscheduled = "0/3 nodes are available"
        env = os.environ | environment(tls, kubeconfig)
        driver = subprocess.Popen([DORFF, "fit", "job.yaml"], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
        until(lambda: cluster.there)
        time.sleep(0.5)
        driver.send_signal(number)
        _, complained = driver.communicate(timeout=600)
        assert driver.returncode == 5 and "Traceback" not in complained, complained
        assert len(cluster.made) == 1
        trial.settle(f"driver ended by {number.name} while pods start", "exit 5", left=cluster.left)


def long_fit(folder: Path, **job: Any) -> None:
    """A job of four leaves of some seconds each."""
    np.save(folder / "rows.npy", field(4 * 16384))
    ingest([folder / "rows.npy"], folder / "sea.zarr", inputs=["c0", "c1"], targets=["c2", "c3"])
    pods = {"type": "kubernetes", "image": "dorff", "workers": 2, "memory": "1GiB"}
    write_job(folder / "job.yaml", kernel=CURL, features={"count": 1000}, cluster=pods, **job)


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    words = [DORFF, "fit", "job.yaml", "--json"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, cwd=folder, env=os.environ | environment, **pipes)


def finish(folder: Path, **environment: str) -> None:
    """The same command goes on from what is done."""
    done = run("fit", "job.yaml", "--json", cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["coverage"] == 1 and report["leaves_reused"] >= 1


@pytest.mark.process
@pytest.mark.slow
def test_a_driver_that_is_told_to_end_in_a_fit_leaves_no_pods(tmp_path: Path, tls: Path) -> None:
    """The API server fails at first."""
    long_fit(tmp_path)
    with api_server(tmp_path, tls) as (cluster, kubeconfig):
        driver = start(tmp_path, **environment(tls, kubeconfig))
        until(lambda: list(tmp_path.glob("runs/sea/*/receipts/*.json")))
        cluster.refused["delete", "daskclusters"] = 503
        driver.send_signal(signal.SIGTERM)
        until(lambda: ("delete", "daskclusters") in cluster.asked)
        cluster.refused.clear()
        _, complained = driver.communicate(timeout=600)
        assert driver.returncode == 5 and "what is done is kept" in complained, complained
        assert "pods may be left" not in complained and "Traceback" not in complained, complained
        assert cluster.there == {} and len(cluster.made) == 1
        until(lambda: not cluster.processes)
        finish(tmp_path, **environment(tls, kubeconfig))


@pytest.mark.process
@pytest.mark.slow
def test_what_a_killed_driver_leaves_is_its_pods_to_remove(tmp_path: Path, tls: Path) -> None:
    """By its owner, or by the operator, which is told after how long: the stand-in does neither. The next fit has pods
    of its own, and goes on."""
    long_fit(tmp_path)
    with api_server(tmp_path, tls) as (cluster, kubeconfig):
        pod = {"DORFF_POD_NAME": "now-x7", "DORFF_POD_UID": "0-1"}
        driver = start(tmp_path, **environment(tls, kubeconfig), **pod)
        until(lambda: list(tmp_path.glob("runs/sea/*/receipts/*.json")))
        driver.kill()
        driver.communicate()
        (left,) = cluster.there.values()
        assert left["metadata"]["ownerReferences"][0]["uid"] == "0-1" and left["spec"]["idleTimeout"] == 4 * 3600
        until(lambda: cluster.asks_scheduler("/api/v1/check_idle") == 200)
        cluster.delete(left["metadata"]["name"])
        until(lambda: not cluster.processes)
        finish(tmp_path, **environment(tls, kubeconfig))
        assert cluster.there == {} and len(cluster.made) == 2


@pytest.mark.process
def test_workers_that_all_go_are_waited_for_as_at_the_start(cluster: Cluster) -> None:
    """A spot node is taken, and another one has to come: longer than a cluster's own patience."""
    results: list[Any] = []
    with open_engine(spec(workers=1, memory="1GiB"), patience=8) as engine:
        (name,) = (name for name in cluster.processes if "worker" in name)
        cluster.processes[name].kill()
        cluster.processes[name].wait()
        until(lambda: engine.threads == 1 and not engine._client.nthreads())  # type: ignore[attr-defined]
        again = deployments(cluster.made[0])[name]["spec"]["template"]["spec"]
        timer = threading.Timer(12, lambda: cluster.processes.update({name: cluster._run(again)}))
        timer.start()
        engine.run([Task(add, (1, 2))], lambda _, result: results.append(result) or ())
        timer.join()
    assert results == [3]


def refused(error: type[Exception], match: str, *, patience: float = 20.0, **options: Any) -> None:
    with pytest.raises(error, match=match), open_engine(spec(**options), patience=patience):
        pass


def waiting(why: str, message: str = "", **last: Any) -> Document:
    return {"state": {"waiting": {"reason": why, "message": message}}, "lastState": {"terminated": last or None}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "match"),
    [
        (
            waiting("ImagePullBackOff", "Back-off pulling image"),
            "cannot run .ImagePullBackOff: Back-off pulling image",
        ),
        (waiting("InvalidImageName"), "cluster.image dorff: pod dorff-.*-x cannot run .InvalidImageName"),
        (waiting("CrashLoopBackOff", exitCode=137, reason="OOMKilled"), "it ended with 137, OOMKilled"),
        (waiting("RunContainerError", "exec: dask: not found"), "not found.*; correct the image"),
        (waiting("CreateContainerConfigError", 'secret "s3" not found'), 'secret "s3" not found'),
    ],
)
def test_a_pod_that_cannot_run_is_named_and_goes(cluster: Cluster, state: Document, match: str, trial: Trial) -> None:
    cluster.waiting = state
    refused(InputError, match)
    assert len(cluster.made) == 1
    trial.settle("pod that cannot run", "refused, the pod named", left=cluster.left)


@pytest.mark.slow
def test_pods_that_do_not_come_are_not_waited_for_for_ever(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, trial: Trial
) -> None:
    monkeypatch.setattr(kubernetes, "START", 0.5)
    cluster.unscheduled = "0/3 nodes are available: 3 Insufficient memory"
    refused(IncompleteError, "no worker in 0 s .dorff-.*: 0/3 nodes are available: 3 Insufficient memory")
    cluster.unscheduled, cluster.operator = "", False
    refused(IncompleteError, "there are no pods: see that the Dask operator runs")
    cluster.operator, cluster.waiting = True, waiting("ContainerCreating")
    refused(IncompleteError, "ContainerCreating")
    assert len(cluster.made) == 3
    trial.settle("pods that do not come", "ended after a while, with the reason", left=cluster.left)


@pytest.mark.parametrize(
    ("what", "status", "error", "match"),
    [
        (
            ("create", "daskclusters"),
            404,
            InputError,
            "server refuses .Client error '404 .*/daskclusters'.; install the Dask operator",
        ),
        (("create", "daskclusters"), 403, InputError, "is forbidden.*rights of deploy/kubernetes/components/operator"),
        (("list", "pods"), 401, InputError, "refuses .* renew the token"),
        (("list", "pods"), 403, InputError, "refuses .pods is forbidden.*service account the rights"),
        (("get", "services"), 403, InputError, "services is forbidden"),
        (
            ("list", "pods"),
            500,
            IncompleteError,
            "no answer of the API server .Server error '500 .*/pods.*'.; run again",
        ),
    ],
)
@pytest.mark.process
def test_what_the_api_server_refuses_is_said(
    cluster: Cluster,
    what: tuple[str, str],
    status: int,
    error: type[Exception],
    match: str,
    caplog: pytest.LogCaptureFixture,
    trial: Trial,
) -> None:
    cluster.refused[what] = status
    refused(error, match, workers=1)
    assert "may be left" not in caplog.text
    trial.settle(f"API server answers {status} to {' '.join(what)}", "ended, with the reason", left=cluster.left)


@pytest.mark.slow
@pytest.mark.parametrize("status", [429, 503])
def test_an_end_that_fails_is_tried_again(cluster: Cluster, caplog: pytest.LogCaptureFixture, status: int) -> None:
    cluster.refused["delete", "daskclusters"] = status
    cluster.waiting = waiting("ImagePullBackOff")
    end = ("delete", "daskclusters")
    well = threading.Thread(target=lambda: (until(lambda: end in cluster.asked), cluster.refused.clear()))
    well.start()
    refused(InputError, "ImagePullBackOff")
    well.join()
    assert cluster.there == {} and "may be left" not in caplog.text
    assert cluster.asked.count(end) > 1


@pytest.mark.slow
def test_an_end_that_nobody_answers_is_not_tried_for_long(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "_END", 1.5)
    began = time.monotonic()
    kubernetes._end(spec(), "dorff-1", 45.0)  # gone
    cluster.silent = True
    kubernetes._end(spec(), "dorff-1", 45.0)
    assert 1.5 < time.monotonic() - began < 8
    assert "pods may be left: kubectl delete daskcluster dorff-1 (" in caplog.text


def test_an_end_that_is_refused_says_what_is_left(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.refused["delete", "daskclusters"] = 403
    cluster.waiting = waiting("ImagePullBackOff")
    refused(InputError, "ImagePullBackOff")
    (name,) = cluster.there
    assert f"pods may be left: kubectl delete daskcluster {name}" in caplog.text


@pytest.mark.slow
def test_a_server_that_is_not_there_or_silent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster.silent = True
    refused(IncompleteError, "no answer of the API server", patience=1.0)
    config = json.loads((tmp_path / "kubeconfig").read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    refused(IncompleteError, "no answer of the API server")
    (tmp_path / "kubeconfig").write_text("{]")
    refused(InputError, "there is no API server to ask")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    refused(InputError, "there is no API server to ask.*in a pod with a service account, or name a kubeconfig")


def test_without_kr8s_or_credentials_the_extra_and_the_secret_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(InputError, "the driver has no credentials; mount the secret 'dorff-tls'")
    monkeypatch.setattr(kubernetes, "security_for", lambda cluster: None)
    monkeypatch.setitem(sys.modules, "kr8s", None)
    refused(InputError, r"needs kr8s; pip install 'dorff\[kubernetes\]'")


def test_a_stop_that_was_asked_for_ends_the_wait(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.unscheduled = "no node"
    monkeypatch.setattr(kubernetes, "stop_requested", lambda: True)
    refused(StoppedError, "stopped")
    assert len(cluster.made) == 1 and cluster.there == {}
