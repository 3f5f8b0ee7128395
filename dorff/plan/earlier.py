"""Why a plan cannot use the sums in a job's state, reported before rows are summed again."""

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
#: Keys of a job by the field of a pass that they set; other fields have the key's name.
LABELS: Final = {
    "class_weight": "solve.class_weight",
    "count": "features.count",
    "folds": "solve.select or solve.folds",
    "format": "version of dorff",
    "labels": "class labels",
    "nan": "data.nan",
    "one_scale": "kernel",
    "precision": "features.precision",
    "recipe": "kernel or features",
    "rows": "arrays, their types or their shards",
    "sampler": "features.sampler",
    "seed": "features.seed",
    "standardize": "solve.standardize",
    "store": STORE,
    "tuning": "solve.intercept or solve.observe",
    "words": "kernel",
}
#: Fields that depend on other fields: reported only if nothing else differs.
_DERIVED: Final = ("block_rows", "read_rows")
#: Further ones that depend on the labels of classes: there are as many targets.
_DERIVED_FROM_LABELS: Final = ("rows",)
#: Fields in which lattice passes may differ and still use the same sums (`lattice.begun`).
_FREE_ON_LATTICES: Final = ("recipe", "sampler", "count", "words", "tuning", "seed")


@dataclass(frozen=True, kw_only=True)
class _EarlierPass:
    """A pass in the state, and the fields in which it differs from the planned one."""

    question: Config
    differing: list[str]

    @property
    def has_other_path(self) -> bool:
        """Whether its rows were at another path."""
        return "store" in self.differing


def label_fields(fields: Iterable[str]) -> list[str]:
    """Return the keys of a job that fields of a pass come from, without duplicates."""
    names = list(fields)
    derived = (*_DERIVED, *_DERIVED_FROM_LABELS) if "labels" in names else _DERIVED
    independent = [name for name in names if name not in derived] or names
    return list(dict.fromkeys(LABELS.get(name, name) for name in independent))


def explain_unused_sums(job: Job, dataset: Dataset, planned: PassSpec) -> str | None:
    """Return why sums in the job's state cannot be used for a planned pass.

    Returns None if the state has sums of the pass itself, or no pass of the same kind
    and rows.
    """
    state = locate(job.state)
    if not state.exists() or frozen_hash(state / planned.name) is not None:
        return None
    earlier = min(_comparable_passes(state, dataset, planned), key=_distance, default=None)
    if earlier is None:
        return None

    keys = ", ".join(label_fields(earlier.differing))
    cost = f"{dataset.rows:,} {ANEW} and a new version of the model is made"
    if not earlier.has_other_path:
        remedy = f"set {keys} as before to use them, or go on"
        return f"{cost}, as sums in {state} differ in {keys}; {remedy}"
    old_path = str(earlier.question["store"])
    if _path_exists(old_path):
        remedy = f"set data.store to {old_path} to use them, or go on"
    else:
        remedy = "move the store back, or mount it there (a symbolic link does not do), to use them, or go on"
    found = f"sums in {state} are of these rows at {old_path}, which lie at {planned.store} now"
    further_keys = label_fields(name for name in earlier.differing if name != "store")
    more = f", and differ in {', '.join(further_keys)} too" if further_keys else ""
    return f"{cost}, as {found} ({STORE}){more}; {remedy}"


def _distance(earlier: _EarlierPass) -> tuple[int, bool]:
    """Return a sort key: the number of differing keys, then whether the path differs."""
    return len(label_fields(earlier.differing)), earlier.has_other_path


def _comparable_passes(state: Path, dataset: Dataset, planned: PassSpec) -> Iterator[_EarlierPass]:
    """Yield the passes in a state with the same rows and kind of sums as the planned one."""
    planned_fields = _comparable(planned.config())
    free = _FREE_ON_LATTICES if planned.sums is Kind.TOEPLITZ else ()
    for file in sorted(state.glob("*/plan.json")):
        question = _read_question(file)
        if question is None or question.get("sums") != planned_fields["sums"]:
            continue
        earlier_fields = _comparable(question)
        differing = [
            name for name, value in planned_fields.items() if name not in free and earlier_fields.get(name) != value
        ]
        earlier = _EarlierPass(question=question, differing=differing)
        # Lattices with other keys are explained in more detail by `lattice.begun`.
        if _has_first_rows(question, dataset) if earlier.has_other_path else not free:
            yield earlier


def _read_question(file: Path) -> Config | None:
    """Return what a pass sums, from its plan.json; None if the file is damaged."""
    try:
        question = json.loads(read_plain(file))["question"]
    except (*UNREADABLE, InputError):
        return None
    return question if isinstance(question, dict) else None


def _comparable(question: Mapping[str, Any]) -> Config:
    """Return a pass as JSON, without what was derived from its first rows.

    The labels of classes are a field beside that of the rows.
    """
    plain = json.loads(json.dumps(question))
    if isinstance(plain.get("folds"), dict):
        plain["folds"].pop("first", None)
    if isinstance(plain.get("rows"), dict):
        plain["labels"] = plain["rows"].pop("labels", None)
    return {**plain}


def _has_first_rows(question: Mapping[str, Any], dataset: Dataset) -> bool:
    """Whether the rows that a pass took its constants from are in the data set, unchanged."""
    sample = question.get("sample")
    if not isinstance(sample, dict) or type(sample.get("first")) is not int or type(sample.get("rows")) is not int:
        return False
    first, stop = sample["first"], sample["first"] + sample["rows"]
    if not dataset.first <= first < stop <= dataset.n:
        return False
    with suppress(InputError, OSError):  # damaged rows are reported by the pass
        return bool(json.loads(json.dumps(asdict(named(dataset.block(first, stop))))) == sample)
    return False


def _path_exists(path: str) -> bool:
    """Whether a path of an earlier plan exists and can be read."""
    with suppress(InputError, OSError):
        return bool(locate(path).exists())
    return False
