"""A real S3 gateway: Ceph's, with a monitor and a disk of its own, on free ports of this machine; a place in it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_storage import forget_all

from dorff.storage.location import Location, locate

DEBIAN = {"radosgw": "radosgw", "ceph-mon": "ceph-mon", "ceph-osd": "ceph-osd", "ceph": "ceph-common"}
KEY, SECRET = "AKDORFF", "SKDORFFSECRETSKDORFF"
_CONF = """[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon2},v1:127.0.0.1:{mon1}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv6 = false
keyring = {home}/admin.keyring
auth allow insecure global id reclaim = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
mon allow pool size one = true
osd crush chooseleaf type = 0
run dir = {home}
pid file = {home}/$name.pid
log file = {home}/$name.log
admin socket = {home}/$name.asok
mon data = {home}/mon
mon data avail warn = 1
mon data avail crit = 1
osd data = {home}/osd0
osd memory target = 939524096
bluestore block size = 8589934592
bluestore cache autotune = false
bluestore cache size = 67108864
[osd.0]
keyring = {home}/osd0/keyring
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw thread pool size = 32
rgw lc debug interval = 1
rgw data = {home}/rgw
keyring = {home}/rgw/keyring
"""


def missing() -> str:
    """The Debian package of a program that is not installed; empty where all are."""
    return next((package for program, package in DEBIAN.items() if shutil.which(program) is None), "")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Gateway:
    """Started by `start`, ended by `stop`; its daemons end with the thread that started them, too."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        home = self.home
        for name in ("mon", "osd0", "rgw"):
            (home / name).mkdir(parents=True)
        fsid, mon1, mon2 = str(uuid.uuid4()), free_port(), free_port()
        (home / "ceph.conf").write_text(_CONF.format(home=home, fsid=fsid, mon1=mon1, mon2=mon2, port=self.port))
        address = f"[v2:127.0.0.1:{mon2},v1:127.0.0.1:{mon1}]"
        self._run("monmaptool", "--create", "--clobber", "--addv", "a", address, "--fsid", fsid, f"{home}/monmap")
        self._run("ceph-authtool", "-C", f"{home}/mon.keyring", "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        caps = [word for of in ("mon", "osd", "mgr", "mds") for word in ("--cap", of, "allow *")]
        self._run("ceph-authtool", "-C", f"{home}/admin.keyring", "--gen-key", "-n", "client.admin", *caps)
        self._run("ceph-authtool", f"{home}/mon.keyring", "--import-keyring", f"{home}/admin.keyring")
        made = ("--monmap", f"{home}/monmap", "--keyring", f"{home}/mon.keyring")
        self._run("ceph-mon", "--mkfs", "-i", "a", *made)
        self._daemon("ceph-mon", "-i", "a")
        disk = str(uuid.uuid4())
        self._run("ceph", "osd", "new", disk)
        caps = ["mon", "allow profile osd", "osd", "allow *"]
        self._run("ceph", "auth", "get-or-create", "osd.0", *caps, "-o", f"{home}/osd0/keyring")
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
        self._run("ceph", "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=vm")
        self._daemon("ceph-osd", "-i", "0")
        caps = ["mon", "allow rw", "osd", "allow rwx"]
        self._run("ceph", "auth", "get-or-create", "client.rgw", *caps, "-o", f"{home}/rgw/keyring")
        self.serve()
        of = ("--uid", "dorff", "--display-name", "dorff", "--access-key", KEY, "--secret-key", SECRET)
        self._run("radosgw-admin", "user", "create", *of)

    def serve(self) -> None:
        """Start the gateway, which answers when this returns."""
        self._daemon("radosgw", "-n", "client.rgw")
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(self.endpoint, timeout=2).close()
                return
            except urllib.error.HTTPError:
                return
            except OSError:
                if time.monotonic() > end or self._daemons["radosgw"].poll() is not None:
                    raise
                time.sleep(0.1)

    def kill(self) -> None:
        """End the gateway at once; its data stay."""
        daemon = self._daemons.pop("radosgw")
        daemon.kill()
        daemon.wait()

    def asked(self, method: str, path: str, query: str = "", body: bytes = b"") -> bytes:
        """The answer to a request that obstore has no word for; signed by AWS Signature Version 4."""
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope, digest = f"{now[:8]}/us-east-1/s3/aws4_request", hashlib.sha256(body).hexdigest()
        headers = {"host": f"127.0.0.1:{self.port}", "x-amz-content-sha256": digest, "x-amz-date": now}
        headers["content-md5"] = base64.b64encode(hashlib.md5(body).digest()).decode()
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        canonical = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{digest}"
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{SECRET}".encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        signed = f"AWS4-HMAC-SHA256 Credential={KEY}/{scope},SignedHeaders={names},Signature={key.hex()}"
        url, sent = f"{self.endpoint}{path}?{query}", {**headers, "Authorization": signed}
        with urllib.request.urlopen(urllib.request.Request(url, body, sent, method=method), timeout=30) as answer:
            return bytes(answer.read())

    def stop(self) -> None:
        for daemon in reversed(list(self._daemons.values())):
            daemon.kill()
            daemon.wait()
        self._daemons.clear()
        shutil.rmtree(self.home, ignore_errors=True)

    def add_key(self, key: str, secret: str) -> None:
        """Let the user of the tests in by one more key."""
        named = ("--uid", "dorff", "--key-type", "s3", "--access-key", key, "--secret-key", secret)
        self._run("radosgw-admin", "key", "create", *named)

    def remove_key(self, key: str) -> None:
        """Let nobody in by this key any more."""
        self._run("radosgw-admin", "key", "rm", "--uid", "dorff", "--key-type", "s3", "--access-key", key)

    def tidy(self) -> None:
        """Do what lifecycle rules say, now; their days are seconds here."""
        self._run("radosgw-admin", "lc", "process")

    def _daemon(self, program: str, *words: str) -> None:
        with open(self.home / f"{program}.err", "ab") as err:
            command = ["setpriv", "--pdeathsig", "KILL", program, "-c", f"{self.home}/ceph.conf", *words, "-f"]
            self._daemons[program] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=err, stderr=err)

    def _run(self, program: str, *words: str) -> None:
        conf = [] if program in ("monmaptool", "ceph-authtool") else ["-c", f"{self.home}/ceph.conf"]
        done = subprocess.run(
            [program, *conf, *words], capture_output=True, timeout=600, check=False,
            env={**os.environ, "CEPH_CONF": f"{self.home}/ceph.conf"},
        )  # fmt: skip
        assert done.returncode == 0, f"{program} {' '.join(words)}: {done.stderr.decode()[-500:]}"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """One for all tests of a file: its daemons take a tenth of a core even when nobody asks."""
    if package := missing():
        pytest.skip(f"needs the Debian package {package}")
    pytest.importorskip("obstore")
    one = Gateway(Path(tempfile.mkdtemp(prefix="rgw-")))  # short: names of sockets are
    try:
        one.start()
        make_bucket(one, "tests")
        yield one
    finally:
        one.stop()


def make_bucket(gateway: Gateway, name: str) -> None:
    for wait in (0.5, 1, 2, 4, 8):
        try:
            gateway.asked("PUT", f"/{name}")
            return
        except OSError:  # its pools are made at the first use
            time.sleep(wait)
    raise AssertionError(f"no bucket {name}")


def credentials(endpoint: str) -> dict[str, str]:
    """The environment by which a process reaches the gateway, or what stands before it."""
    return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": endpoint}


@pytest.fixture
def bucket(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    """An empty place in the gateway, for this process and those that it starts."""
    for name, value in credentials(gateway.endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DORFF_STORAGE_SECONDS", "10")
    forget_all()
    yield locate(f"s3://tests/{uuid.uuid4().hex[:8]}")
    forget_all()
