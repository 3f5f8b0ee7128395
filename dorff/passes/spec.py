"""What a pass over the rows sums, as plain values: known before a row is read, and hashed into a state's name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self, TypeAlias, final

from dorff.errors import InputError
from dorff.moments import Kind
from dorff.passes.folds import FoldRule

#: A mapping of JSON: of strings to strings, numbers, lists and such mappings.
Config: TypeAlias = dict[str, Any]
Configs: TypeAlias = Sequence[Config]

FORMAT: Final = 2
MOST_ROWS: Final = 2**31  # of a block: no plan asks for more
MOST_FOLDS: Final = 2**20
_WORDS: Final = {
    "nan": ("refuse", "drop", "partial", "unlabelled"),
    "sums": tuple(Kind),
    "precision": ("double", "mixed"),
}


@final
@dataclass(frozen=True)
class PassSpec:
    """All that the sums of a pass depend on but for the values of the rows. Equal specs have equal sums.

    `rows` says which rows and columns (`Dataset.rows_spec`), `recipe` and `sampler` which features; `count` is the
    number of features that the job asks for. `words` are the kernels, those drawn for and those fitted, where the
    length-scales of some are words (None where none is; of those fitted None, too, where they are the ones drawn for),
    and `tuning` what a length-scale that is tuned depends on besides: the intercept and the observation matrix.
    `one_scale` ties the scales of all inputs to one.
    """

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
    words: tuple[Configs | None, Configs | None]
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
    def has_words(self) -> bool:
        """Whether rows must tell a length-scale."""
        return any(self.words)

    def config(self) -> Config:
        """The spec as JSON."""
        return {"format": FORMAT, **asdict(self)}

    @property
    def name(self) -> str:
        """Sixteen hexadecimal digits that tell specs apart."""
        return hashlib.sha256(json.dumps(self.config(), sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The spec that such JSON is of; InputError, KeyError or TypeError where it is of none."""
        _check_numbers(config)
        for name, known in _WORDS.items():
            if config[name] not in known:
                raise InputError(f"its {name} should be {' or '.join(known)}, got {str(config[name])[:40]!r}")
        values = {field.name: config[field.name] for field in fields(cls)}
        drawn, fitted = config["words"]
        return cls(
            **values | {"folds": FoldRule(**config["folds"]), "sums": Kind(config["sums"]), "words": (drawn, fitted)}
        )


def _check_numbers(config: Mapping[str, Any]) -> None:
    """The numbers that a pass is made of; which they are is the plan's own business."""
    folds = config["folds"]
    counts = [(config[name], 1, MOST_ROWS) for name in ("block_rows", "read_rows")]
    counts += [(folds["count"], 1, MOST_FOLDS), (folds["held"], 0, MOST_FOLDS), (folds["first"], -(2**63), 2**64)]
    whole = all(type(value) is int and least <= value <= most for value, least, most in counts)
    if not whole or type(folds["seed"]) is not int or type(folds["by_rows"]) is not bool:
        raise InputError("its numbers of rows or folds are not those of a plan")
