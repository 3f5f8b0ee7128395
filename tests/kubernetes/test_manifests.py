"""deploy/kubernetes: what every overlay sends is what an API server takes, and what is planted wrong is refused."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import call
from manifests import KUBERNETES, OVERLAYS, Document, amount, build, identity, load, pod_of, problems, put

from dorff.spec.cluster import KubernetesCluster, RemoteCluster
from dorff.spec.reader import load_job

CODES = set(range(8))
AGAIN = {5, 7}  # incomplete; held by another job that shares the state or the model


@cache
def _overlay(name: str) -> list[Document]:
    return build(KUBERNETES / "overlays" / name)


def overlay(name: str) -> list[Document]:
    return copy.deepcopy(_overlay(name))


def one(name: str, kind: str, called: str) -> Document:
    (document,) = (document for document in overlay(name) if identity(document) == (kind, called))
    return document


def driver(name: str) -> Document:
    document = one(name, "CronJob", "dorff-fit-sea")
    spec: Document = document["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_api_server_takes_every_object(name: str) -> None:
    assert {identity(document): wrong for document in overlay(name) if (wrong := problems(document))} == {}


JOB = "/spec/jobTemplate/spec"
POD = f"{JOB}/template/spec"
CONTAINER = f"{POD}/containers/0"
DEPLOYMENT = "/spec/template/spec/containers/0"


#: What is wrong: kind, path, value and what is answered. real_api.py asks a real API server about the same.
PLANTED: list[tuple[str, str, object, str]] = [
    ("CronJob", "/spec/concurrencyPolcy", "Forbid", "concurrencyPolcy"),
    ("CronJob", "/spec/jobTemplate/spec/backoffLimt", 3, "backoffLimt"),
    ("CronJob", f"{CONTAINER}/volumeMount", [], "volumeMount"),
    ("CronJob", "/spec/jobTemplate/spec/backoffLimit", "6", "'6' is not of type"),
    ("CronJob", "/spec/concurrencyPolicy", "Never", "'Never' is not one of"),
    ("CronJob", "/spec/schedule", "5 25 * * *", "is no cron line"),
    ("CronJob", "/spec/schedule", "every night", "is no cron line"),
    ("CronJob", "/spec/schedule", "5 2 * *", "is no cron line"),
    ("CronJob", f"{CONTAINER}/resources/limits/memory", "2Gigs", "'2Gigs' is no quantity"),
    ("CronJob", f"{CONTAINER}/resources/limits/memory", "2 Gi", "'2 Gi' is no quantity"),
    ("CronJob", f"{CONTAINER}/resources/limits/memory", "15Gi", "request and limit must be one"),
    ("CronJob", "/spec/jobTemplate/spec/template/spec/volumes/1/emptyDir/sizeLimit", "1GiB", "'1GiB' is no quant"),
    (
        "CronJob",
        "/spec/jobTemplate/spec/template/spec/restartPolicy",
        "Always",
        "restartPolicy: 'Always' in a job",
    ),
    (
        "CronJob",
        "/spec/jobTemplate/spec/podFailurePolicy/rules/1/onExitCodes/containerName",
        "fit",
        "no container",
    ),
    ("CronJob", f"{CONTAINER}/securityContext/readOnlyRootFilesystem", False, "a read-only root"),
    ("CronJob", f"{CONTAINER}/volumeMounts/0/name", "jobs", "no volume jobs"),
    ("Deployment", f"{DEPLOYMENT}/ports/0/containerPort", "8786", "'8786' is not of type"),
    ("Deployment", f"{DEPLOYMENT}/livenessProbe/httpGet/port", "web", "no port 'web'"),
    ("Deployment", "/spec/selector/matchLabels", {"app": "other"}, "does not select its own pods"),
    ("PersistentVolumeClaim", "/spec/resources/requests/storage", "200GB", "'200GB' is no quantity"),
    ("NetworkPolicy", "/spec/policyTypes/0", "ingres", "'ingres' is not one of"),
    ("PodDisruptionBudget", "/spec/maxUnavailble", 1, "maxUnavailble"),
    ("Service", "/metadata/name", "Dorff_Scheduler", "is no name"),
]


@pytest.mark.parametrize(("kind", "path", "value", "wrong"), PLANTED)
def test_what_is_planted_wrong_is_refused(kind: str, path: str, value: object, wrong: str) -> None:
    document = next(document for document in overlay("workers") if document["kind"] == kind)
    assert problems(document) == []
    put(document, path, value)
    (problem, *_) = problems(document)
    assert wrong in problem


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="name stands twice"):
        load("metadata: {name: a, name: b}")


@pytest.mark.process
@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_builds_the_same(name: str) -> None:
    kubectl = shutil.which("kubectl")
    version = subprocess.run([kubectl, "version", "--client"], capture_output=True, text=True).stdout if kubectl else ""
    if kubectl is None or not re.search(r"Kustomize Version: v[5-9]", version):
        pytest.skip("needs kubectl 1.27 or newer, which has kustomize 5")
    command = [kubectl, "kustomize", str(KUBERNETES / "overlays" / name)]
    built = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, check=True).stdout))
    assert sorted(built, key=identity) == sorted(overlay(name), key=identity)


@pytest.mark.parametrize("name", OVERLAYS)
def test_objects_name_only_what_is_there(name: str) -> None:
    """Secrets are made by hand, and the README says how; all else is in the overlay."""
    objects = overlay(name)
    there = {identity(document) for document in objects}
    readme = (KUBERNETES.parent / "README.md").read_text()
    for document in objects:
        assert document["metadata"].get("namespace") == (
            None if document["kind"] in ("Namespace", "PriorityClass") else "dorff"
        )
        pod = pod_of(document)
        if pod is None:
            continue
        spec = pod["spec"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in there
        assert ("PriorityClass", spec["priorityClassName"]) in there
        for volume in spec["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in there
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in there
            if "secret" in volume:
                assert f"create secret generic {volume['secret']['secretName']} " in readme
        for source in spec["containers"][0].get("envFrom", []):
            assert f"create secret generic {source['secretRef']['name']} " in readme


def labels(document: Document) -> dict[str, str]:
    found: dict[str, str] = (pod_of(document) or {}).get("metadata", {}).get("labels", {})
    return found


def test_policies_and_budgets_select_pods_that_there_are() -> None:
    """Those of the operator's pods are checked in test_kubernetes.py, which makes them."""
    objects = overlay("workers")
    pods = [labels(document) for document in objects if pod_of(document)]
    for document in objects:
        spec = document["spec"] if document["kind"] in ("NetworkPolicy", "PodDisruptionBudget", "Service") else {}
        selector = spec.get("podSelector", spec.get("selector", {}))
        wanted = selector.get("matchLabels", {}) if document["kind"] != "Service" else selector
        if spec:
            assert any(wanted.items() <= pod.items() for pod in pods), identity(document)


