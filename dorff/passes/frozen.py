"""A pass: its spec, and the constants that its first rows told, frozen by the first plan in files that anybody may
have written."""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from dorff.errors import InputError
from dorff.features import Drawn, FeatureMap, Projected, feature_arrays, features_from
from dorff.frequencies.transforms import Arrays
from dorff.model.weights import Density
from dorff.moments import MOST_PATTERNS, FloatArray
from dorff.passes.spec import GROUPED, Configs, FoldRule, PassSpec
from dorff.spec.registry import Config
from dorff.store import identity, read_plain, write_atomic
from dorff.store.models import UNREADABLE
from dorff.store.moments import read_npz


@dataclass(frozen=True)
class RowsName:
    """Rows by number and value: from which on, how many, and a checksum, or one of each array."""

    first: int
    rows: int
    crc: int | Sequence[int]


@dataclass(frozen=True, eq=False)
class FrozenConstants:
    """What the first rows told. `sample` names these; `patterns` are the ways to miss targets that count (None: all
    do), and fold 0 has the group or row `first`. `fold_seed` is in the place of the spec's for few groups.

    `run` is how many rows are dealt to folds together, and `sampled` what a sample of rows told (`plan.sampled`), both
    where the spec leaves the first to them. `distances` are the median distance of rows over the length-scale of each
    kernel, None of those that have none.

    Where length-scales are words, `drawn` and `fitted` are the kernels with numbers in their place (`fitted` None:
    those drawn for are fitted), `tuning_rows` names the rows that were searched by, and `tuned` says what became of
    that for each kernel."""

    features: FeatureMap
    draw: Drawn
    y0: FloatArray
    class_weight: FloatArray | None
    sample: RowsName
    patterns: tuple[str, ...] | None = None
    first: int = 0
    drawn: Configs | None = None
    fitted: Configs | None = None
    tuning_rows: RowsName | None = None
    tuned: tuple[str | None, ...] | None = None
    run: int | None = None
    fold_seed: int | None = None
    sampled: Config | None = None
    distances: Sequence[float | None] | None = None

    @cached_property
    def density(self) -> Density | None:
        """That of the frequencies, where they have one."""
        return self.draw.density

    def config(self) -> Config:
        """All but the arrays, as JSON."""
        kernels = {"drawn": self.drawn, "kernel": self.fitted}
        resolved = {name: value for name, value in kernels.items() if value is not None}
        return {
            "sample": asdict(self.sample),
            "patterns": self.patterns,
            "resolved": resolved or None,
            "tuning_rows": None if self.tuning_rows is None else asdict(self.tuning_rows),
            "tuned": self.tuned,
            "run": self.run,
            "fold_seed": self.fold_seed,
            "sampled": self.sampled,
            "distances": self.distances,
        }

    def arrays(self) -> Arrays:
        """The arrays, by name."""
        more = {"log_density": self.draw.log_density, "serves": self.draw.serves, "class_weight": self.class_weight}
        given = {name: one for name, one in more.items() if one is not None}
        return {"y0": self.y0, **feature_arrays(self.features), **given}

    @classmethod
    def of(cls, config: Mapping[str, Any], features: FeatureMap, arrays: Arrays) -> Self:
        """From the JSON and the arrays; InputError, or one of UNREADABLE, where they are of none."""
        _check_arrays(arrays, features)
        patterns = config["patterns"]
        listed = patterns is None or (type(patterns) is list and len(patterns) <= MOST_PATTERNS)
        if not listed or not all(isinstance(one, str) and set(one) <= {"0", "1"} for one in patterns or ()):
            raise InputError("its patterns of targets are not those of a plan")
        resolved, tuning, tuned = config["resolved"] or {}, config["tuning_rows"], config["tuned"]
        run, seed = config["run"], config.get("fold_seed")
        if type(run or 0) is not int or (run or 0) < GROUPED or type(seed or 0) is not int:
            raise InputError("its folds are not those of a plan")
        return cls(
            features,
            Drawn(features.phi, arrays.get("log_density"), arrays.get("serves")),
            arrays["y0"],
            arrays.get("class_weight"),
            RowsName(**config["sample"]),
            patterns=None if patterns is None else tuple(patterns),
            first=config["folds"]["first"],
            drawn=resolved.get("drawn"),
            fitted=resolved.get("kernel"),
            tuning_rows=None if tuning is None else RowsName(**tuning),
            tuned=None if tuned is None else tuple(tuned),
            run=config["run"],
            fold_seed=config.get("fold_seed"),
            sampled=config["sampled"],
            distances=config["distances"],
        )


