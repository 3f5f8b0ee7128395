"""Where a term's sums are kept in the state of a pass, and what workers are told of them."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from dorff.errors import InputError
from dorff.passes import Pass, Summand, load_pass
from dorff.plan.term_costs import GROUP_ROWS, TermRecipe
from dorff.store import read_plain, seal, unseal, write_atomic


class TermPlace(Summand):
    """A term's sums: the name of the place is of the pass, the recipe and the name of the rows."""

    @classmethod
    def of(cls, frozen: Pass, recipe: TermRecipe, rows: str) -> Self:
        """The place of a recipe's sums over the rows that are called `rows`; its description is written."""
        config = {"of": frozen.hash, "recipe": recipe.config(), "rows": rows, "group_rows": GROUP_ROWS}
        name = hashlib.sha256(seal(config)).hexdigest()[:16]
        place = cls(frozen.directory / "terms" / name, name)
        write_atomic(place.description, [seal(config)], sync=False)
        return place

    @property
    def description(self) -> Path:
        return self.directory / "term.json"

    def described(self) -> tuple[Pass, TermRecipe]:
        """The pass and the recipe. InputError where what says so is missing or damaged."""
        config = _config(self)
        return load_pass(self.directory.parents[1], config["of"]), TermRecipe.from_config(config["recipe"])


@lru_cache(maxsize=16)
def _config(place: TermPlace) -> dict[str, Any]:
    try:
        line = read_plain(place.description)
    except FileNotFoundError:
        line = b""
    config = unseal(line)
    if config is None or hashlib.sha256(line).hexdigest()[:16] != place.hash:
        raise InputError(f"{place.description}: what a manifold term is, is missing or damaged; run the job again")
    return config
