"""Jobs that others wrote run no code of theirs: every attempt is one that ran, or would have, without a root."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pytest
from command_line import CURL, call, field, run, write_job
from pydantic import BaseModel

from dorff.data import ingest
from dorff.engine.jobqueue import _queue
from dorff.errors import InputError
from dorff.spec import registry
from dorff.spec.cluster import ClusterSpec, SlurmCluster
from dorff.spec.job import Job
from dorff.spec.part import HARMLESS, Part
from dorff.spec.reader import load_allowed, load_job
from dorff.spec.trust import Guarded, Trust, trust_of
from dorff.store import models

FIXED = {"data": {"store": "sea.zarr"}, "kernel": CURL, "state": "s", "model": "m"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, in which others write jobs; the working folder is elsewhere."""
    folder, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    np.save(folder / "rows.npy", field(200))
    ingest([folder / "rows.npy"], folder / "sea.zarr", inputs=["c0", "c1"], targets=["c2", "c3"])
    monkeypatch.chdir(elsewhere)
    return folder


def refused(root: Path, key: str, *options: object, **cluster: Any) -> None:
    """Every command that takes a job refuses it below the root, naming the key, and does nothing."""
    job = write_job(root / "job.yaml", cluster=cluster)
    for command in ("plan", "fit", "tune"):
        done = call(command, job, "--root", root, *options)
        assert done.exit_code == 3 and f"{key} is refused" in done.stderr, done.stderr
    assert not (root / "runs").exists() and not (root / "models").exists()


# --- A scheduler whose answer is code ---------------------------------------------------------------------------------


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def evil(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """The address of what answers Dask's handshake with a pickle, the file that it makes, and who has come."""
    from distributed.protocol import dumps
    from distributed.protocol.serialize import ToPickle

    marker, came, server = tmp_path / "marker", list[str](), socket.create_server(("127.0.0.1", 0))

    def frame(*parts: bytes) -> bytes:
        inner = b"".join([len(parts).to_bytes(8, "little"), *(len(p).to_bytes(8, "little") for p in parts), *parts])
        return len(inner).to_bytes(8, "little") + inner

    handshake = frame(*map(bytes, dumps({"compression": None, "info": ToPickle(Touch(marker))})))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            came.append("client")
            with connection, suppress(OSError):
                connection.sendall(handshake)
                connection.settimeout(5)
                while connection.recv(2**16):
                    pass

    threading.Thread(target=serve, daemon=True).start()
    yield f"tcp://127.0.0.1:{server.getsockname()[1]}", marker, came
    server.close()


@pytest.mark.process
def test_a_scheduler_that_answers_with_code_is_never_asked(root: Path, evil: tuple[str, Path, list[str]]) -> None:
    address, marker, came = evil
    job = write_job(root / "job.yaml", cluster={"address": address})
    for command in ("plan", "fit", "tune"):
        done = run(command, job, "--root", root)
        assert done.returncode == 3 and "cluster.address is refused" in done.stderr, done.stderr
    assert not came and not marker.exists()
    script = (
        "import sys; from dorff.spec.cluster import RemoteCluster; from dorff.engine.clusters import connect\n"
        f"connect(RemoteCluster(address={address!r}), 3.0)"
    )
    subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=600, check=False)
    assert came and marker.exists(), "the control: without a root it would have run"


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:8786", "tls://node:8786", "ws://a:1", "wss://a:1", "ucx://a:1", "inproc://1.2.3.4/1/1"],
)
def test_no_address_is_taken(root: Path, address: str) -> None:
    refused(root, "cluster.address", address=address)
    refused(root, "cluster.address", "--allow", "cluster.tls", address=address)


