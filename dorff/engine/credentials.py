"""TLS credentials: those of a job, and new ones."""

from __future__ import annotations

import ipaddress
import os
import ssl
from pathlib import Path

from distributed.security import Security

from dorff import spec
from dorff.errors import InputError


def credentials(directory: Path) -> tuple[Path, Path, Path]:
    """Write new credentials that a scheduler, its workers and its clients share: ca.pem, cert.pem, key.pem.

    They are Dask's own temporary ones: the certificate signs itself, and is good for a year. Whoever has the key is
    let in, so only its owner may read it. InputError where one of the files exists.
    """
    made = Security.temporary()
    texts = made.get_tls_config_for_role("client")
    ca, cert, key = paths = tuple(directory / name for name in ("ca.pem", "cert.pem", "key.pem"))
    for path in paths:
        if path.exists():
            raise InputError(f"{path} exists; remove it, or name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    for path, part, mode in ((ca, "ca_file", 0o644), (cert, "cert", 0o644), (key, "key", 0o600)):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(texts[part])
    return ca, cert, key


def security_for(cluster: spec.RemoteCluster) -> Security | None:
    """What a client needs for a cluster that runs already; None for plain TCP.

    InputError where plain TCP would leave this machine without `plain_tcp`, and for tls:// without credentials or with
    ones that cannot be used.
    """
    protocol, _, rest = cluster.address.partition("://")
    if not cluster.encrypted:
        if not (on_loopback(_host(rest)) or cluster.plain_tcp):
            raise InputError(
                f"cluster.address {cluster.address} is not encrypted and lets in everybody who can reach it; start "
                "the cluster with TLS (dorff credentials DIR) and write tls://HOST:PORT and cluster.tls, or set "
                "cluster.plain_tcp: true"
            )
        return None
    if protocol == "inproc":
        return None
    security = Security(require_encryption=True, **_files(cluster.tls))
    ours = security.get_tls_config_for_role("client")
    if not (ours["ca_file"] and ours["cert"]):
        raise InputError(
            f"cluster.address {cluster.address}: expected cluster.tls {{ca, cert, key}}, or the same in Dask's own "
            "configuration (distributed.comm.tls), came neither"
        )
    try:
        security.get_connection_args("client")
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(ours[part] for part in ("ca_file", "cert", "key") if ours[part])
        raise InputError(
            f"cluster.tls: {named} cannot be used ({error}); check that the key is the certificate's"
        ) from error
    return security


def on_loopback(host: str) -> bool:
    """Whether a host is this machine's own loopback, by its name or its address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(rest: str) -> str:
    return rest.partition("]")[0].removeprefix("[") if rest.startswith("[") else rest.rpartition(":")[0] or rest


def _files(tls: spec.TLS | None) -> dict[str, str]:
    if tls is None:
        return {}
    return {"tls_ca_file": str(tls.ca), "tls_client_cert": str(tls.cert), "tls_client_key": str(tls.key)}
