"""Models that somebody else wrote, with right checksums: what lies is refused before anything large is allocated."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from cases import plain_map
from hostile import MUCH, archive, deep, npy, refused, small

from dorff import kernels
from dorff.features import Recipe, feature_arrays, features_from
from dorff.features.base import FeatureMap
from dorff.frequencies import IID, SORF, Fastfood, Quadrature
from dorff.model import Model
from dorff.model.calibration import Calibration, Conformal
from dorff.model.posterior import Posterior, SeparableBlock
from dorff.model.weights import OperatorWeights
from dorff.storage.files import check_confined
from dorff.store import load_model, save_model
from dorff.store.moments import read_npz


def drawn(kernel: kernels.ScalarKernel, sampler: Any, d: int = 3, count: int = 24) -> FeatureMap:
    phi = Recipe.of(kernel, sampler, d=d, n_features=count).draw(0).phi
    return FeatureMap(phi, np.zeros(d), np.ones(d))


GAUSSIAN = kernels.Gaussian(1.0)
MAPS = {
    "dense": drawn(GAUSSIAN, IID()), "hadamard": drawn(GAUSSIAN, SORF(), 64, 256),
    "fastfood": drawn(GAUSSIAN, Fastfood(), 64, 256), "butterfly": drawn(GAUSSIAN, Quadrature(), 128, 600),
    "relu": drawn(kernels.ArcCosine(1), IID()), "monomials": drawn(kernels.Polynomial(2), IID(), 2, 50),
    "maclaurin": drawn(kernels.Polynomial(3), IID(), 4, 30),
    "eigenfunctions": drawn(kernels.Mercer.named("brownian", 40), IID(), 1, 20),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_feature_maps_of_any_array_that_is_not_as_it_should_be_are_refused(name: str) -> None:
    """Each array in turn: of another shape, type or length, empty, with NaN, infinity, or an index that is nowhere."""
    features = MAPS[name]
    config, arrays = features.phi.config(), feature_arrays(features)
    again = features_from(config, arrays)
    assert all(np.array_equal(value, arrays[key]) for key, value in feature_arrays(again).items())
    tried = 0
    for key, value in arrays.items():
        changed = [value[None], value[:0], value.astype(np.complex128), value.astype(object), np.array(0.0)]
        changed += [value.astype(np.float32)] if value.dtype.kind == "f" else [value.astype(np.float64)]
        if value.dtype.kind in "fi" and value.size:
            for number in (np.nan, np.inf, -np.inf) if value.dtype.kind == "f" else (-1, 2**31 - 1, -(2**31)):
                worse = value.copy()
                worse.flat[-1] = number
                changed.append(worse)
        for other in changed:
            if other.shape == value.shape and other.dtype == value.dtype and np.array_equal(other, value):
                continue  # an empty array stays one
            tried += 1
            refused(lambda other=other, key=key: features_from(config, {**arrays, key: other}))  # type: ignore[misc]
        refused(lambda key=key: features_from(config, {k: v for k, v in arrays.items() if k != key}))  # type: ignore[misc]
    assert tried > 20


CONFIGS: list[Any] = [
    None, [], "projected", {}, {"type": []}, {"type": {}}, {"type": "other"}, {"type": "projected"},
    {"transform": []}, {"transform": "other"}, {"transform": {"a": 1}}, {"phi": 3}, {"phi": []}, {"phi": [1]},
    {"phi": {"type": []}}, {"phi": {"type": "pointwise", "function": "os.system"}},
    {"phi": {"type": "pointwise", "function": []}}, {"phi": {"type": "polynomial", "degree": MUCH}},
    {"phi": {"type": "mercer", "system": "brownian", "count": MUCH}}, {"phi": {"type": "gaussian", "lengthscale": 1}},
    {"centre": math.nan}, {"centre": math.inf}, {"centre": []}, {"centre": 10**400},
    {"centre": -1.0, "centre_column": True},
]  # fmt: skip


@pytest.mark.parametrize("change", CONFIGS, ids=lambda change: str(change)[:50])
def test_feature_maps_of_absurd_words_are_refused(change: Any) -> None:
    features = MAPS["dense"]
    config = features.phi.config()
    wrong = {**config, **change} if isinstance(change, dict) and change and change.keys() != {"type"} else change
    refused(lambda: features_from(wrong, feature_arrays(features)))


@pytest.mark.parametrize("d", [MUCH, -1, 0, 2.0, True, "2", None, [2], math.nan, 10**400])
@pytest.mark.parametrize("name", ["monomials", "eigenfunctions"])
def test_feature_maps_of_an_absurd_number_of_inputs_are_refused(name: str, d: Any) -> None:
    config = {**MAPS[name].phi.config(), "d": d}
    refused(lambda: features_from(config, feature_arrays(MAPS[name])))


def test_degrees_whose_sum_wraps_around_are_refused() -> None:
    features = MAPS["maclaurin"]
    arrays = {
        **feature_arrays(features), "degrees": np.full(4, 2**62), "signs": np.ones((0, 4)),
        "feature_weights": np.ones(4),
    }  # fmt: skip
    assert arrays["degrees"].sum() == len(arrays["signs"])
    refused(lambda: features_from(features.phi.config(), arrays))


def test_a_simplex_of_more_vertices_than_there_are_is_refused() -> None:
    features = MAPS["butterfly"]
    arrays = {**feature_arrays(features), "vertices": np.array([7])}
    refused(lambda: features_from(features.phi.config(), arrays))


def some_posterior(m: int = 6) -> Posterior:
    block = SeparableBlock(
        np.eye(m), np.ones((m, 1)), np.ones(2), np.ones(m), np.zeros(m), np.ones((2, 2)), np.ones((2, 2))
    )
    return Posterior((block,), np.eye(2), np.eye(2))


def test_posteriors_of_any_array_that_is_not_as_it_should_be_are_refused() -> None:
    arrays, shape = some_posterior().arrays(), (6, 2, 2)
    assert Posterior.of_arrays(arrays, shape, 2) is not None
    for key, value in arrays.items():
        worse = [np.full_like(value, number) for number in (np.nan, np.inf)] + [value[None], value.astype(np.float32)]
        if key.endswith(("variance", "spread", "noise", "intercept")):
            worse.append(-np.abs(value) - np.eye(*value.shape[-2:]) if value.ndim > 1 else -value)
        for other in worse:
            refused(lambda other=other, key=key: Posterior.of_arrays({**arrays, key: other}, shape, 2))  # type: ignore[misc]
    for absurd in ((MUCH, 2, 2), (6, MUCH, 2), (6, 2, MUCH), (6, 2, 2, 2)[:3][::-1]):
        refused(lambda absurd=absurd: Posterior.of_arrays(arrays, absurd, MUCH))  # type: ignore[misc]


def test_absurd_calibrations_are_refused() -> None:
    for slope, count in [(math.nan, 1), (math.inf, 1), (0.0, 1), (-1.0, 1), (1.0, math.inf), (1.0, math.nan), ([], 1)]:
        refused(lambda slope=slope, count=count: Calibration.of({"slope": slope, "rows": count}))  # type: ignore[misc]
    good = Conformal.fit(np.ones((50, 1))).config()
    assert Conformal.of(good).rows == (50,)
    for change in (
        {"rows": [math.inf]}, {"rows": [math.nan]}, {"rows": [-1]}, {"rows": []}, {"rows": 3}, {"factors": []},
        {"factors": [[math.nan]] * len(good["factors"])}, {"levels": [0.5]}, {"levels": None},
    ):  # fmt: skip
        refused(lambda change=change: Conformal.of({**good, **change}))  # type: ignore[misc]


GOOD = npy(np.arange(4.0))
#: Archives that `numpy.load` would unpack, unpickle, or believe.
ARCHIVES = {
    "bomb": archive(("a.npy", npy(np.zeros(2**24))), method=zipfile.ZIP_DEFLATED),
    "packed": archive(("a.npy", GOOD), method=zipfile.ZIP_DEFLATED),
    "bzip": archive(("a.npy", npy(np.zeros(2**20))), method=zipfile.ZIP_BZIP2),
    "claims 10^12": archive(("a.npy", npy(np.arange(4.0), claims=(MUCH,)))),
    "claims 10^12 columns": archive(("a.npy", npy(np.arange(4.0), claims=(0, MUCH, MUCH)))),
    "claims a negative": archive(("a.npy", npy(np.arange(4.0), claims=(-4,)))),
    "claims a float": archive(("a.npy", npy(np.arange(4.0), claims=(4.0,)))),  # type: ignore[arg-type]
    "claims less": archive(("a.npy", npy(np.arange(4.0), claims=(2,)))),
    "pickled": archive(("a.npy", npy(np.array([print, None], dtype=object)))),
    "text": archive(("a.npy", npy(np.array(["a", "b"])))), "void": archive(("a.npy", npy(np.zeros(3, "V8")))),
    "record": archive(("a.npy", npy(np.zeros(3, "f8,i4")))),
    "up": archive(("../a.npy", GOOD)), "root": archive(("/a.npy", GOOD)), "not npy": archive(("a.txt", GOOD)),
    "deep": archive(("a.npy", GOOD[:8] + b"\xff\xff" + b"(" * 65535)), "cut": archive(("a.npy", GOOD[:5])),
    "short": archive(("a.npy", GOOD[:-1])), "no archive": b"PK\x03\x04" + bytes(50), "nothing": b"",
    "torn": archive(("a.npy", GOOD))[:-9], "open": archive(("a.npy", GOOD[:8] + b"\x02\x00{\n")),
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_lie_are_refused(name: str) -> None:
    with small(), pytest.raises(ValueError):
        read_npz(ARCHIVES[name])


@pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile's own, of the archive that is made to be refused
def test_two_arrays_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="one name"):
        read_npz(archive(("a.npy", GOOD), ("a.npy", GOOD)))


def test_archives_that_numpy_wrote_are_read() -> None:
    buffer, rng = io.BytesIO(), np.random.default_rng(0)
    wanted = {
        "a": rng.random((3, 4)), "b": np.asfortranarray(rng.random((3, 4))), "c": np.array(True), "d": np.arange(0),
        "e": np.arange(5, dtype=np.int32), "f": rng.random((2, 1, 3)),
    }  # fmt: skip
    np.savez(buffer, **wanted)
    found = read_npz(buffer.getvalue())
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == value.dtype and np.array_equal(found[key], value) and found[key].flags.writeable


def test_links_and_pipes_in_a_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "file").write_text("x")
    check_confined(folder)
    for make in (
        lambda at: at.symlink_to("/etc/hostname"), lambda at: at.symlink_to(tmp_path),
        lambda at: at.symlink_to("file"), os.mkfifo,
    ):  # fmt: skip
        make(folder / "b" / "c")
        refused(lambda: check_confined(folder), "does not belong there")
        (folder / "b" / "c").unlink()


class ForgedModel:
    """A copy of a model's version, to be changed; `seal` makes its checksums right again."""

    def __init__(self, version: Path, home: Path) -> None:
        self.path = home / version.name
        shutil.copytree(version, self.path)
        self.node = json.loads((self.path / "zarr.json").read_text())
        self.words = json.loads(self.node["attributes"]["description"])

    def seal(self, text: str | None = None) -> None:
        attributes = self.node["attributes"]
        attributes["description"] = json.dumps(self.words, sort_keys=True) if text is None else text
        attributes["crc32"] = zlib.crc32(attributes["description"].encode())
        (self.path / "zarr.json").write_text(json.dumps(self.node))

    def array(self, name: str, value: np.ndarray[Any, Any], **options: Any) -> None:
        """Write an array, as the model's own writer does but for `options`."""
        group = zarr.open_group(str(self.path), mode="a")
        given = {"chunks": tuple(max(1, size) for size in value.shape), "compressors": None} | options
        stored = group.create_array(
            name, data=value, overwrite=True, config={"write_empty_chunks": True}, **given
        )  # fmt: skip
        crc = zlib.crc32(np.ascontiguousarray(value).data)
        stored.attrs["crc32"] = crc
        for key, said in (("shapes", list(value.shape)), ("dtypes", str(value.dtype)), ("crc32", crc)):
            self.words[key][name] = said

    def metadata(self, name: str, **changes: Any) -> None:
        """Change what an array's own zarr.json says."""
        path = self.path / name / "zarr.json"
        node = json.loads(path.read_text())
        path.write_text(json.dumps({**node, **changes}))

    def chunk(self, name: str) -> Path:
        (found,) = [path for path in (self.path / name / "c").rglob("*") if path.is_file()]
        return found


