"""What a pass over the rows sums, as plain values: known before a row is read, and hashed into a state's name."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from dorff.data import RowBlock
from dorff.errors import InputError
from dorff.moments import Kind
from dorff.spec.registry import Config

#: A mapping of JSON: of strings to strings, numbers, lists and such mappings.
Configs: TypeAlias = Sequence[Config]
Words: TypeAlias = tuple[Configs | None, Configs | None]  # kernels with words to be filled in, drawn and fitted

FORMAT: Final = 2
MOST_ROWS: Final = 2**31  # of a block: no plan asks for more
MOST_FOLDS: Final = 2**20
FEW_GROUPS: Final = 16  # a fold
SEEDS: Final = 2048
GROUPED, AS_SAMPLED, IN_BLOCKS = 0, -1, -2  # in the place of the rows of a run
_WORDS: Final = {
    "nan": ("refuse", "drop", "partial", "unlabelled"),
    "sums": tuple(Kind),
    "precision": ("double", "mixed"),
}
Rows = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class FoldRule:
    """Which fold a row is in: one fold, whole leaves dealt in turn, or rows by a hash of a seed and of their number
    or, where they have groups, their group's key.

    With `held` there are two folds: 0 is one of `held` that leaves or rows are dealt to, 1 all the others. Of rows it
    is the one that `first` is dealt to, a row's number or a group's key: it always has a row.

    Rows of one `run`, of that many rows in order, are dealt together; `GROUPED` says that those of a group are, and
    `AS_SAMPLED` that a sample of the rows is to tell how long a run is, `IN_BLOCKS` the same of more than one: the
    constants of a pass do."""

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
    """All that the sums of a pass depend on but for the values of the rows. Equal specs have equal sums.

    `rows` says which rows and columns (`Dataset.rows_spec`), `recipe` and `sampler` which features; `count` is the
    number of features that the job asks for. `words` are the kernels, those drawn for and those fitted, where the
    length-scales of some are words (None where none is; of those fitted None, too, where they are the ones drawn for),
    and `tuning` what a length-scale that is tuned depends on besides: the intercept and the observation matrix.
    `one_scale` ties the scales of all inputs to one."""

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
