"""A real API server of Kubernetes: Debian 12's etcd, and a kube-apiserver built here from Debian's source. There are no
controllers and no kubelet: it takes objects, checks and keeps them, and makes no pod."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, final

import httpx
from api_server import free_port
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from manifests import Document

_ADMIN: Final = "admin-of-a-test"
_GO: Final = Path("/usr/lib/go-1.19/bin/go")
_ETCD: Final = Path("/usr/bin/etcd")
#: Go 1.19 wants a newer one than the source has.
_REFLECT: Final = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
_PACKAGES: Final = {
    _ETCD: "etcd-server", _GO: "golang-1.19-go", _REFLECT: "golang-github-modern-go-reflect2-dev",
    Path("/usr/bin/dpkg-source"): "dpkg-dev",
}  # fmt: skip


def built(cache: Path) -> Path:
    """The kube-apiserver in the folder; it is built where it is not there."""
    server = cache.resolve() / "kube-apiserver"
    needed = [_ETCD] if server.exists() else _PACKAGES
    if missing := [_PACKAGES[path] for path in needed if not path.exists()]:
        raise SystemExit(f"needs packages of Debian 12: apt-get install --no-install-recommends {' '.join(missing)}")
    if not server.exists():
        print(f"building {server}: some 7 minutes of two free cores, 1.5 GB of disk meanwhile", flush=True)
        work = server.parent / "build"
        shutil.rmtree(work, ignore_errors=True)
        _compile(_source(work), work)
        (work / "kube-apiserver").rename(server)
        shutil.rmtree(work)
    return server


def _source(work: Path) -> Path:
    """Debian's source, by the machine's own list of mirrors; nothing of apt outside the folder changes."""
    parts = work / "sources"
    for folder in (parts, work / "lists" / "partial", work / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True)
    for file in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
        if file.suffix in (".list", ".sources") and file.exists():
            text = re.sub(r"^deb ", "deb-src ", file.read_text(), flags=re.MULTILINE)
            (parts / file.name).write_text(re.sub(r"^Types:.*", "Types: deb-src", text, flags=re.MULTILINE))
    places = {"Etc::SourceList": "/dev/null", "Etc::SourceParts": parts, "State::Lists": work / "lists"}
    places["Cache"] = work / "cache"
    apt = ["apt-get", "-q", *(word for key, path in places.items() for word in ("-o", f"Dir::{key}={path}"))]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "source", "--download-only", "kubernetes"], cwd=work, check=True)
    (description,) = work.glob("kubernetes_*.dsc")
    if "1.20" not in description.name:
        raise SystemExit(f"needs the source of Debian 12, Kubernetes 1.20; apt has {description.name}")
    source = work / "go" / "src" / "k8s.io" / "kubernetes"
    source.parent.mkdir(parents=True)
    subprocess.run(["dpkg-source", "--extract", description, source], check=True)
    return source


def _compile(source: Path, work: Path) -> None:
    old = source / "vendor" / "github.com" / "modern-go" / "reflect2"
    shutil.rmtree(old)
    shutil.copytree(_REFLECT, old)
    env = {"GOPATH": str(work / "go"), "GOCACHE": str(work / "gocache"), "GO111MODULE": "off", "CGO_ENABLED": "0"}
    env = os.environ | env | {"GOFLAGS": "", "PATH": f"{_GO.parent}:{os.environ['PATH']}"}

    def run(*words: str | Path) -> None:
        subprocess.run(["nice", *words], cwd=source, env=env, check=True)

    generator, package = work / "openapi-gen", "k8s.io/kubernetes"
    run(_GO, "build", "-o", generator, f"{package}/vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    run(
        generator, "-i", ",".join(f"{package}/{folder}" for folder in _described(source)),
        "-p", f"{package}/pkg/generated/openapi", "-O", "zz_generated.openapi", "-o", work / "go" / "src",
        "-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt", "-r", work / "violations",
    )  # fmt: skip
    run(_GO, "build", "-o", work / "kube-apiserver", f"{package}/cmd/kube-apiserver")


def _described(source: Path) -> list[str]:
    """The packages whose types the server's schemas are made of."""
    files = [file for top in ("pkg", "cmd", "staging/src/k8s.io") for file in (source / top).rglob("*.go")]
    folders = {
        str(file.parent.relative_to(source)) for file in files if "+k8s:openapi-gen=" in file.read_text(errors="ignore")
    }
    others = re.compile("code-generator|sample-apiserver|testdata")
    return sorted(re.sub("^staging/src", "vendor", folder) for folder in folders if not others.search(folder))