def small_model() -> Model:
    rng = np.random.default_rng(0)
    features = plain_map(rng.standard_normal((3, 2)))
    weights = OperatorWeights(np.ones(6), np.eye(2)[None])
    kernel = kernels.Decomposable(GAUSSIAN).fix(2, 2)
    return Model(
        features, weights, rng.standard_normal((6, 2)), np.zeros(2), np.ones(2), kernel, IID().config(), 0,
        {"targets": ["u", "v"]}, posterior=some_posterior(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(small_model(), tmp_path_factory.mktemp("models"))


@pytest.fixture
def forged(version: Path, tmp_path: Path) -> ForgedModel:
    return ForgedModel(version, tmp_path)


def test_a_forged_model_that_changes_nothing_loads(forged: ForgedModel) -> None:
    """The control: it is not the forger's checksums that are refused."""
    forged.array("coefficients", np.full((6, 2), 3.0))
    forged.seal()
    assert np.all(load_model(forged.path).coefficients == 3.0)


def claims(shape: list[Any], name: str = "coefficients") -> Callable[[ForgedModel], None]:
    """The array says to be of this shape, in its own words and in the model's."""

    def change(model: ForgedModel) -> None:
        model.words["shapes"][name] = shape
        grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
        model.metadata(name, shape=shape, chunk_grid=grid)

    return change


def one_chunk(model: ForgedModel) -> None:
    """10^12 features in a million chunks that are not there, and so are zeros."""
    claims([MUCH, 2])(model)
    grid = {"name": "regular", "configuration": {"chunk_shape": [10**6, 2]}}
    model.metadata("coefficients", chunk_grid=grid)


def sparse(model: ForgedModel) -> None:
    """... and a file as large as that, all of it a hole."""
    claims([MUCH, 2])(model)
    with model.chunk("coefficients").open("r+b") as file:
        file.truncate(16 * MUCH)


def everywhere(model: ForgedModel) -> None:
    """10^12 features in all arrays that have features."""
    for name, shape in (("coefficients", [MUCH, 2]), ("gain", [MUCH]), ("omega", [MUCH // 2, 2]),
                        ("feature_weights", [MUCH // 2])):  # fmt: skip
        claims(shape, name)(model)


def packed(codec: str) -> Callable[[ForgedModel], None]:
    """A chunk of few bytes that unpacks to very many."""

    def change(model: ForgedModel) -> None:
        values = np.zeros((2**22, 2))
        if codec == "gzip":
            model.array("coefficients", values, compressors=[zarr.codecs.GzipCodec(level=9)])
        elif codec == "zstd":
            model.array("coefficients", values, compressors=[zarr.codecs.ZstdCodec(level=9)])
        else:
            model.array("coefficients", values, shards=(2**22, 2), chunks=(2**20, 2),
                        compressors=[zarr.codecs.ZstdCodec()])  # fmt: skip
        model.words["shapes"]["coefficients"] = [6, 2]
        model.metadata("coefficients", shape=[6, 2])

    return change


def link_to(target: str, name: str) -> Callable[[ForgedModel], None]:
    def change(model: ForgedModel) -> None:
        """What lies elsewhere, its bytes right, reached through a link."""
        path = model.path / name
        elsewhere = model.path.parent / "elsewhere"
        path.rename(elsewhere)
        path.symlink_to(elsewhere if target == "out" else target)

    return change


def pipe(model: ForgedModel) -> None:
    chunk = model.chunk("gain")
    chunk.unlink()
    os.mkfifo(chunk)


def word(key: str, value: Any) -> Callable[[ForgedModel], None]:
    return lambda model: model.words.__setitem__(key, value)


def numbers(name: str, change: Callable[[Any], Any]) -> Callable[[ForgedModel], None]:
    def changed(model: ForgedModel) -> None:
        model.array(name, change(np.asarray(zarr.open_group(str(model.path), mode="r")[name][...])))

    return changed


def nested(levels: int) -> str:
    """A kernel that is a sum of a sum of ..."""
    opened, closed = '{"type": "sum", "terms": [{"weight": 1.0, "kernel": ', "}]}"
    innermost = '{"type": "curl_free", "scalar": {"type": "gaussian", "lengthscale": 1.0}}'
    return f'{{"kernel": {opened * levels}{innermost}{closed * levels}}}'


def scalar(output: Any = "identity", **config: Any) -> Callable[[ForgedModel], None]:
    return word("kernel", {"type": "decomposable", "output": output, "scalar": config})


def spoilt(number: float) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        worse = value.copy()
        worse.flat[0] = number
        return worse

    return change


LIES: dict[str, Callable[[ForgedModel], None]] = {
    "10^12 features": claims([MUCH, 2]), "10^12 features in all": everywhere, "in chunks": one_chunk,
    "a hole": sparse, "negative": claims([-6, 2]), "zero": numbers("coefficients", lambda c: c[:0]),
    "a float": lambda model: model.words["shapes"].__setitem__("coefficients", [6.0, 2.0]),
    "a bool": lambda model: model.words["shapes"].__setitem__("intercept", [True]),
    "10^400": claims([10**400, 2]), "text": claims(["6", "2"]), "many axes": claims([1] * 70),
    "shapes are a list": word("shapes", []), "shapes are a number": word("shapes", 3),
    "dtypes are a list": word("dtypes", ["float64"]), "a type is a list": word("dtypes", {"coefficients": []}),
    "objects": lambda model: model.words["dtypes"].__setitem__("coefficients", "object"),
    "up": lambda model: model.words["shapes"].__setitem__("../v000001/gain", [6]),
    "absolute": lambda model: model.words["shapes"].__setitem__("/etc", [6]),
    "a group": lambda model: model.words["shapes"].__setitem__("c", [6]),
    "gzip": packed("gzip"), "zstd": packed("zstd"), "shards": packed("shards"),
    "a link to an array": link_to("out", "gain"), "a link to numbers": link_to("out", "gain/c"),
    "a link to metadata": link_to("out", "gain/zarr.json"), "a pipe": pipe,
    "NaN": numbers("coefficients", spoilt(math.nan)), "infinity": numbers("intercept", spoilt(math.inf)),
    "no scale": numbers("target_scale", spoilt(0.0)), "NaN gain": numbers("gain", spoilt(math.nan)),
    "NaN root": numbers("root", spoilt(math.nan)), "NaN omega": numbers("omega", spoilt(math.nan)),
    "NaN posterior": numbers("posterior_noise", spoilt(math.nan)),
    "complex": numbers("gain", lambda g: g.astype(complex)), "single": numbers("gain", lambda g: g.astype("f4")),
    "an extra": lambda model: model.array("extra", np.zeros(3)),
    "no kernel": word("kernel", None), "a kernel's list": word("kernel", []),
    "a kernel's type": word("kernel", {"type": []}), "a kernel without": word("kernel", {"type": "decomposable"}),
    "a kernel's terms": word("kernel", {"type": "sum", "terms": 3}), "degree": scalar(type="polynomial", degree=MUCH),
    "mercer": scalar(type="mercer", system=[], count=3), "pairs": scalar(type="mercer", system="bridge", count=MUCH),
    "matrix": scalar({"matrix": [[math.nan]]}, type="gaussian", lengthscale=1.0),
    "function": scalar(type="pointwise", function="os.system"),
    "features": word("features", None), "sampler": word("sampler", []), "seed": word("seed", [1]),
    "info": word("info", "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_models_that_lie_are_refused(forged: ForgedModel, name: str) -> None:
    LIES[name](forged)
    forged.seal()
    refused(lambda: load_model(forged.path), forged.path)


@pytest.mark.parametrize(
    "text", [deep(), nested(5000), "[]", "3", "null", "{", '{"shapes": {}}', "{}", "NaN"], ids=lambda t: t[:15]
)
def test_models_whose_words_are_others_are_refused(forged: ForgedModel, text: str) -> None:
    forged.seal(text)
    refused(lambda: load_model(forged.path), forged.path)


def test_a_model_whose_metadata_is_nested_deeply_is_refused(forged: ForgedModel) -> None:
    for name in ("zarr.json", "gain/zarr.json"):
        path = forged.path / name
        raw = path.read_text()
        path.write_text(raw.replace('"attributes":', f'"more": {deep()}, "attributes":', 1))
        refused(lambda: load_model(forged.path))
        path.write_text(raw)


def test_a_version_that_lies_elsewhere_is_refused(version: Path, tmp_path: Path) -> None:
    save_model(small_model(), tmp_path)
    shutil.rmtree(tmp_path / "v000001")
    (tmp_path / "v000001").symlink_to(version)
    refused(lambda: load_model(tmp_path))


@pytest.mark.parametrize("raw", [b"v000001\xff", b"\xff\xfe", b"../v000001", b"v000001\n" * 9, b"v" + b"9" * 5000])
def test_a_current_that_is_forged_is_refused(tmp_path: Path, raw: bytes) -> None:
    save_model(small_model(), tmp_path)
    for content in (raw, raw + b" %08x" % zlib.crc32(raw)):
        (tmp_path / "current").write_bytes(content)
        refused(lambda: load_model(tmp_path), "current")


@pytest.mark.process
def test_10_to_the_12_features_are_refused_within_little_memory(forged: ForgedModel) -> None:
    """In a process that may have no more than 256 MiB beyond what it has when it begins."""
    everywhere(forged)
    forged.seal()
    program = f"""
import resource
from dorff.errors import InputError
from dorff.store import load_model
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + 2**28
resource.setrlimit(resource.RLIMIT_AS, (size, size))
try:
    load_model({str(forged.path)!r})
except InputError as error:
    print("refused", error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0 and done.stdout.startswith("refused"), done.stderr
