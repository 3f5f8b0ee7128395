"""What is known before the pass: features and a setting; and the model that they give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dorff import __version__
from dorff.features import FeatureMap, Recipe
from dorff.fit import Fitted
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.solvers import Setting


@final
@dataclass(frozen=True, eq=False)
class Drawing:
    """All that is known before the pass: the features, the targets' shift y0 (q,), and how moments are solved."""

    features: FeatureMap
    y0: FloatArray
    setting: Setting
    recipe: Recipe
    seed: int

    def model(self, fitted: Fitted, report: Mapping[str, Any] | None = None) -> Model:
        """The model of a fit; `report` is what else its own says."""
        solution, n = fitted.fit.solution, sum(sums.n for sums in fitted.sums.values())
        own = {"rows_used": n, "ridge": solution.ridge, "condition": solution.condition, "rung": solution.rung}
        info = {"report": own | dict(report or {}), "versions": {"dorff": __version__, "numpy": np.__version__}}
        return fitted.model(self.features, self.recipe.sampler.config(), self.seed, info)
