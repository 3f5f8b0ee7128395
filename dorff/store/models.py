"""Published models: a Zarr group a version, no pickle, no code; `current` names the newest. Read without trust."""

import errno
import hashlib
import json
import math
import re
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psutil
import zarr

from dorff import kernels
from dorff.errors import DorffError, InputError, LeaseError
from dorff.features import FeatureMap, Projected, feature_arrays, features_from
from dorff.features.base import check_array
from dorff.frequencies.transforms import Arrays, Dense
from dorff.model import HeldSample, Model, OperatorWeights, Posterior
from dorff.storage import files
from dorff.storage.location import locate
from dorff.store.lease import Lease

FORMAT = "dorff-model-4"
_SOLVED = ("coefficients", "intercept", "target_scale")
_DTYPES = ("float64", "int64", "int32", "bool")
_VERSION = re.compile(r"v\d{6,18}", re.ASCII)
#: What `current` says before its checksum: a version and the first 16 digits of its `content`, which older ones lack.
_CURRENT = re.compile(rf"({_VERSION.pattern})(?: ([0-9a-f]{{16}}))?", re.ASCII)
#: What content that is not what it should be may raise, wherever it is looked at.
UNREADABLE: Final = (
    OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, ArithmeticError, MemoryError,
)  # fmt: skip


def save_model(model: Model, root: Path) -> Path:
    """Write a new version under `root`, then switch `current` to it in one step; returns the version's directory. Takes
    no lease: where fits publish to the same root, hold its lease meanwhile."""
    version = number_version(write_version(model, root))
    switch_current(root, version.name)
    return version


def write_version(model: Model, root: Path) -> Path:
    """Write a new version under `root` and wait for the disk. It can be loaded from the directory returned, but has no
    number yet; one that its writer left is removed by the next `publish`, or by `prune_versions` a day later."""
    with files.space_on(root):
        files.make_directory(root, sync=True)
        version = root / f".new-{uuid.uuid4().hex}"
        try:
            _write(model, version)
            files.sync_directory(root)
        except BaseException:
            _discard(version)
            raise
    return version


def _discard(version: Path) -> None:
    """Remove a version that is not to be, until it is gone twice: Zarr's threads may make its folder again."""
    gone = 0
    for _ in range(20):
        files.rmtree(version, ignore_errors=True)
        gone = 0 if version.exists() else gone + 1
        if gone == 2:
            return
        time.sleep(0.05)


def number_version(version: Path) -> Path:
    """Give a version that was written the first number that is free; others may be doing so too. Returns its place."""
    root = version.parent
    with files.space_on(root):
        while True:
            place = root / f"v{max((_number(path) for path in versions(root)), default=0) + 1:06d}"
            try:
                version.rename(place)
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
        try:
            files.sync_directory(root)
        except OSError:
            place.rename(version)  # it stays what its writer knows, and removes
            raise
    return place


def switch_current(root: Path, name: str) -> None:
    """Make the version `name` the current one, in one step; LeaseError where a later one is it meanwhile."""
    text = f"{name} {content(root / name)[:16]}"
    with files.space_on(root / "current"):
        if not locate(root / "current").point(_number(root / name), f"{text} {zlib.crc32(text.encode()):08x}".encode()):
            raise LeaseError(f"{root}: a later version than {name} is current; this one is not published, run it again")


def content(version: Path) -> str:
    """Names all that is in a version: its description holds the checksums of its arrays."""
    return hashlib.sha256(files.read_plain(version / "zarr.json")).hexdigest()


def discard_unnumbered(root: Path, lease: Lease) -> None:
    """Remove the versions that got no number because their writers were killed; `lease` is that of `root`. Who holds it
    has written none yet, so all are of others, that had it before."""
    with lease.fenced():
        for version in files.unfinished(root, ".new-"):
            with suppress(FileNotFoundError):  # its writer, who lost the lease, removes it too
                files.hide(version)
    for gone in files.unfinished(root, ".gone-"):  # after the lock is given back: this can take long
        files.rmtree(gone, ignore_errors=True)


