"""deploy/kubernetes as an API server would see it: the overlays are built, and each object is held against the schema
of its kind and against what schemas miss.

The build is a small one: of kustomize it knows resources, components and JSON patches with a target, which are all
that the files use, and refuses every other key. Where there is a kustomize, a test compares."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import yaml
from places import ROOT

KUBERNETES: Final = ROOT / "deploy" / "kubernetes"
OVERLAYS: Final = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
VERSION: Final = "1.34"  # of Kubernetes, whose schemas are used
Document = dict[str, Any]


class _Strict(yaml.CSafeLoader):
    """YAML in which no key stands twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise ValueError(f"{node.start_mark}: {', '.join(map(str, twice))} stands twice")
        return super().construct_mapping(node, deep)


def load(text: str) -> list[Document]:
    return [document for document in yaml.load_all(text, _Strict) if document is not None]


def build(folder: Path) -> list[Document]:
    """The objects that `kubectl apply -k` would send."""
    return _kustomized(folder, [], "Kustomization")


def _kustomized(folder: Path, objects: list[Document], kind: str) -> list[Document]:
    (file,) = load((folder / "kustomization.yaml").read_text())
    assert file.pop("kind") == kind and file.pop("apiVersion").startswith("kustomize.config.k8s.io/"), folder
    resources, components, patches = (file.pop(key, []) for key in ("resources", "components", "patches"))
    assert not file, f"{folder}: {', '.join(file)} is not known here"
    for name in resources:
        path = (folder / name).resolve()
        objects = objects + (build(path) if path.is_dir() else load(path.read_text()))
    for name in components:
        objects = _kustomized((folder / name).resolve(), objects, "Component")
    for patch in patches:
        assert set(patch) == {"target", "patch"} and set(patch["target"]) == {"kind", "name"}, patch
        objects = [_patched(one, patch) for one in objects]
    names = [identity(one) for one in objects]
    assert len(names) == len(set(names)), f"{folder}: the same object twice"
    return objects


def identity(document: Document) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def _patched(document: Document, patch: Document) -> Document:
    if identity(document) != (patch["target"]["kind"], patch["target"]["name"]):
        return document
    document = copy.deepcopy(document)
    for step in load(patch["patch"])[0]:
        put(document, step["path"], step["value"], new=step["op"] == "add")
        assert step["op"] in ("add", "replace") and set(step) == {"op", "path", "value"}, step
    return document


def put(document: Document, path: str, value: object, *, new: bool = True) -> None:
    """One step of a JSON patch."""
    *way, last = path.removeprefix("/").split("/")
    at: Any = document
    for key in way:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if isinstance(at, list):
        if last == "-":
            at.append(value)
        elif new:
            at.insert(int(last), value)
        else:
            at[int(last)] = value
    else:
        assert new or last in at, f"{path} is not there"
        at[last] = value


