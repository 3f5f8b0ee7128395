"""A pass: its spec, plain values that name its state; and constants that its first rows told, frozen in files that
anybody may have written."""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import numpy as np

from dorff.data.dataset import Keys, RowBlock
from dorff.errors import InputError
from dorff.features import Drawn, FeatureMap, Projected, endless, feature_arrays, features_from, outside, periods_of
from dorff.frequencies.transforms import Arrays
from dorff.model.weights import Density
from dorff.moments import MOST_PATTERNS, FloatArray, IntArray, Kind
from dorff.spec.registry import Config
from dorff.store import identity, read_plain, write_atomic
from dorff.store.models import UNREADABLE
from dorff.store.moments import read_npz

#: A mapping of JSON: of strings to strings, numbers, lists and such mappings.
Configs: TypeAlias = Sequence[Config]
Words: TypeAlias = tuple[Configs | None, Configs | None]  # kernels with words to be filled in, drawn and fitted

FORMAT: Final = 2
MOST_ROWS: Final = 2**31  # of a block: no plan asks for more
MOST_FOLDS: Final = 2**20
FEW_GROUPS: Final = 16  # a fold
SEEDS: Final = 2048
GROUPED, AS_SAMPLED, IN_BLOCKS = 0, -1, -2  # in the place of the rows of a run
_NAN: Final = ("refuse", "drop", "partial", "unlabelled")
_WORDS: Final = {"nan": _NAN, "sums": tuple(Kind), "precision": ("double", "mixed")}
_PLAIN: Final = (
    "patterns",
    "tuned",
    "run",
    "fold_seed",
    "sampled",
    "distances",
    "smoothness",
)  # constants that are JSON already
Rows = IntArray


@dataclass(frozen=True)
class FoldRule:
    """Which fold a row is in: one fold, whole leaves dealt in turn, or rows by a hash of a seed and of their number
    or, where they have groups, their group's key. With `held` there are two folds: 0 is one of `held` that leaves or
    rows are dealt to, 1 all the others. Of rows it is the one that `first` is dealt to, a row's number or a group's
    key: it always has a row. Rows of one `run`, of that many rows in order, are dealt together; `GROUPED` says that
    those of a group are, and `AS_SAMPLED` that a sample of the rows is to tell how long a run is, `IN_BLOCKS` the same
    of more than one: the constants of a pass do."""

    count: int = 1
    by_rows: bool = False
    seed: int = 0
    held: int = 0
    first: int = 0
    run: int = 1

    @classmethod
    def one_held(cls, count: int, by_rows: bool, seed: int, run: int = 1) -> "FoldRule":
        """One fold of `count` held out, the others together."""
        return cls(2, by_rows, seed, count, run=run)

    def of_leaf(self, number: int) -> int:
        return int(number % self.held > 0) if self.held else number % self.count

    def of(self, rows: RowBlock) -> Rows:
        """Fold numbers (n,) of rows that are dealt: those of a group, or of a run, together."""
        return self.of_rows(rows.groups if self.run == GROUPED and rows.groups is not None else rows.numbers)

    def of_rows(self, rows: Rows | Keys) -> Rows:
        """Fold numbers (n,): splitmix64 of the row's number or group's key (n,), so that appended rows move no others.
        So many groups are in a fold by chance: of few groups some folds may have none (see `even`)."""
        rows = rows if self.run <= 1 else rows // self.run
        if not self.held:
            return self._dealt(rows, self.count)
        first = self._dealt(np.array([self.first], np.uint64), self.held)
        return np.asarray(self._dealt(rows, self.held) != first, dtype=np.int64)

    def even(self, groups: Keys) -> "FoldRule":
        """With that of some seeds which deals rows of these groups (n,) to folds most evenly: by any seed a few groups
        leave folds empty, by chance. As it is where groups are many."""
        keys, rows = np.unique(groups, return_counts=True)
        if len(keys) > FEW_GROUPS * self.count:
            return self

        def unevenness(rule: "FoldRule") -> int:
            return int(np.sum(np.bincount(rule._dealt(keys, self.count), rows) ** 2))

        return min((replace(self, seed=self.seed + more) for more in range(SEEDS)), key=unevenness)

    def _dealt(self, rows: Rows | Keys, count: int) -> Rows:
        z = rows.astype(np.uint64) + np.uint64((self.seed * 0x9E3779B97F4A7C15) % 2**64)
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) % np.uint64(count)).astype(np.int64)


