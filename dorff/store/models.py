"""Published models: a Zarr group a version, no pickle, no code; `current` names the newest."""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from dorff import kernels
from dorff.errors import InputError
from dorff.features import feature_arrays, features_from
from dorff.frequencies.transforms import Arrays
from dorff.model import Model
from dorff.posterior import Posterior
from dorff.store.atomic import remove_torn, space_on, sync_directory, write_atomic
from dorff.weights import OperatorWeights

FORMAT = "dorff-model-4"
_SOLVED = ("coefficients", "intercept", "target_scale")
_DTYPES = ("float64", "int64", "int32", "bool")


def save_model(model: Model, root: Path) -> Path:
    """Write a new version under `root`, then switch `current` to it in one step; returns the version's directory."""
    with space_on(root):
        root.mkdir(parents=True, exist_ok=True)
        temporary = root / f".new-{uuid.uuid4().hex}"
        try:
            _write(model, temporary)
            version = _rename_to_next(temporary, root)
            sync_directory(root)
            remove_torn(root)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    write_atomic(root / "current", [version.name.encode()], sync=True)
    return version


def _rename_to_next(temporary: Path, root: Path) -> Path:
    """Give the new version the first number that is free; another fit may be publishing too."""
    while True:
        taken = [int(path.name[1:]) for path in root.glob("v[0-9]*") if path.name[1:].isdigit()]
        version = root / f"v{max(taken, default=0) + 1:06d}"
        try:
            return temporary.rename(version)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def _write(model: Model, path: Path) -> None:
    arrays = _arrays_of(model)
    group = zarr.open_group(str(path), mode="w-", zarr_format=3)
    for name, value in arrays.items():
        stored = group.create_array(
            name, data=value, chunks=tuple(max(1, size) for size in value.shape),
            compressors=None, config={"write_empty_chunks": True},
        )  # fmt: skip
        stored.attrs["crc32"] = _checksum(value)
    description = {
        "kernel": model.kernel.config(), "sampler": dict(model.sampler), "seed": model.seed,
        "features": model.feature_map.phi.config(), "info": dict(model.info),
        "shapes": {name: list(value.shape) for name, value in arrays.items()},
        "dtypes": {name: str(value.dtype) for name, value in arrays.items()},
        "crc32": {name: _checksum(value) for name, value in arrays.items()},
    }  # fmt: skip
    text = json.dumps(description, sort_keys=True)
    group.attrs.update({"format": FORMAT, "description": text, "crc32": zlib.crc32(text.encode())})
    for file in path.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())


def _arrays_of(model: Model) -> Arrays:
    solved = {name: getattr(model, name) for name in _SOLVED}
    solved |= {"gain": model.operator_weights.gain, "root": model.operator_weights.root}
    if model.observe is not None:
        solved["observe"] = model.observe
    posterior = {} if model.posterior is None else model.posterior.arrays()
    return {**feature_arrays(model.feature_map), **solved, **posterior}


def resolve_model(path: Path) -> Path:
    """The version directory that a model's root (its `current`) or a version names."""
    if (path / "zarr.json").is_file():
        return path
    try:
        name = (path / "current").read_text().strip()
    except OSError:
        raise InputError(f"{path}: no model here; give a model's root or one of its versions") from None
    if not (name.startswith("v") and name[1:].isdigit()):
        raise InputError(f"{path / 'current'}: should name a version such as v000001, not {name[:40]!r}")
    return path / name


def load_model(path: str | Path, *, posterior: bool = True) -> Model:
    """The model at `path`: a model's root (its current version) or one version. Its posterior, where it has one, can
    be many times as large as the rest; without `posterior` it is left where it is.

    Runs no code from the files. Raises InputError where a file is missing or damaged, or shapes disagree.
    """
    version = resolve_model(Path(path))
    try:
        group = zarr.open_group(str(version), mode="r")
        if "description" not in group.attrs:
            raise InputError(f"{version}: is no model of dorff; give a model's root or one of its versions")
        text, checksum = str(group.attrs["description"]), group.attrs["crc32"]
        if group.attrs["format"] != FORMAT or zlib.crc32(text.encode()) != checksum:
            raise InputError(f"{version}: the model's description is damaged or of another version of dorff")
        description = json.loads(text)
        arrays = {
            name: _load_array(group, name, shape, description["dtypes"][name], version)
            for name, shape in description["shapes"].items()
            if posterior or not name.startswith("posterior_")
        }
    except InputError:
        raise
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        raise InputError(f"{version}: cannot be read as a model ({error}); publish it again") from error
    return _build(arrays, description, version)


def _load_array(group: zarr.Group, name: str, shape: list[int], dtype: str, version: Path) -> npt.NDArray[Any]:
    stored = group[name] if name.isidentifier() and dtype in _DTYPES else None
    if not isinstance(stored, zarr.Array) or list(stored.shape) != shape or str(stored.dtype) != dtype:
        raise InputError(f"{version}: array {name} is not the {shape} {dtype} array it should be")
    size = sum(file.stat().st_size for file in (version / name).rglob("*") if file.is_file())
    if stored.nbytes > size:
        raise InputError(f"{version}: array {name} claims more bytes than its files hold; publish it again")
    value = np.asarray(stored[...], order="C")
    if _checksum(value) != stored.attrs["crc32"]:
        raise InputError(f"{version}: array {name} is damaged; publish it again")
    return value


def _build(arrays: Arrays, description: dict[str, Any], version: Path) -> Model:
    try:
        m, _ = arrays["coefficients"].shape
        roots, r, p = arrays["root"].shape
        q = len(arrays["observe"]) if "observe" in arrays else p
    except ValueError as error:
        raise InputError(f"{version}: its arrays do not fit each other ({error}); publish it again") from error
    try:
        features = features_from(description["features"], arrays)
        posterior = Posterior.of_arrays(arrays, (m, r, p), q)
    except InputError as error:
        raise InputError(f"{version}: {error}; publish it again") from error
    expected = {
        "coefficients": (m, r), "intercept": (p,), "target_scale": (p,), "gain": (m,),
        "root": (1 if roots == 1 else m, r, p), "observe": (q, p),
    }  # fmt: skip
    for name, shape in expected.items():
        if (name in arrays and arrays[name].shape != shape) or m != features.m:
            raise InputError(f"{version}: array {name} has shape {arrays[name].shape}, which does not fit the others")
    return Model(
        feature_map=features,
        operator_weights=OperatorWeights(arrays["gain"], arrays["root"]), coefficients=arrays["coefficients"],
        intercept=arrays["intercept"], target_scale=arrays["target_scale"],
        kernel=kernels.from_config(description["kernel"]), sampler=description["sampler"],
        seed=description["seed"], info=description["info"], observe=arrays.get("observe"),
        posterior=posterior,
    )  # fmt: skip


def _checksum(value: npt.NDArray[Any]) -> int:
    return int(zlib.crc32(np.ascontiguousarray(value).data))