def problems(document: Document) -> list[str]:
    """What is wrong with one object; empty where nothing is."""
    schema = _custom().get((document.get("apiVersion", ""), document.get("kind", "")))
    if schema is not None:
        errors = jsonschema.Draft7Validator(schema).iter_errors(document)
        return [*(f"{_place(error)}: {error.message[:150]}" for error in errors), *_missed(document)]
    try:
        kubernetes_validate.validate(document, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{_place(error)}: {error.message[:150]}"]
    return list(_missed(document))


def _place(error: Any) -> str:
    return "/".join(map(str, error.absolute_path if hasattr(error, "absolute_path") else error.path))


@cache
def _custom() -> dict[tuple[str, str], Document]:
    """The schemas of the Dask operator's own kinds; a key that they do not have is refused."""
    schemas: dict[tuple[str, str], Document] = {}
    folder = files("dask_kubernetes") / "operator" / "deployment" / "helm" / "dask-kubernetes-operator" / "crds"
    for file in folder.iterdir():
        for document in load(file.read_text()):
            spec = document["spec"]
            for version in spec["versions"]:
                schema = _closed(version["schema"]["openAPIV3Schema"])
                schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}}
                schemas[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return schemas


def _closed(schema: Any) -> Any:
    """What Kubernetes writes into a schema, as JSON Schema: objects take the keys they list, and no others."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: value if key in ("enum", "default") else _closed(value) for key, value in schema.items()}
    if schema.pop("x-kubernetes-int-or-string", False) is True:
        schema.pop("type", None)
        schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    opened = schema.get("x-kubernetes-preserve-unknown-fields") is True
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and not opened:
        schema.setdefault("additionalProperties", False)
    return schema


# What the schemas of Kubernetes let pass, and its API server does not.
_QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_CRON = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_UNITS = {"": 1, "m": 1e-3, **{f"{u}i": 2.0 ** (10 * i) for i, u in enumerate("KMGTPE", 1)}} | {
    u: 10.0 ** (3 * i) for i, u in enumerate("kMGTPE", 1)
}
#: Words that the schemas take for any text, by their key.
_WORDS = {
    "concurrencyPolicy": {"Allow", "Forbid", "Replace"},
    "restartPolicy": {"Always", "OnFailure", "Never"},
    "policyTypes": {"Ingress", "Egress"},
    "preemptionPolicy": {"Never", "PreemptLowerPriority"},
    "action": {"Ignore", "FailJob", "FailIndex", "Count"},
    "operator": {"In", "NotIn", "Exists", "Equal", "DoesNotExist"},
    "protocol": {"TCP", "UDP", "SCTP"},
    "accessModes": {"ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"},
    "fsGroupChangePolicy": {"OnRootMismatch", "Always"},
}


def pod_of(document: Document) -> Document | None:
    """The pod that a workload makes: its metadata and spec."""
    spec = document.get("spec", {})
    template: Document | None = {"CronJob": spec.get("jobTemplate", {}).get("spec", {})}.get(
        document["kind"], spec
    ).get("template")
    return template


def _missed(document: Document) -> Iterator[str]:
    if not _LABEL.fullmatch(document["metadata"].get("name", "")):
        yield f"metadata/name: {document['metadata'].get('name')!r} is no name"
    for key, word in _words(document):
        if word not in _WORDS[key]:
            yield f"{key}: {word!r} is not one of {', '.join(sorted(_WORDS[key]))}"
    for place, value in _quantities(document):
        if not _QUANTITY.fullmatch(str(value)):
            yield f"{place}: {value!r} is no quantity"
    spec, pod = document.get("spec", {}), pod_of(document)
    if document["kind"] == "CronJob":
        if not _is_cron(spec["schedule"]):
            yield f"spec/schedule: {spec['schedule']!r} is no cron line"
        yield from _missed_in_job(spec["jobTemplate"]["spec"])
    if pod is not None:
        labels = pod.get("metadata", {}).get("labels", {})
        wanted = spec.get("selector", {}).get("matchLabels", {})
        if not wanted.items() <= labels.items():
            yield "spec/selector: does not select its own pods"
        yield from missed_in_pod(pod["spec"])


def _missed_in_job(job: Document) -> Iterator[str]:
    pod = job["template"]["spec"]
    if pod.get("restartPolicy") != "Never":  # OnFailure is allowed, but not with a podFailurePolicy
        yield f"restartPolicy: {pod.get('restartPolicy')!r} in a job with a podFailurePolicy, which needs Never"
    names = {container["name"] for container in pod["containers"]}
    for rule in job["podFailurePolicy"]["rules"]:
        if rule.get("onExitCodes", {}).get("containerName") not in {None, *names}:
            yield f"podFailurePolicy: no container {rule['onExitCodes']['containerName']!r}"


def missed_in_pod(pod: Document) -> Iterator[str]:
    """What is wrong with a pod's spec, the rules of the level `restricted` included."""
    volumes = [volume["name"] for volume in pod.get("volumes", [])]
    inside = pod.get("securityContext", {})
    if inside.get("runAsNonRoot") is not True or inside.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "securityContext: runAsNonRoot and seccompProfile are wanted"
    for container in pod["containers"]:
        name = container["name"]
        mounts = [mount["name"] for mount in container.get("volumeMounts", [])]
        if not set(mounts) <= set(volumes):
            yield f"{name}/volumeMounts: no volume {', '.join(set(mounts) - set(volumes))}"
        for key, field in (("env", "name"), ("volumeMounts", "mountPath"), ("ports", "containerPort")):
            values = [one[field] for one in container.get(key, [])]
            if len(values) != len(set(values)):
                yield f"{name}/{key}: the same {field} twice"
        context = container.get("securityContext", {})
        safe = context.get("readOnlyRootFilesystem") is True and context.get("allowPrivilegeEscalation") is False
        if not safe or context.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{name}/securityContext: a read-only root and no capabilities are wanted"
        requests, limits = (container["resources"].get(key, {}) for key in ("requests", "limits"))
        if requests.get("memory") != limits.get("memory") or "cpu" not in requests:
            yield f"{name}/resources: memory's request and limit must be one, and cpu requested"
        ports = {port.get("name") for port in container.get("ports", [])}
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if isinstance(port, str) and port not in ports:
                yield f"{name}/{probe}: no port {port!r}"


def _words(value: Any) -> Iterator[tuple[str, str]]:
    for key, one in value.items() if isinstance(value, dict) else ():
        if key in _WORDS:
            yield from ((key, word) for word in ([one] if isinstance(one, str) else one))
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _words(one)


def _quantities(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from _quantities(one, f"{place}{number}/")
    elif isinstance(value, dict):
        for key, one in value.items():
            if key in ("requests", "limits") and isinstance(one, dict):
                yield from ((f"{place}{key}/{name}", amount) for name, amount in one.items())
            elif key == "sizeLimit":
                yield f"{place}{key}", one
            else:
                yield from _quantities(one, f"{place}{key}/")


def amount(quantity: object) -> float:
    """A quantity's bytes or cores."""
    number, unit = re.fullmatch(r"([\d.]+)(\D*)", str(quantity)).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]


def _is_cron(line: str) -> bool:
    fields = line.split()
    return len(fields) == len(_CRON) and all(
        _is_cron_field(part, low, high)
        for field, (low, high) in zip(fields, _CRON, strict=True)
        for part in field.split(",")
    )


def _is_cron_field(part: str, low: int, high: int) -> bool:
    match = re.fullmatch(r"(?:\*|(\d+)(?:-(\d+))?)(?:/([1-9]\d*))?", part)
    if match is None:
        return False
    first, last = match[1], match[2] or match[1]
    return first is None or low <= int(first) <= int(last) <= high
