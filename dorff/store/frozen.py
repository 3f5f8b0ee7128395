"""A plan's frozen constants as they lie in files, which anybody may have written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from dorff.errors import InputError
from dorff.features import FeatureMap, Projected, feature_arrays, features_from
from dorff.frequencies.transforms import Arrays
from dorff.moments import MOST_PATTERNS, Kind
from dorff.store.building import UNREADABLE
from dorff.store.npz import read_npz

MOST_ROWS: Final = 2**31  # of a block: no plan asks for more
MOST_FOLDS: Final = 2**20
#: What a question says, where a pass depends on its being right.
_WORDS: Final = {
    "nan": ("refuse", "drop", "partial", "unlabelled"),
    "sums": tuple(Kind),
    "precision": ("double", "mixed"),
}


@final
@dataclass(frozen=True, eq=False)
class Frozen:
    """The features, all arrays by name, and the question that a plan asked."""

    features: FeatureMap
    arrays: Arrays
    question: dict[str, Any]


def seal_of(body: Mapping[str, Any], of: str) -> str:
    """The checksum of what `plan.json` says, `of` this identity."""
    return hashlib.sha256(f"{of}{json.dumps(body, sort_keys=True)}".encode()).hexdigest()


def read_frozen(text: bytes, raw: bytes, of: str) -> Frozen:
    """What `plan.json` (`text`, `of` this identity) and `arrays.npz` (`raw`) hold.

    InputError where they are damaged or another plan's, do not fit each other, or say what no plan says. Nothing much
    larger than they are is allocated.
    """
    try:
        body = json.loads(text)
        if body.pop("check") != seal_of(body, of) or hashlib.sha256(raw).hexdigest() != body["arrays"]:
            raise InputError("its checksum is wrong, or it is another plan's or of another version of dorff")
        arrays = read_npz(raw)
        features = features_from(body["features"], arrays)
        _check_arrays(arrays, features)
        _check_question(body["question"])
        return Frozen(features, arrays, body["question"])
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"{type(error).__name__}: {error}") from error


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


def _check_question(question: Mapping[str, Any]) -> None:
    """The words and numbers that a pass is made of; which they are is the plan's own business."""
    folds = question["folds"]
    counts = [(question[name], 1, MOST_ROWS) for name in ("block_rows", "read_rows")]
    counts += [(folds["count"], 1, MOST_FOLDS), (folds["held"], 0, MOST_FOLDS), (folds["first"], -(2**63), 2**64)]
    whole = all(type(value) is int and least <= value <= most for value, least, most in counts)
    if not whole or type(folds["seed"]) is not int or type(folds["by_rows"]) is not bool or len(folds) != 5:
        raise InputError("its numbers of rows or folds are not those of a plan")
    patterns = [] if question.get("patterns") is None else question["patterns"]
    right = type(patterns) is list and len(patterns) <= MOST_PATTERNS
    if not right or not all(isinstance(one, str) and set(one) <= {"0", "1"} for one in patterns):
        raise InputError("its patterns of targets are not those of a plan")
    for name, known in _WORDS.items():
        if question[name] not in known:
            raise InputError(f"its {name} should be {' or '.join(known)}, got {str(question[name])[:40]!r}")