# --- Slurm ------------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_an_option_of_sbatch_that_runs_code_is_refused(root: Path, tmp_path: Path) -> None:
    """The script is run as a queue would run it: bash, with what --export says in its environment."""
    marker, code = tmp_path / "marker", root / "code.sh"
    code.write_text(f"touch {marker}\nexit\n")
    directive = f"--export=ALL,BASH_ENV={code}"
    slurm = {"type": "slurm", "directives": [directive], "folder": str(tmp_path / "slurm")}
    cluster = SlurmCluster.model_validate({**slurm, "folder": tmp_path / "slurm"})
    (tmp_path / "slurm").mkdir()
    with _queue(cluster, tmp_path / "slurm") as queue:
        (tmp_path / "job.sh").write_text(queue.job_script())
    assert f"#SBATCH {directive}" in (tmp_path / "job.sh").read_text(), "the script that would be submitted"
    variables = dict(part.split("=", 1) for part in directive.split(",") if part.startswith("BASH_ENV"))
    subprocess.run(["bash", tmp_path / "job.sh"], env={"PATH": "/usr/bin:/bin", **variables}, check=False)
    assert marker.exists(), "the control: on a node it would have run"
    marker.unlink()
    allowed = ("--allow", "cluster.type=slurm", "--allow", f"cluster.folder={tmp_path}")
    refused(root, "cluster.directives", *allowed, **slurm)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("directives", "--wrap=id"), ("directives", ["--prolog=/tmp/x"]), ("directives", "--get-user-env"),
        ("directives", "--chdir=/"), ("directives", ["--qos=low", "--nodelist=n1"]), ("directives", "--uid=0"),
        ("queue", "gpu"), ("account", "others"), ("interface", "lo"),
    ],
)  # fmt: skip
def test_keys_of_slurm_are_refused_one_by_one(root: Path, tmp_path: Path, key: str, value: object) -> None:
    allowed = ("--allow", "cluster.type=slurm", "--allow", f"cluster.folder={tmp_path}")
    slurm = {"type": "slurm", "folder": str(tmp_path / "slurm")}
    refused(root, "cluster.type", **slurm)
    refused(root, f"cluster.{key}", *allowed, **slurm, **{key: value})


def test_credentials_of_slurm_do_not_lie_where_others_write(root: Path) -> None:
    """Whoever can rename the folder has the key of the scheduler, which takes pickles."""
    for folder in ({}, {"folder": "slurm"}, {"folder": "there"}):
        refused(root, "cluster.folder", "--allow", "cluster.type", type="slurm", **folder)


# --- Kubernetes, MPI, a local cluster ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("namespace", "kube-system"), ("tls", "other-tls"), ("claim", "data"), ("env_from", "aws"),
        ("env_from", ["a", "b"]), ("service_account", "admin"), ("priority_class", "high"), ("tolerations", "gpu"),
    ],
)  # fmt: skip
def test_keys_of_kubernetes_are_refused_one_by_one(root: Path, key: str, value: object) -> None:
    pods = {"type": "kubernetes", "image": "evil/image"}
    refused(root, "cluster.type", **pods)
    refused(root, "cluster.image", "--allow", "cluster.type", **pods)
    refused(root, "cluster.image", "--allow", "cluster.type", "--allow", "cluster.image=good/*", **pods)
    refused(root, f"cluster.{key}", "--allow", "cluster.type", "--allow", "cluster.image", **pods, **{key: value})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "node", "127.0.0.1.evil", "", "１27.0.0.1"])
def test_a_local_cluster_listens_on_loopback_alone(root: Path, host: str) -> None:
    refused(root, "cluster.host", type="local", host=host)


def test_a_rank_of_mpi_starts_nothing_for_a_job_that_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dorff.engine.mpi._SPEAKS", 0.1)
    monkeypatch.setattr("dorff.engine.mpi._started", lambda _: pytest.fail("it was started"))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    refused(root, "cluster.type", type="mpi")
    refused(root, "cluster.interface", "--allow", "cluster.type", type="mpi", interface="eth0")


@pytest.mark.parametrize(
    "cluster",
    [
        {"type": "serial"}, {"type": "local", "workers": 3, "memory": "1GiB", "small_jobs": "driver"},
        {"host": "localhost"}, {"type": "local", "host": "::1"},
    ],
)  # fmt: skip
def test_what_names_nothing_is_taken(root: Path, cluster: dict[str, Any]) -> None:
    job = write_job(root / "job.yaml", cluster=cluster)
    assert call("plan", job, "--root", root).exit_code == 0


# --- Other packages ---------------------------------------------------------------------------------------------------