@dataclass(frozen=True)
class Place:
    """A folder `directory` that leaves leave their sums and receipts in, named by `hash` of what these are of."""

    directory: Path
    hash: str

    @property
    def receipts(self) -> Path:
        return self.directory / "receipts"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    def node(self, level: int, index: int, key: str) -> Path:
        """The file of the sum of leaves [index 2^level, (index + 1) 2^level); the key names what is in it."""
        return self.directory / "nodes" / f"{level:02d}-{index:06d}-{key}.moments"


@dataclass(frozen=True, eq=False)
class Pass(Place):
    """All that the sums depend on besides the rows; frozen by the first plan in `directory`, named by `hash`."""

    spec: PassSpec
    constants: FrozenConstants

    @property
    def features(self) -> FeatureMap:
        return self.constants.features

    @property
    def folds(self) -> FoldRule:
        """The rule of the spec, with the row or group that fold 0 has, and what a sample of rows told."""
        run, seed = self.constants.run, self.constants.fold_seed
        rule = replace(self.spec.folds, first=self.constants.first)
        rule = rule if run is None else replace(rule, run=run)
        return rule if seed is None else replace(rule, seed=seed)


def freeze(directory: Path, spec: PassSpec, constants: FrozenConstants) -> None:
    """Write a pass: the arrays first, then `plan.json`, which makes them count."""
    buffer = io.BytesIO()
    np.savez(buffer, **constants.arrays())  # type: ignore[arg-type]  # mypy takes every name for allow_pickle
    words = {**spec.config(), **constants.config()}
    words["folds"] = {**words["folds"], "first": constants.first}
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    body = {"question": words, "features": constants.features.phi.config(), "arrays": digest}
    body["check"] = seal_of(body, directory)
    write_atomic(directory / "arrays.npz", [buffer.getbuffer()], sync=True)
    write_atomic(directory / "plan.json", [json.dumps(body, indent=1, sort_keys=True).encode()], sync=True)


def seal_of(body: Mapping[str, Any], directory: Path) -> str:
    """The checksum of what `plan.json` says; of its folder, too, whose name is that of the spec."""
    of = identity(directory / "plan.json", 2)
    return hashlib.sha256(f"{of}{json.dumps(body, sort_keys=True)}".encode()).hexdigest()


def frozen_hash(directory: Path) -> str | None:
    """The name of the pass frozen in a state directory, or None where there is none."""
    try:
        return hashlib.sha256(read_plain(directory / "plan.json")).hexdigest()[:16]
    except FileNotFoundError:
        return None


@lru_cache(maxsize=4)
def load_pass(directory: Path, name: str) -> Pass:
    """The frozen pass `name` in a state directory.

    InputError where its files are damaged or another's, do not fit each other, or say what no plan says. Nothing much
    larger than they are is allocated."""
    text = read_plain(directory / "plan.json")
    if hashlib.sha256(text).hexdigest()[:16] != name:
        raise InputError(f"{directory / 'plan.json'} changed while the job ran; run the job again")
    try:
        return Pass(directory, name, *_read(directory, text))
    except (*UNREADABLE, InputError) as error:
        why = str(error) if isinstance(error, InputError | OSError) else f"{type(error).__name__}: {error}"
        raise InputError(f"{directory}: the frozen plan is damaged ({why}); remove it and fit again") from error


def _read(directory: Path, text: bytes) -> tuple[PassSpec, FrozenConstants]:
    raw, body = read_plain(directory / "arrays.npz"), json.loads(text)
    if body.pop("check") != seal_of(body, directory) or hashlib.sha256(raw).hexdigest() != body["arrays"]:
        raise InputError("its checksum is wrong, or it is another plan's or of another version of dorff")
    arrays, words = read_npz(raw), body["question"]
    constants = FrozenConstants.of(words, features_from(body["features"], arrays), arrays)
    return PassSpec.from_config(words), constants


def _check_arrays(arrays: Arrays, features: FeatureMap) -> None:
    """y0 (q,), class_weight (q,), log_density (D,) and serves (T, D): all but the first may be missing."""
    q, D = arrays["y0"].size, features.phi.projection.D if isinstance(features.phi, Projected) else 0
    shapes = {"y0": (q,), "class_weight": (q,), "log_density": (D,)}
    given = {name: arrays[name] for name in shapes if name in arrays}
    fit = all(value.shape == shapes[name] and value.dtype == np.float64 for name, value in given.items())
    fit = fit and all(bool(np.isfinite(value).all()) for value in given.values())
    serves = arrays.get("serves", np.ones((1, D), dtype=np.bool_))
    fit = fit and serves.ndim == 2 and serves.shape[1] == D and serves.dtype == np.bool_
    extra = arrays.keys() - feature_arrays(features).keys() - {*shapes, "serves"}
    if extra or not fit or np.any(given.get("class_weight", np.zeros(q)) < 0):
        raise InputError(f"its arrays {', '.join(sorted(extra or given))} are not those of a plan")
