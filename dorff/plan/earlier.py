"""Sums in a job's state that a plan cannot use, and why: said before the rows are summed again."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dorff.data import Dataset
from dorff.errors import InputError
from dorff.moments import Kind
from dorff.passes import Config, PassSpec, frozen_hash
from dorff.plan.lattice import ANEW, named
from dorff.spec.job import Job
from dorff.storage.location import locate
from dorff.store import read_plain
from dorff.store.models import UNREADABLE

STORE: Final = "data.store"
#: What users call the fields that name a pass or a model; other fields go by their own names.
LABELS: Final = {
    "class_weight": "solve.class_weight",
    "count": "features.count",
    "dorff": "version of dorff",
    "drawn": "features.drawn_for",
    "folds": "solve.select or solve.folds",
    "format": "version of dorff",
    "frozen": "constants of the first rows",
    "kernels": "kernel",
    "nan": "data.nan",
    "observe": "solve.observe",
    "one_scale": "kernel",
    "precision": "features.precision",
    "recipe": "kernel or features",
    "rows": "arrays, their types or their shards",
    "sampler": "features.sampler",
    "seed": "features.seed",
    "stamp": "sizes or times of the data's files",
    "standardize": "solve.standardize",
    "store": STORE,
    "sums": "solve.route or solve.loss",
    "terms": "manifold",
    "tuning": "solve.intercept or solve.observe",
    "words": "kernel",
}
#: Fields that follow from others: named only where nothing else differs.
_DERIVED: Final = ("block_rows", "frozen", "read_rows", "route", "sums")
#: Fields that one lattice pass has and another may lack, though its sums serve both (`lattice.begun`).
_FREE_ON_LATTICES: Final = ("recipe", "sampler", "count", "words", "tuning", "seed")


@dataclass(frozen=True, kw_only=True)
class _EarlierPass:
    """A pass in the state, and the fields in which it differs from the one that is wanted."""

    question: Config
    differing: list[str]

    @property
    def moved(self) -> bool:
        """Whether it is of rows at another path."""
        return "store" in self.differing


def label_fields(fields: Iterable[str]) -> list[str]:
    """Return what users call such fields, each name once."""
    given = list(fields)
    telling = [field for field in given if field not in _DERIVED] or given
    return list(dict.fromkeys(LABELS.get(field, field) for field in telling))


def explain_unused_sums(job: Job, dataset: Dataset, wanted: PassSpec) -> str | None:
    """Say why sums in the job's state do not serve a pass of which nothing is there.

    Returns None where the pass is there, or no other of its kind is of the same rows.
    """
    state = locate(job.state)
    if not state.exists() or frozen_hash(state / wanted.name) is not None:
        return None
    earlier = min(_comparable_passes(state, dataset, wanted), key=_distance, default=None)
    if earlier is None:
        return None

    keys = ", ".join(label_fields(earlier.differing))
    cost = f"{dataset.rows:,} {ANEW} and a new version of the model is made"
    if not earlier.moved:
        remedy = f"set {keys} as before to use them, or go on"
        return f"{cost}, as sums in {state} differ in {keys}; {remedy}"
    before = str(earlier.question["store"])
    if _is_there(before):
        remedy = f"set data.store to {before} to use them, or go on"
    else:
        remedy = "move the store back, or mount it there (a symbolic link does not do), to use them, or go on"
    found = f"sums in {state} are of these rows at {before}, which lie at {wanted.store} now"
    others = label_fields(field for field in earlier.differing if field != "store")
    more = f", and differ in {', '.join(others)} too" if others else ""
    return f"{cost}, as {found} ({STORE}){more}; {remedy}"


def _distance(earlier: _EarlierPass) -> tuple[int, bool]:
    """Of passes that do not serve, the nearest differs in the fewest keys; at best in no path."""
    return len(label_fields(earlier.differing)), earlier.moved


def _comparable_passes(state: Path, dataset: Dataset, wanted: PassSpec) -> Iterator[_EarlierPass]:
    """The passes in a state that are of the same rows and the same kind of sums as the one wanted."""
    ours = _comparable(wanted.config())
    free = _FREE_ON_LATTICES if wanted.sums is Kind.TOEPLITZ else ()
    for file in sorted(state.glob("*/plan.json")):
        question = _read_question(file)
        if question is None or question.get("sums") != ours["sums"]:
            continue
        theirs = _comparable(question)
        differing = [name for name in ours if name not in free and theirs.get(name) != ours[name]]
        earlier = _EarlierPass(question=question, differing=differing)
        # Of a lattice with other keys `lattice.begun` says more.
        if _has_first_rows(question, dataset) if earlier.moved else not free:
            yield earlier


def _read_question(file: Path) -> Config | None:
    """What the pass of such a file sums; None where the file is damaged."""
    try:
        question = json.loads(read_plain(file))["question"]
    except (*UNREADABLE, InputError):
        return None
    return question if isinstance(question, dict) else None


def _comparable(question: Mapping[str, Any]) -> Config:
    """A pass as JSON has it, without what its own first rows told."""
    plain = json.loads(json.dumps(question))
    if isinstance(plain.get("folds"), dict):
        plain["folds"].pop("first", None)
    return {**plain}


def _has_first_rows(question: Mapping[str, Any], dataset: Dataset) -> bool:
    """Whether the rows that the constants of a pass are of are the first ones of a data set."""
    sample = question.get("sample")
    if not isinstance(sample, dict) or type(sample.get("first")) is not int or type(sample.get("rows")) is not int:
        return False
    first, stop = sample["first"], sample["first"] + sample["rows"]
    if not dataset.first <= first < stop <= dataset.n:
        return False
    with suppress(InputError, OSError):  # damaged rows: the pass itself says so
        return bool(json.loads(json.dumps(asdict(named(dataset.block(first, stop))))) == sample)
    return False


def _is_there(path: str) -> bool:
    """Whether a store is at a path that a plan names."""
    with suppress(InputError, OSError):
        return bool(locate(path).exists())
    return False