@dataclass(frozen=True)
class PassSpec:
    """All that the sums of a pass depend on but for the values of the rows. Equal specs have equal sums. `rows` says
    which rows and columns (`Dataset.rows_spec`), `recipe` and `sampler` which features; `count` is the number of
    features that the job asks for. `words` are the kernels, those drawn for and those fitted, where the length-scales
    of some are words (None where none is; of those fitted None, too, where they are the ones drawn for), and `tuning`
    what a length-scale that is tuned depends on besides: the intercept and the observation matrix. `one_scale` ties
    the scales of all inputs to one."""

    store: str
    rows: Config
    recipe: Config
    sampler: Config
    count: int
    precision: str
    sums: Kind
    seed: int
    standardize: bool
    nan: str
    class_weight: str | Sequence[Sequence[Any]]
    folds: FoldRule
    block_rows: int
    read_rows: int
    words: Words
    tuning: tuple[bool, Sequence[Sequence[float]] | None] | None
    one_scale: bool

    @property
    def mixed(self) -> bool:
        """Whether blocks are summed in float32."""
        return self.precision == "mixed"

    @property
    def partial(self) -> bool:
        """Whether rows may miss targets."""
        return self.nan in ("partial", "unlabelled")

    @property
    def reach(self) -> Config:
        """The ends of a box, with what rounding may add, and what becomes of rows beyond; empty where there is none."""
        if (box := self.recipe.get("box")) is None:
            return {}
        low, high = with_slack(np.array(box, dtype=np.float64)).tolist()
        return {"box_low": low, "box_high": high, "outside": self.recipe["outside"]}

    @cached_property
    def box(self) -> FloatArray | None:
        """The box (2, d) that inputs must lie in, without ends along a period; None where there is none."""
        if not (ends := self.reach):
            return None
        return endless(np.array([ends["box_low"], ends["box_high"]]), periods_of(self.sampler, len(ends["box_low"])))

    def kept(self, rows: RowBlock) -> RowBlock:
        """Those that weigh anything and, where rows beyond the box are dropped, do not lie beyond it."""
        rows, box = rows.weighty(), self.box if self.recipe.get("outside") == "drop" else None
        return rows if box is None else rows[~outside(box, rows.X)]

    def config(self) -> Config:
        """The spec as JSON."""
        return {"format": FORMAT, **asdict(self)}

    @cached_property
    def name(self) -> str:
        """Sixteen hexadecimal digits that tell specs apart."""
        return hashlib.sha256(json.dumps(self.config(), sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The spec that such JSON is of; InputError, KeyError or TypeError where it is of none."""
        _check_numbers(config)
        for name, words in _WORDS.items():
            if config[name] not in words:
                raise InputError(f"its {name} should be {' or '.join(words)}, got {str(config[name])[:40]!r}")
        values = {field.name: config[field.name] for field in fields(cls)}
        drawn, fitted = config["words"]
        values |= {"folds": FoldRule(**config["folds"]), "sums": Kind(config["sums"]), "words": (drawn, fitted)}
        return cls(**values)


def _check_numbers(config: Mapping[str, Any]) -> None:
    """The numbers that a pass is made of; which they are is the plan's own business."""
    folds = config["folds"]
    counts = [(config[name], 1, MOST_ROWS) for name in ("block_rows", "read_rows")]
    counts += [(folds["count"], 1, MOST_FOLDS), (folds["held"], 0, MOST_FOLDS), (folds["first"], -(2**63), 2**64)]
    counts += [(folds["run"], IN_BLOCKS, MOST_ROWS)]
    whole = all(type(value) is int and least <= value <= most for value, least, most in counts)
    if not whole or type(folds["seed"]) is not int or type(folds["by_rows"]) is not bool:
        raise InputError("its numbers of rows or folds are not those of a plan")


def with_slack(box: FloatArray) -> FloatArray:
    """A box (2, d) with what rounding may add."""
    return np.asarray(box + 1e-9 * np.ptp(box, axis=0) * [[-1.0], [1.0]])


@dataclass(frozen=True)
class RowsName:
    """Rows by number and value: from which on, how many, and a checksum, or one of each array."""

    first: int
    rows: int
    crc: int | Sequence[int]


@dataclass(frozen=True, eq=False)
class FrozenConstants:
    """What the first rows told. `sample` names these; `patterns` are the ways to miss targets that count (None: all
    do), and fold 0 has the group or row `first`. `fold_seed` is in the place of the spec's for few groups. `run` is
    how many rows are dealt to folds together, and `sampled` what a sample of rows told (`plan.sampled`), both where
    the spec leaves the first to them. `distances` are the median distance of rows over the length-scale of each
    kernel, None of those that have none. Where length-scales are words, `drawn` and `fitted` are the kernels with
    numbers in their place (`fitted` None: those drawn for are fitted), `tuning_rows` names the rows that were searched
    by, and `tuned` says what became of that for each kernel, `smoothness` how a Matern kernel compares with the
    Gaussian. `landmark_rows` names the rows that landmarks are of."""

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
    landmark_rows: RowsName | None = None
    smoothness: str | None = None

    @cached_property
    def density(self) -> Density | None:
        """That of the frequencies, where they have one."""
        return self.draw.density

    def config(self) -> Config:
        """All but the arrays, as JSON."""
        kernels = {"drawn": self.drawn, "kernel": self.fitted}
        resolved = {name: value for name, value in kernels.items() if value is not None}
        plain = {name: getattr(self, name) for name in _PLAIN}
        rows = {"tuning_rows": self.tuning_rows, "landmark_rows": self.landmark_rows}
        named = {name: None if value is None else asdict(value) for name, value in rows.items()}
        return {"sample": asdict(self.sample), "resolved": resolved or None, **named, **plain}

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
        landmarks = config.get("landmark_rows")
        run, seed = config["run"], config.get("fold_seed")
        if type(run or 0) is not int or (run or 0) < GROUPED or type(seed or 0) is not int:
            raise InputError("its folds are not those of a plan")
        draw = Drawn(features.phi, arrays.get("log_density"), arrays.get("serves"))
        given = features, draw, arrays["y0"], arrays.get("class_weight"), RowsName(**config["sample"])
        return cls(
            *given,
            patterns=None if patterns is None else tuple(patterns),
            first=config["folds"]["first"],
            drawn=resolved.get("drawn"),
            fitted=resolved.get("kernel"),
            tuning_rows=None if tuning is None else RowsName(**tuning),
            tuned=None if tuned is None else tuple(tuned),
            run=run,
            fold_seed=seed,
            sampled=config["sampled"],
            distances=config["distances"],
            landmark_rows=None if landmarks is None else RowsName(**landmarks),
            smoothness=config.get("smoothness"),
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
    """The frozen pass `name` in a state directory. InputError where its files are damaged or another's, do not fit
    each other, or say what no plan says. Nothing much larger than they are is allocated."""
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
    return PassSpec.from_config(words), FrozenConstants.of(words, features_from(body["features"], arrays), arrays)


def _check_arrays(arrays: Arrays, features: FeatureMap) -> None:
    """y0 (q,); if there are such class_weight (q,), log_density (D,), or (D, n) of a law that sees n, serves (T, D)."""
    law = features.phi.law_omega if isinstance(features.phi, Projected) else np.empty((0, 0))
    q, D = arrays["y0"].size, len(law)
    shapes: dict[str, tuple[int, ...]] = {"y0": (q,), "class_weight": (q,), "log_density": law.shape[:-1]}
    given = {name: arrays[name] for name in shapes if name in arrays}
    fit = all(value.shape == shapes[name] and value.dtype == np.float64 for name, value in given.items())
    fit = fit and all(bool(np.isfinite(value).all()) for value in given.values())
    serves = arrays.get("serves", np.ones((1, D), dtype=np.bool_))
    fit = fit and serves.ndim == 2 and serves.shape[1] == D and serves.dtype == np.bool_
    extra = arrays.keys() - feature_arrays(features).keys() - {*shapes, "serves"}
    if extra or not fit or np.any(given.get("class_weight", np.zeros(q)) < 0):
        raise InputError(f"its arrays {', '.join(sorted(extra or given))} are not those of a plan")