@final
class Api:
    """The server as somebody with a token sees it."""

    def __init__(self, url: str, certificate: Path, token: str) -> None:
        self.url, self._certificate, self._token = url, certificate, token
        trust = ssl.create_default_context(cafile=str(certificate))
        self._client = httpx.Client(
            base_url=url, verify=trust, headers={"Authorization": f"Bearer {token}"}, timeout=30, trust_env=False
        )

    def ask(self, method: str, path: str, body: Document | None = None, **parameters: str) -> tuple[int, Document]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        text, headers = json.dumps(body) if body is not None else None, {"Content-Type": kind}
        answer = self._client.request(method, path, content=text, params=parameters, headers=headers)
        return answer.status_code, answer.json() if answer.text.startswith("{") else {"message": answer.text}

    def place(self, document: Document) -> str:
        """Where objects of its kind are kept, as the server itself says."""
        version = document["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        _, answer = self.ask("GET", root)
        kinds = [
            one for one in answer.get("resources", ()) if one["kind"] == document["kind"] and "/" not in one["name"]
        ]
        if not kinds:
            raise SystemExit(f"the server has no {document['kind']} of {version}")
        namespace = f"namespaces/{document['metadata'].get('namespace', 'dorff')}/" if kinds[0]["namespaced"] else ""
        return f"{root}/{namespace}{kinds[0]['name']}"

    def of(self, account: str, namespace: str) -> Api:
        """The server as a service account sees it, by a token that it gives out."""
        place = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        status, answer = self.ask("POST", place, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"})
        assert status == 201, answer
        return self.with_token(answer["status"]["token"])

    def with_token(self, token: str) -> Api:
        return Api(self.url, self._certificate, token)

    def kubeconfig(self, path: Path, namespace: str) -> Path:
        server = {"server": self.url, "certificate-authority": str(self._certificate)}
        config: Any = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": server}],
            "users": [{"name": "here", "user": {"token": self._token}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here", "namespace": namespace}}],
        }  # fmt: skip
        path.write_text(json.dumps(config))
        return path


@contextmanager
def control_plane(server: Path, folder: Path) -> Iterator[Api]:
    """etcd and the server on free ports of loopback, as its administrator; both end with the block."""
    store, peers, port = (f"127.0.0.1:{free_port()}" for _ in range(3))
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    formats = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    (folder / "accounts.pem").write_bytes(key.private_bytes(*formats))
    (folder / "tokens.csv").write_text(f"{_ADMIN},admin,admin,system:masters\n")
    etcd = [
        str(_ETCD), "--name=d", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls=http://{store}",
        f"--advertise-client-urls=http://{store}", f"--listen-peer-urls=http://{peers}",
        f"--initial-advertise-peer-urls=http://{peers}", f"--initial-cluster=d=http://{peers}", "--unsafe-no-fsync",
    ]  # fmt: skip
    kube = [
        str(server), f"--etcd-servers=http://{store}", "--bind-address=127.0.0.1",
        f"--secure-port={port.split(chr(58))[1]}",
        "--advertise-address=127.0.0.1", f"--cert-dir={folder / 'certs'}", "--service-cluster-ip-range=10.99.0.0/24",
        "--authorization-mode=RBAC", f"--token-auth-file={folder / 'tokens.csv'}", "--endpoint-reconciler-type=none",
        f"--service-account-issuer=https://{port}", f"--service-account-key-file={folder / 'accounts.pem'}",
        f"--service-account-signing-key-file={folder / 'accounts.pem'}",
        # Nobody is here who would take the finalizer of a claim away.
        "--disable-admission-plugins=StorageObjectInUseProtection", "--feature-gates=TTLAfterFinished=true",
    ]  # fmt: skip
    with started(etcd, folder / "etcd.log"), started(kube, folder / "server.log") as process:
        certificate, end = folder / "certs" / "apiserver.crt", time.monotonic() + 120
        while True:
            with suppress(FileNotFoundError, httpx.HTTPError, ssl.SSLError):
                api = Api(f"https://{port}", certificate, _ADMIN)
                if api.ask("GET", "/readyz")[1] == {"message": "ok"}:
                    break
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the API server did not come up: {(folder / 'server.log').read_text()[-2000:]}")
            time.sleep(0.2)
        yield api


@contextmanager
def started(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=log.parent, env=os.environ | environment)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
