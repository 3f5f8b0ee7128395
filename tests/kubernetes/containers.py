"""What deploy/kubernetes says about a pod, as podman runs it: a container with the same command, environment, rights
and memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

import pytest
from manifests import Document
from places import ROOT

PODMAN: Final = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs")
LIMITS: Final = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
_MINE: Final = f"dorff-test={uuid.uuid4().hex}"
#: What lets pip reach its index where this machine has an authority or an index of its own.
_OWN: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")


def need_podman() -> None:
    for command, package in (("podman", "podman"), ("runc", "runc"), ("mmdebstrap", "mmdebstrap")):
        if shutil.which(command) is None:
            pytest.skip(f"needs Debian's package {package}")
    if os.geteuid() != 0:
        pytest.skip("needs root, for podman's memory limits without systemd")


def podman(*words: str, check: bool = True) -> str:
    done = subprocess.run([*PODMAN, *words], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, (
        f"{done.returncode} of {words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    )
    return done.stdout.strip()


@contextmanager
def image(folder: Path) -> Iterator[str]:
    """The image of deploy/image, on a base of Debian and its Python that is made here."""
    base, name = (f"localhost/dorff-{kind}:{uuid.uuid4().hex[:8]}" for kind in ("base", "test"))
    tar = folder / "base.tar"
    include = "--include=python3,python3-venv,ca-certificates"
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", include, "bookworm", str(tar)], check=True)
    mounts = [word for path in _OWN if os.path.exists(path) for word in ("-v", f"{path}:{path}:ro")]
    try:
        podman("import", "--quiet", str(tar), base)
        podman(
            "build", "--quiet", "--layers=false", "--force-rm", "--network", "host", "--isolation", "chroot", *mounts,
            "--ulimit", "nofile=4096:4096", "--build-arg", f"BASE={base}", "--tag", name,
            "--file", str(ROOT / "deploy" / "image" / "Dockerfile"), str(ROOT),
        )  # fmt: skip
        yield name
    finally:
        podman("rmi", "--force", name, base, check=False)


@final
class Container:
    """A container that runs what a pod's container does; removed at the end of `running`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def wait(self) -> int:
        """Its exit code, once it ends by itself."""
        return int(podman("wait", self.name))

    def stop(self, seconds: int) -> int:
        """What an eviction does: SIGTERM, and SIGKILL after its grace period. Its exit code."""
        podman("stop", "--time", str(seconds), self.name)
        return self.wait()

    def execute(self, code: str, *, check: bool = True) -> str:
        """Python inside it."""
        return podman("exec", self.name, "python3", "-c", code, check=check)

    def log(self) -> str:
        done = subprocess.run([*PODMAN, "logs", self.name], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr


@contextmanager
def running(image: str, pod: Document, memory: str, replaced: Mapping[str, str], *options: str) -> Iterator[Container]:
    """The container of a pod's spec, with these words of its command replaced and no more memory than this."""
    (container,) = pod["containers"]
    name = f"dorff-{container['name']}-{uuid.uuid4().hex[:8]}"
    rights, user = container["securityContext"], pod["securityContext"]
    assert rights["readOnlyRootFilesystem"] and rights["capabilities"] == {"drop": ["ALL"]} and user["runAsNonRoot"]
    flags = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--network=host", *LIMITS]
    flags += [f"--user={user['runAsUser']}:{user['runAsGroup']}", f"--memory={memory}", f"--memory-swap={memory}"]
    flags += ["--tmpfs=/tmp:rw,size=256m,mode=1777", "--label", _MINE, "--name", name]
    for one in container.get("env", []):
        flags += ["--env", f"{one['name']}={one['value']}"]
    command = list(container["command"])
    for old, new in replaced.items():
        command = [word.replace(old, new) for word in command]
    podman("run", "--detach", *flags, *options, image, *command)
    try:
        yield Container(name)
    finally:
        podman("rm", "--force", "--time", "0", name, check=False)


def left() -> int:
    """How many containers of this process are there, running or not."""
    return len(podman("ps", "--all", "--quiet", "--filter", f"label={_MINE}").split())