def older_versions(root: Path) -> list[Path]:
    """The versions before the current one, oldest first; InputError where there is none."""
    if (name := current_version(root)) is None:
        raise InputError(f"{root}: no model here; give a model's root")
    return [version for version in versions(root) if _number(version) < _number(root / name)]


def current_version(root: Path) -> str | None:
    """The name of the current version, None where there is none; InputError where `current` is damaged."""
    named = _current(root)
    return None if named is None else named[0]


def _current(root: Path) -> tuple[str, str | None] | None:
    """The name and those digits of the `content` in `current`; None and InputError as above."""
    path = root / "current"
    try:
        with files.reading(path):
            raw = locate(path).pointed()
    except (FileNotFoundError, NotADirectoryError):
        return None
    text = raw[:-9].decode("ascii", "replace")
    if (parts := _CURRENT.fullmatch(text)) is None or raw != f"{text} {zlib.crc32(text.encode()):08x}".encode():
        remedy = "give one of the versions themselves, or publish again"
        raise InputError(f"{path}: is damaged: it should name a version such as v000001, with a checksum; {remedy}")
    return parts[1], parts[2]


def versions(root: Path) -> list[Path]:
    """Every version there is, oldest first."""
    with files.reading(root):
        there = (path for path in root.glob("v*") if _VERSION.fullmatch(path.name) and path.exists())
        return sorted(there, key=_number)


def _number(version: Path) -> int:
    return int(version.name[1:])


def _write(model: Model, path: Path) -> None:
    arrays = model_arrays(model)
    group = zarr.open_group(locate(path).zarr(), mode="w-", zarr_format=3)
    for name, value in arrays.items():
        layout: Any = {"chunks": _chunks(value.shape), "compressors": None, "config": {"write_empty_chunks": True}}
        group.create_array(name, data=value, **layout)
    description = {
        "kernel": model.kernel.config(),
        "sampler": dict(model.sampler),
        "seed": model.seed,
        "features": model.feature_map.phi.config(),
        "info": dict(model.info),
        "shapes": {name: list(value.shape) for name, value in arrays.items()},
        "dtypes": {name: str(value.dtype) for name, value in arrays.items()},
        "crc32": {name: _checksum(value) for name, value in arrays.items()},
    }
    text = json.dumps(description, sort_keys=True)
    group.attrs.update({"format": FORMAT, "description": text, "crc32": zlib.crc32(text.encode())})
    for written in (*path.rglob("*"), path) if locate(path).folders else ():
        files.sync_directory(written)