FOREIGN = """
from pathlib import Path
from typing import Literal
from dorff.spec.cluster import ClusterSpec
from dorff.spec.registry import Entry
Path({marker!r}).touch()

class CloudSpec(ClusterSpec):
    type: Literal["cloud"] = "cloud"
    workers: int = 1
    memory: int = 2**30
    port: int = 80

entry = Entry("cloud", lambda *_: None, CloudSpec)
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """The file that appears once the code of an installed package has run."""
    marker, info = tmp_path / "imported", tmp_path / "site" / "cloud-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cloud\nVersion: 1.0\n")
    groups = ("clusters", "kernels", "scalars", "losses", "graphs", "samplers", "outputs", "spaces", "storage")
    points = "".join(f"[dorff.{group}]\ncloud = cloud_code:entry\n" for group in groups)
    (info / "entry_points.txt").write_text(points)
    (info.parent / "cloud_code.py").write_text(FOREIGN.format(marker=str(marker)))
    return marker


CODE_OF_WORDS: list[dict[str, Any]] = [
    {"cluster": {"type": "cloud"}}, {"kernel": {"type": "cloud"}}, {"kernel": {**CURL, "scalar": {"type": "cloud"}}},
    {"manifold": {"graph": {"type": "cloud"}, "weight": 1}}, {"features": {"sampler": {"type": "cloud"}}},
    {"solve": {"loss": {"cloud": 1}}}, {"solve": {"loss": "cloud"}}, {"solve": {"loss": "squarred"}},
    {"kernel": {"type": "decomposable", "scalar": CURL["scalar"], "output": "cloud"}}, {"state": "cloud://a/b"},
    {"kernel": {**CURL, "type": "decomposable", "scalar": {"type": "skeleton", "inputs": {"type": "cloud"}}}},
    {"publish": {"holdout": "cloud://a/b"}},
]  # fmt: skip
#: Reads jobs, each of which has to be refused, the first below a root; says which of them ran the package's code.
READ = """
import sys
from pathlib import Path
from dorff.errors import InputError
from dorff.spec import registry
from dorff.spec.reader import load_job
from dorff.storage.location import SCHEMES
root, marker, *jobs = sys.argv[1:]
for job in jobs:
    for options in {"root": root}, {}:
        sys.modules.pop("cloud_code", None)
        SCHEMES.pop("cloud", None)
        for words in vars(registry).values():
            if isinstance(words, registry.Registry):
                words._entries.pop("cloud", None)
        try:
            load_job(job, **options)
            taken = bool(options)
        except InputError:
            taken = False
        print(Path(job).stem, *options, "ran" if Path(marker).exists() or taken else "did not run")
        Path(marker).unlink(missing_ok=True)
"""


@pytest.mark.process
def test_words_of_other_packages_run_no_code(root: Path, foreign: Path) -> None:
    jobs = [write_job(root / f"{n}.yaml", **changes) for n, changes in enumerate(CODE_OF_WORDS)]
    env = {**os.environ, "PYTHONPATH": str(foreign.parent / "site")}
    command = [sys.executable, "-c", READ, root, foreign, *jobs]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, check=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if " root " in line] == [f"{n} root did not run" for n in range(len(jobs))], lines
    assert [line for line in lines if " root " not in line] == [f"{n} ran" for n in range(len(jobs))], "the control"


@pytest.mark.process
def test_a_cluster_of_another_package_is_allowed_key_by_key(root: Path, foreign: Path) -> None:
    job = write_job(root / "job.yaml", cluster={"type": "cloud", "port": 22})
    env, allowed = {"PYTHONPATH": str(foreign.parent / "site")}, list[str]()
    for key in ("dorff.clusters=cloud", "cluster.type=cloud", "cluster.port=22"):
        done = run("plan", job, "--root", root, *(word for one in allowed for word in ("--allow", one)), env=env)
        assert done.returncode == 3 and f"--allow {key.partition('=')[0]}" in done.stderr
        assert foreign.exists() == bool(allowed)
        allowed.append(key)
    done = run("plan", job, "--root", root, *(word for one in allowed for word in ("--allow", one)), env=env)
    assert done.returncode == 0, done.stderr


def name_kernel(version: Path, word: str) -> None:
    """Make a published model say that its kernel is of that type, with checksums that are right."""
    metadata = json.loads((version / "zarr.json").read_text())
    attributes = metadata["attributes"]
    described = {**json.loads(attributes["description"]), "kernel": {"type": word}}
    attributes["description"] = json.dumps(described)
    attributes["crc32"] = zlib.crc32(attributes["description"].encode())
    (version / "zarr.json").write_text(json.dumps(metadata))
    text = f"{version.name} {models.content(version)[:16]}"
    (version.parent / "current").write_text(f"{text} {zlib.crc32(text.encode()):08x}")


@pytest.mark.process
def test_words_in_a_model_below_the_root_run_no_code(root: Path, foreign: Path) -> None:
    job = write_job(root / "job.yaml", **FIXED)
    assert call("fit", job).exit_code == 0
    env = {"PYTHONPATH": str(foreign.parent / "site")}
    for options, runs in [(("--root", root), False), ((), True)]:
        name_kernel(max((root / "m").glob("v*")), "cloud")
        done = run("fit", job, *options, env=env)
        assert foreign.exists() == runs, done.stderr + done.stdout


# --- Links in the folders of a job ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["s", "m", "sea.zarr"])
@pytest.mark.parametrize("through", [False, True], ids=["itself", "through another folder"])
def test_links_in_folders_do_not_lead_out(root: Path, tmp_path: Path, place: str, *, through: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    job = write_job(root / "job.yaml", **FIXED)
    linking = root / "other" if through else root / place / "plan"
    (root / place).mkdir(exist_ok=True)
    linking.mkdir()
    if through:
        (root / place / "plan").symlink_to(linking)
    (linking / "nodes").symlink_to(outside)
    for command in ("plan", "fit"):
        done = call(command, job, "--root", root)
        assert done.exit_code == 3 and "nodes" in done.stderr, done.stderr
    assert not list(outside.iterdir())


def test_links_in_folders_may_stay_below_the_root(root: Path) -> None:
    job = write_job(root / "job.yaml", **FIXED)
    (root / "sea.zarr").rename(root / "elsewhere.zarr")
    (root / "sea.zarr").mkdir()
    for entry in (root / "elsewhere.zarr").iterdir():
        (root / "sea.zarr" / entry.name).symlink_to(entry)
    (root / "elsewhere.zarr" / "round").symlink_to(root / "sea.zarr")
    assert call("plan", job, "--root", root).exit_code == 0


# --- Every key is classified ------------------------------------------------------------------------------------------


def parts_of(annotation: Any, found: set[type[BaseModel]]) -> None:
    """The mappings of a job below a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in found:
        found.add(annotation)
        for one in annotation.model_fields.values():
            parts_of(one.annotation, found)
    for one in get_args(annotation):
        parts_of(one, found)


