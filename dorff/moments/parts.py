"""Sums kept apart: by fold, and by which targets the rows have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from dorff.errors import PatternsError
from dorff.moments.base import BoolArray, Part, Sums
from dorff.moments.gram import Moments

MOST_PATTERNS: Final = 8  # of targets that are there and missing; each costs moments of its own
S = TypeVar("S", bound=Sums)
Folds = dict[Part, Moments]


def patterns_of(there: BoolArray) -> Iterator[tuple[str, BoolArray]]:
    """Of which targets (n, q) are there: each pattern, as `Sums.observed` says it, and the rows (n,) that have it."""
    for pattern in np.unique(there, axis=0):
        observed = "" if pattern.all() else "".join("1" if one else "0" for one in pattern)
        yield observed, np.all(there == pattern, axis=1)


def by_fold(parts: Mapping[Part, S]) -> list[list[S]]:
    """The sums of each fold that has rows, one for each pattern of targets; folds and patterns in order."""
    folds: dict[int, list[S]] = {}
    for (fold, _), sums in sorted(parts.items(), key=lambda item: item[0]):
        if sums.n:
            folds.setdefault(fold, []).append(sums)
    return [folds[fold] for fold in sorted(folds)]


def pooled(folds: Iterable[Sequence[S]]) -> list[S]:
    """The sums over all folds, pattern by pattern."""
    total: dict[str, S] = {}
    for sums in (sums for fold in folds for sums in fold):
        known = total.get(sums.observed)
        total[sums.observed] = sums if known is None else known + sums
    return [total[pattern] for pattern in sorted(total)]


def unseen(folds: Iterable[Sequence[S]]) -> list[int]:
    """The targets that no row has."""
    masks = [sums.mask for fold in folds for sums in fold]
    return [int(target) for target in np.flatnonzero(~np.any(masks, axis=0))] if masks else []


def merge_folds(left: dict[Part, S], right: dict[Part, S]) -> dict[Part, S]:
    """Sums fold by fold and pattern by pattern; overwrites `left`'s arrays, which the caller owns."""
    check_patterns(left.keys() | right.keys())
    merged = dict(left)
    for part, sums in right.items():
        if part in merged:
            sums = merged[part].absorb(sums)
        merged[part] = sums
    return merged


def check_patterns(parts: Iterable[Part]) -> None:
    """PatternsError where there are more patterns of targets than `MOST_PATTERNS`."""
    patterns = {observed for _, observed in parts}
    if len(patterns) > MOST_PATTERNS:
        raise PatternsError(
            "rows that miss targets have sums of their own for each pattern of what is there, at most "
            f"{MOST_PATTERNS} patterns, but there are more ({', '.join(sorted(patterns)[:3])}, ...; 1 is there, "
            "0 is missing); leave "
            "such rows out (in a job, data.nan: drop), or fit fewer targets"
        )
