"""Before the pass and after it: features and a setting; the model they gave, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from dorff import __version__
from dorff.features import FeatureMap, Recipe
from dorff.kernels.scalar import FloatArray
from dorff.model import Model
from dorff.moments import Moments
from dorff.solvers import Fit, Setting


@final
@dataclass(frozen=True, eq=False)
class Drawing:
    """All that is known before the pass: the features, the targets' shift y0 (q,), and how moments are solved."""

    features: FeatureMap
    y0: FloatArray
    setting: Setting
    recipe: Recipe
    seed: int

    def model(self, fit: Fit, parts: Sequence[Moments], report: Mapping[str, Any] | None = None) -> Model:
        """The model of a fit to moments; `report` is what else its own says."""
        solution, n = fit.solution, sum(part.n for part in parts)
        own = {"rows_used": n, "ridge": solution.ridge, "condition": solution.condition, "rung": solution.rung}
        info = {"report": own | dict(report or {}), "versions": {"dorff": __version__, "numpy": np.__version__}}
        return Model(
            self.features, fit.weights, solution.h, fit.bias, fit.scale, fit.kernel, self.recipe.sampler.config(),
            self.seed, info, self.setting.observe,
        )  # fmt: skip


@final
@dataclass(frozen=True, eq=False)
class Sure:
    """What a fit's moments say beyond its model: worked out when first asked for, and kept."""

    model: Model
    setting: Setting
    fit: Fit
    parts: Sequence[Moments]

    @cached_property
    def noised(self) -> Fit:
        """The fit with the noise of each target."""
        return self.setting.noised(self.parts, self.fit)

    @cached_property
    def posterior_model(self) -> Model:
        """The model with its posterior."""
        return replace(self.model, posterior=self.setting.posterior(self.parts, self.noised))

    @cached_property
    def log_evidence(self) -> float:
        """Log marginal likelihood of the targets at the fit's ridge."""
        self.setting.check_scored()
        value = self.setting.judged(self.parts, [self.noised])[0].log_evidence
        assert value is not None  # of a system that was formed, and an estimator forms it
        return value