def every_part() -> set[type[BaseModel]]:
    found: set[type[BaseModel]] = set()
    parts_of(Job, found)
    for words in vars(registry).values():
        if isinstance(words, registry.Registry) and words is not registry.READERS:
            for entry in words.entries():
                parts_of(entry.options, found)
    return found


def test_every_key_of_a_job_declares_what_it_is() -> None:
    parts = every_part()
    unknown = [f"{part.__name__}.{key}" for part in parts for key in part.model_fields if trust_of(part, key) is None]
    assert not unknown, "mark each of them as Harmless or Guarded"
    guarded = {
        f"{part.__name__}.{key}" for part in parts for key in part.model_fields
        if isinstance(trust_of(part, key), Guarded)
    }  # fmt: skip
    kubernetes = [
        "image",
        "namespace",
        "tls",
        "claim",
        "env_from",
        "service_account",
        "priority_class",
        "tolerations",
        "type",
    ]
    assert guarded == {
        "LocalCluster.host", "RemoteCluster.address", "RemoteCluster.plain_tcp", "TLS.ca", "TLS.cert", "TLS.key",
        *(f"SlurmCluster.{key}" for key in ("type", "queue", "account", "directives", "interface", "folder")),
        "MPICluster.type", "MPICluster.interface", "KubernetesCluster.tolerations",
        *(f"KubernetesCluster.{key}" for key in kubernetes),
    }  # fmt: skip


class New(Part):
    """What somebody adds to a job without a thought."""

    number: int = 0
    endpoint: str = ""
    hooks: tuple[str, ...] = ()
    options: dict[str, str] | None = None
    anything: Any = None
    maybe: str | None = None
    marked: Annotated[str, HARMLESS] = ""
    words: Literal["a", "b"] = "a"


class NewCluster(ClusterSpec):
    type: Literal["new"] = "new"
    port: int = 80
    encrypted: bool = True


def test_a_key_that_declares_nothing_is_refused(tmp_path: Path) -> None:
    trust = Trust(root=tmp_path)
    trust.check(New.model_validate({"number": 3, "marked": "x", "words": "b", "endpoint": ""}))
    news = [{"endpoint": "http://x"}, {"hooks": ("id",)}, {"options": {"a": "b"}}, {"anything": 1}, {"maybe": "x"}]
    for new in news:
        with pytest.raises(InputError, match=f"{next(iter(new))} is refused"):
            trust.check(New.model_validate(new))
    for cluster in ({"port": 22}, {"encrypted": False}, {"type": "new"}):
        with pytest.raises(InputError, match=f"{next(iter(cluster))} is refused"):
            trust.check(NewCluster.model_validate(cluster))


# --- What the operator allows -----------------------------------------------------------------------------------------