def _chunks(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(max(1, size) for size in shape)


def model_arrays(model: Model) -> Arrays:
    """All that a model's files hold, by name."""
    solved = {name: getattr(model, name) for name in _SOLVED}
    solved |= {"gain": model.operator_weights.gain, "root": model.operator_weights.root}
    if model.operator_weights.views is not None:
        solved["views"] = model.operator_weights.views
    if model.observe is not None:
        solved["observe"] = model.observe
    posterior = {} if model.posterior is None else model.posterior.arrays()
    held = {} if model.held is None else model.held.arrays()
    return {**feature_arrays(model.feature_map), **solved, **posterior, **held}


def resolve_model(path: Path) -> Path:
    """The version directory that a model's root (its `current`) or a version names; InputError where there is none, or
    where the current one is another than was published."""
    if (path / "zarr.json").is_file():
        try:
            version, named = path, _current(path.parent)
        except InputError:  # damaged: nobody says what the version should be
            return path
    else:
        if (named := _current(path)) is None:
            raise InputError(f"{path}: no model here; give a model's root or one of its versions")
        if (version := path / named[0]).is_symlink():
            raise InputError(f"{version}: is a link, which does not belong there; copy the version's folder anew")
    # Pruned meanwhile, or damaged: whoever loads it says so.
    with suppress(FileNotFoundError), files.reading(version):
        if named is not None and named[0] == version.name and named[1] not in (None, content(version)[:16]):
            problem = f"is not the one that {version.parent / 'current'} was written for, but another version's"
            remedy = "put the right folder back, or publish again"
            raise InputError(f"{version}: zarr.json {problem}, or changed since; {remedy}")
    return version


def load_model(path: str | Path, *, posterior: bool = True, held: bool = False) -> Model:
    """The model at `path`: a model's root (its current version) or one version. Its posterior, where it has one, can be
    many times as large as the rest; without `posterior` it stays where it is, as held-out rows do without `held`. Runs
    no code from the files. Raises InputError where a file is missing or damaged, or shapes disagree, IncompleteError
    where the disk fails."""
    version = resolve_model(locate(path))
    left = (*(() if posterior else ("posterior_",)), *(() if held else ("held_",)))
    try:
        return _load(version, left)
    except InputError:
        if resolve_model(locate(path)) == version:
            raise
    return load_model(path, posterior=posterior, held=held)  # it was pruned while it was read: another is current


def _load(version: Path, left: tuple[str, ...]) -> Model:
    try:
        with files.reading(version):
            description, arrays = _read(version, left)
    except DorffError:
        raise
    except UNREADABLE as error:
        raise InputError(f"{version}: cannot be read as a model ({error}); publish it again") from error
    try:
        return build_model(arrays, description)
    except InputError as error:
        raise InputError(f"{version}: {error}; publish it again") from error


def _read(version: Path, left: tuple[str, ...]) -> tuple[Mapping[str, Any], Arrays]:
    """What describes a model, and its arrays but those whose names begin so: each checked before reading and after."""
    files.check_confined(version)
    group = zarr.open_group(locate(version).zarr(read_only=True), mode="r")
    if "description" not in group.attrs:
        raise InputError(f"{version}: is no model of dorff; give a model's root or one of its versions")
    text, checksum = str(group.attrs["description"]), group.attrs["crc32"]
    if group.attrs["format"] != FORMAT or zlib.crc32(text.encode()) != checksum:
        raise InputError(f"{version}: the model's description is damaged or of another version of dorff")
    description = json.loads(text)
    shapes = {name: tuple(shape) for name, shape in description["shapes"].items() if not name.startswith(left)}
    # Before anything is read, let alone allocated: files can be hollow, so that their sizes prove little.
    if any(type(size) is not int or size < 0 for shape in shapes.values() for size in shape):
        raise InputError(f"{version}: claims arrays of sizes that are no whole numbers; publish it again")
    claimed = sum(8 * math.prod(shape) for shape in shapes.values())
    if claimed > psutil.virtual_memory().total:
        raise InputError(f"{version}: claims to hold up to {claimed:.3g} bytes, more than this machine; publish again")
    dtypes = description["dtypes"]
    arrays = {name: _load_array(group, name, shape, dtypes[name], version) for name, shape in shapes.items()}
    for name, value in arrays.items():
        if _checksum(value) != description["crc32"][name]:
            raise InputError(f"{version}: array {name} is damaged, or another's; publish it again")
    return description, arrays


def _load_array(group: zarr.Group, name: str, shape: tuple[int, ...], dtype: str, version: Path) -> npt.NDArray[Any]:
    """An array whose file is its numbers and nothing else: what it claims is held against that file's size first."""
    stored = group[name] if name.isidentifier() and dtype in _DTYPES else None
    if not isinstance(stored, zarr.Array) or stored.shape != shape or str(stored.dtype) != dtype:
        raise InputError(f"{version}: array {name} is not the {list(shape)} {dtype} array it should be")
    coded = bool(stored.compressors or stored.filters or stored.shards)
    size = locate(version / name / "c").bytes_below()
    if coded or stored.chunks != _chunks(shape) or stored.nbytes != size:
        raise InputError(f"{version}: array {name} claims other bytes than its file holds; publish it again")
    return np.asarray(stored[...], order="C")


def _checksum(value: npt.NDArray[Any]) -> int:
    return int(zlib.crc32(np.ascontiguousarray(value).data))


def build_model(arrays: Arrays, words: Mapping[str, Any]) -> Model:
    """The model of these arrays, by name, and of these words: `kernel`, `sampler`, `seed`, `features` and `info`.
    InputError where they do not fit each other, something is not finite, or an array is nobody's. Runs no code that
    they name, and allocates little more than they have."""
    try:
        return _built(arrays, words)
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"its arrays and words do not fit each other ({type(error).__name__}: {error})") from error


