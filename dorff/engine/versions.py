"""Whether workers have the packages that the driver has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from distributed.versions import get_package_info

from dorff.errors import InputError

PACKAGES: Final = ("dorff", "numpy", "scipy", "zarr", "numba", "numcodecs", "dask", "distributed")
Versions = Mapping[str, str | None]


@lru_cache(maxsize=1)
def own_versions() -> Versions:
    """This process' versions, as Dask finds them."""
    return get_package_info(PACKAGES)


def refuse_others(worker: str, ours: Versions, theirs: Versions) -> None:
    """InputError where a worker's versions are not the driver's; of Python major and minor count."""
    for package in ("python", *PACKAGES):
        here, there = _of(ours, package), _of(theirs, package)
        if here == there:
            continue
        if there is None:
            raise InputError(
                f"worker {worker}: has no {package}, the driver has {here}; start both from the same environment"
            )
        raise InputError(
            f"worker {worker}: {package} is {there} there and {here or 'missing'} in the driver; start both from the "
            "same environment"
        )


def _of(versions: Versions, package: str) -> str | None:
    version = versions.get(package)
    return ".".join(version.split(".")[:2]) if version and package == "python" else version