def test_what_is_allowed_is_allowed_alone(root: Path, tmp_path: Path) -> None:
    job = write_job(root / "job.yaml", cluster={"address": "tcp://node:1", "plain_tcp": True})
    for allowed in (
        [], ["cluster"], ["cluster.*"], ["address"], ["cluster.address=tcp://node:2", "cluster.plain_tcp"],
        ["cluster.address=tcp://node:11", "cluster.plain_tcp"], ["cluster.address="], ["cluster.address"],
    ):  # fmt: skip
        done = call("plan", job, "--root", root, *(word for one in allowed for word in ("--allow", one)))
        unknown = set(allowed) & {"cluster.*", "address"}
        assert done.exit_code == 3 and ("is no key" if unknown else "is refused") in done.stderr
    for last in (["cluster.plain_tcp"], ["cluster.plain_tcp=true"]):
        allowed = load_allowed(None, ["cluster.address=tcp://node:1", *last], root=root)
        assert load_job(job, root=root, allowed=allowed) == load_job(job)
    assert call("plan", job, "--allow", "cluster.address").exit_code == 3, "nothing to allow without a root"


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("cluster.adress", "address"),
        ("cluster.tls.certs", "cert"),
        ("clusters.image", "cluster"),
        ("data.stores", "store"),
        ("kernel.terms.kernel.scalar.lengthscal", "lengthscale"),
        ("manifold.graph.paht", "path"),
        ("dorff.kernel", "dorff.kernels"),
        ("cluster[0].image", "cluster"),
        ("state.x", ""),
        ("", ""),
    ],
)
def test_a_key_that_no_job_has_is_refused(root: Path, tmp_path: Path, key: str, near: str) -> None:
    """With the known name that is nearest; else what it should allow would stay refused, unsaid."""
    job, policy = write_job(root / "job.yaml"), tmp_path / "p.yaml"
    policy.write_text(json.dumps({"allow": {"cluster.type": "local", key: True}}))
    for words in (["--policy", policy], ["--allow", key], ["--allow", f"{key}=a"]):
        done = call("plan", job, "--root", root, *words)
        assert done.exit_code == 3 and "is no key of a job" in done.stderr, key
        assert str(words[0 if words[0] == "--allow" else 1]) in done.stderr
        assert not near or f"did you mean '{near}'" in done.stderr


@pytest.mark.parametrize(
    "key",
    [
        "cluster", "cluster.type", "cluster.tls.key", "cluster.env_from", "data.store", "publish.holdout", "state",
        "manifold.graph.path", "kernel.terms.kernel.scalar.lengthscale", "dorff.scalars", "dorff.storage",
    ],
)  # fmt: skip
def test_every_key_of_a_job_may_be_allowed(root: Path, key: str) -> None:
    assert load_allowed(None, [f"{key}=a", f"{key}=b"], root=root) == {key: ("a", "b")}