def test_nobody_outside_reaches_the_cluster() -> None:
    """Without the operator nobody comes in but pods of dorff, and they go nowhere but to each other and to names."""
    for document in overlay("workers"):
        if document["kind"] == "NetworkPolicy":
            spec = document["spec"]
            assert spec["policyTypes"] == ["Ingress", "Egress"]
            peers = [peer for rule in spec.get("ingress", []) for peer in rule["from"]]
            assert all(peer == {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "dorff"}}} for peer in peers)
            for rule in spec.get("egress", []):
                assert rule["to"] and ("ports" not in rule or {port["port"] for port in rule["ports"]} == {53})


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_cron_job_runs_again_what_is_incomplete_or_leased(name: str) -> None:
    job = one(name, "CronJob", "dorff-fit-sea")["spec"]
    assert job["concurrencyPolicy"] == "Forbid"
    inner = job["jobTemplate"]["spec"]
    ignored, failing = inner["podFailurePolicy"]["rules"]
    assert ignored["action"] == "Ignore" and failing["action"] == "FailJob" and inner["backoffLimit"] > 0
    assert set(failing["onExitCodes"]["values"]) == CODES - {0, *AGAIN}
    pod = driver(name)
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] >= 30
    assert {"name": "DORFF_LOG", "value": "json"} in container["env"]
    assert container["command"][:2] == ["dorff", "fit"]
    assert pod["automountServiceAccountToken"] == name.startswith("operator")


@pytest.mark.parametrize("name", OVERLAYS)
def test_dorff_understands_the_command(name: str) -> None:
    """All that it minds is that the file is not there."""
    command = driver(name)["containers"][0]["command"]
    done = call(*[word.replace("/srv/dorff/sea/", "/tmp/") for word in command[1:]])
    assert done.exit_code == 3 and "/etc/dorff/job/job.yaml" in done.stderr


@pytest.mark.parametrize("name", OVERLAYS)
def test_jobs_are_jobs(tmp_path: Path, name: str) -> None:
    """dorff reads them, and all that they name is where the driver's pod has a volume, or in a bucket."""
    job = read(tmp_path, name)
    if name == "operator-s3":
        assert all(str(path).startswith("s3://") for path in (job.data.store, job.state, job.model))
        secrets = {source["secretRef"]["name"] for source in driver(name)["containers"][0]["envFrom"]}
        assert set(job.cluster.env_from) == secrets
        return
    mounts = {mount["mountPath"] for mount in driver(name)["containers"][0]["volumeMounts"]}
    assert all(str(path).startswith("/srv/dorff/") for path in (job.data.store, job.state, job.model))
    assert "/srv/dorff" in mounts


def read(folder: Path, name: str) -> Any:
    text = one(name, "ConfigMap", "dorff-job-sea")["data"]["job.yaml"]
    (folder / "job.yaml").write_text(text)
    return load_job(folder / "job.yaml")


def test_the_operators_job_asks_for_what_its_overlay_has(tmp_path: Path) -> None:
    cluster = read(tmp_path, "operator").cluster
    there = {identity(document) for document in overlay("operator")}
    pod = driver("operator")
    assert isinstance(cluster, KubernetesCluster)
    assert cluster.image == pod["containers"][0]["image"]
    assert ("PersistentVolumeClaim", cluster.claim) in there and ("PriorityClass", cluster.priority_class) in there
    assert {"secretName": cluster.tls, "defaultMode": 0o440} in [volume.get("secret") for volume in pod["volumes"]]


def test_workers_of_deployments_have_the_plans_memory_and_the_services_address(tmp_path: Path) -> None:
    cluster = read(tmp_path, "workers").cluster
    service = one("workers", "Service", "dorff-scheduler")
    assert isinstance(cluster, RemoteCluster)
    assert cluster.address == f"tls://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    (container,) = one("workers", "Deployment", "dorff-worker")["spec"]["template"]["spec"]["containers"]
    assert cluster.address in container["command"] and "--nthreads=1" in container["command"]
    assert "--memory-limit=4GiB" in container["command"]
    assert 1.05 * 4 * 2**30 < amount(container["resources"]["limits"]["memory"]) < 1.25 * 4 * 2**30


def test_the_readme_has_a_row_for_every_overlay() -> None:
    readme = (KUBERNETES.parent / "README.md").read_text()
    assert re.findall(r"^\| `([\w-]+)` \| .* \| .* \| .* \|$", readme, re.MULTILINE) == sorted(
        OVERLAYS, key=["one-pod", "workers", "operator", "operator-s3"].index
    )