def _built(arrays: Arrays, words: Mapping[str, Any]) -> Model:
    for key, kind in {"kernel": Mapping, "sampler": Mapping, "info": Mapping, "seed": int}.items():
        if not isinstance(words[key], kind) or isinstance(words[key], bool):
            wanted = "a whole number" if kind is int else "a mapping"
            raise InputError(f"{key} should be {wanted}, got {type(words[key]).__name__}")
    m, _ = arrays["coefficients"].shape
    roots, r, inside = arrays["root"].shape
    kernel = kernels.from_config(words["kernel"])
    features = features_from(words["features"], arrays)
    weights = _weights(arrays, kernel, features)
    p = kernel.V * inside
    q = len(arrays["observe"]) if "observe" in arrays else inside
    posterior, held = Posterior.of_arrays(arrays, (m, r, p), q), HeldSample.of_arrays(arrays, features.d, q)
    expected = {
        "coefficients": (m, r),
        "intercept": (p,),
        "target_scale": (p,),
        "gain": (m,),
        "root": (1 if roots == 1 else m, r, inside),
        **({"observe": (q, p)} if "observe" in arrays else {}),
    }
    for name, shape in expected.items():
        check_array(name, arrays[name], shape)
    if m != features.m or not all((m, r, p, q)) or not np.all(arrays["target_scale"] > 0):
        raise InputError(f"{features.m} features have coefficients {(m, r)}, or a target's scale is not above 0")
    if weights.views is not None and q != inside:
        raise InputError(f"views of {inside} outputs have {q} targets")
    model = Model(
        feature_map=features, operator_weights=weights,
        coefficients=arrays["coefficients"], intercept=arrays["intercept"], target_scale=arrays["target_scale"],
        kernel=kernel, sampler=words["sampler"], seed=words["seed"], info=words["info"], observe=arrays.get("observe"),
        posterior=posterior, held=held,
    )  # fmt: skip
    if others := arrays.keys() - model_arrays(model).keys():
        raise InputError(f"array {min(others)} is no part of such a model")
    return model


def _weights(arrays: Arrays, kernel: kernels.OperatorKernel, features: FeatureMap) -> OperatorWeights:
    """psi; InputError where features are of views that the kernel has not, or see columns that their view does not."""
    if not isinstance(kernel, kernels.MultiView):
        return OperatorWeights(arrays["gain"], arrays["root"])
    views, phi = arrays["views"], features.phi
    kernel.check_inputs(features.d)
    if not isinstance(phi, Projected) or not isinstance(phi.projection, Dense) or phi.m != 2 * phi.projection.D:
        raise InputError("a multi-view kernel has cosines and sines of frequencies that are written out")
    if views.dtype != np.int64 or views.shape != (phi.m,):
        raise InputError(f"array views should be int64 of shape {(phi.m,)}, got {views.dtype} of shape {views.shape}")
    first, second = views.reshape(2, -1)
    if not np.array_equal(first, second) or np.any((first < 0) | (first >= kernel.V)):
        raise InputError(f"array views should number the {kernel.V} views, of cosines as of sines")
    for number, view in enumerate(kernel.views):
        if np.any(np.delete(phi.omega[first == number], view.columns, axis=1)):
            raise InputError(f"features of view {view.name} see columns that it does not")
    return OperatorWeights(arrays["gain"], arrays["root"], views, kernel.V)