def test_options_of_another_package_s_words_may_be_allowed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not known before its code is imported, which the operator may not want."""
    names = ("decomposable", "foreign")
    monkeypatch.setattr(registry.Registry, "names", names)
    assert "kernel.endpoint" in load_allowed(None, ["kernel.endpoint"], root=root)
    monkeypatch.setattr(registry.Registry, "names", ("decomposable",))
    with pytest.raises(InputError, match=r"kernel\.endpoint"):
        load_allowed(None, ["kernel.endpoint"], root=root)


def test_a_path_out_of_the_root_is_allowed_by_its_place(root: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "out").symlink_to("/etc")
    for place, allow, taken in (
        ("shared/a", "shared", True), ("shared", "shared", True), ("shared/../other", "shared", False),
        ("shared-not", "shared", False), ("shared/out/passwd", "shared", False),
    ):  # fmt: skip
        job = write_job(root / "job.yaml", data={"store": str(tmp_path / place)})
        allowed = load_allowed(None, [f"data.store={tmp_path / allow}"], root=root)
        for also in ({}, {"data.store": None}):
            if taken and not also:
                load_job(job, root=root, allowed=allowed)
            else:
                with pytest.raises(InputError, match=r"data\.store leads to"):
                    load_job(job, root=root, allowed=allowed | also)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.yaml", "allow: {cluster.host: ['0.0.0.0', '::'], cluster.image: true}"),
        ("p.toml", '[allow]\n"cluster.host" = ["0.0.0.0"]\n'),
    ],
)
def test_a_policy_file_outside_of_the_root(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    job, policy = write_job(root / "job.yaml", cluster={"host": "0.0.0.0"}), tmp_path / name
    policy.write_text(text)
    assert call("plan", job, "--root", root, "--policy", policy).exit_code == 0
    monkeypatch.setenv("DORFF_POLICY", str(policy))
    monkeypatch.setenv("DORFF_ROOT", str(root))
    assert call("plan", job).exit_code == 0
    monkeypatch.delenv("DORFF_ROOT")
    assert call("plan", job).exit_code == 3, "a policy without a root is a root that was forgotten"


@pytest.mark.parametrize("way", ["inside", "link inside", "link outside", "folder", "chain", "dots", "loop"])
def test_a_policy_that_writers_of_jobs_can_change_is_refused(root: Path, tmp_path: Path, way: str) -> None:
    text, outside = "allow: {cluster.host: true}", tmp_path / "p.yaml"
    (root / "folder").mkdir()
    (root / "p.yaml").write_text(text)
    outside.write_text(text)
    (root / "link.yaml").symlink_to(outside)
    (tmp_path / "link.yaml").symlink_to(root / "p.yaml")
    (tmp_path / "folder").symlink_to(root)
    (tmp_path / "chain.yaml").symlink_to(root / "link.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    policy = {
        "inside": root / "p.yaml", "link inside": tmp_path / "link.yaml", "link outside": root / "link.yaml",
        "folder": tmp_path / "folder" / "p.yaml", "chain": tmp_path / "chain.yaml",
        "dots": root / "folder" / ".." / ".." / "p.yaml", "loop": tmp_path / "loop.yaml",
    }[way]  # fmt: skip
    job = write_job(root / "job.yaml", cluster={"host": "0.0.0.0"})
    done = call("plan", job, "--root", root, "--policy", policy)
    assert done.exit_code == 3 and "root" in done.stderr


@pytest.mark.parametrize("text", ["", "[]", "allow: []", "allow: {a: 1}", "allow: {a: []}", "allow: {}\nmore: 1", "{"])
def test_a_policy_that_is_none_is_refused(root: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "p.yaml").write_text(text)
    assert call("plan", write_job(root / "job.yaml"), "--root", root, "--policy", tmp_path / "p.yaml").exit_code == 3


# --- Around the keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "x: &c {address: 'tcp://node:1'}\ncluster: *c", "cluster: {<<: {address: 'tcp://node:1'}}",
        "cluster: {host: '0.0.0.0', host: 127.0.0.1}", "cluster: {type: local}\ncluster: {host: '::'}",
        "cluster: {'host': 127.0.0.1, \"host\": '0.0.0.0'}", "cluster: {ｈost: '0.0.0.0'}", "cluster: {Host: '::'}",
        "cluster: {? host : '0.0.0.0'}", "cluster: {scheduler_file: s.json}",
        "cluster: !!map {address: 'tcp://a:1'}",
    ],
)  # fmt: skip
def test_no_way_of_writing_a_key_goes_around(root: Path, text: str) -> None:
    lines = [f"{key}: {json.dumps(value)}" for key, value in FIXED.items()]
    (root / "job.yaml").write_text("\n".join([*lines, text, ""]), encoding="utf-8")
    assert call("plan", root / "job.yaml", "--root", root).exit_code == 3


@pytest.mark.process
def test_code_in_the_working_folder_is_not_run(root: Path, tmp_path: Path) -> None:
    """Workers that Python starts look for modules there, and Numba for its settings."""
    marker = tmp_path / "marker"
    (root / "multiprocessing.py").write_text(f"open({str(marker)!r}, 'w'); raise SystemExit\n")
    job = write_job(root / "job.yaml", cluster={"type": "local", "workers": 1, "small_jobs": "workers"})
    done = run("fit", job, "--root", root, cwd=root)
    assert done.returncode == 3 and "working folder" in done.stderr and not marker.exists()
    assert run("fit", job, cwd=root).returncode != 0 and marker.exists(), "the control"


def test_a_search_writes_nothing_out_of_the_root(root: Path, tmp_path: Path) -> None:
    (root / "job-tune").symlink_to(tmp_path)
    done = call("tune", write_job(root / "job.yaml"), "--root", root)
    assert done.exit_code == 3 and "job-tune" in done.stderr and not (tmp_path / "best.yaml").exists()


def test_pickles_of_the_listener_are_code(tmp_path: Path) -> None:
    """The control of the control."""
    pickle.loads(pickle.dumps(Touch(tmp_path / "x")))
    assert (tmp_path / "x").exists()
