"""What follows from a choice and its sums: noise, posterior, evidence, a fit without some rows, the model.

The same for jobs, streaming and estimators, which differ in where the rows come from and where the model goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, final

from dorff.errors import InputError
from dorff.features import FeatureMap, cut
from dorff.model import Model
from dorff.model.posterior import Posterior
from dorff.moments import Part, Solvable, by_fold, pooled, unseen
from dorff.solvers import Choice, Fit, Setting, carried_ridges, of_first

S = TypeVar("S", bound=Solvable)


def folds_with_rows(sums: Mapping[Part, S], no_rows: str, no_target: Callable[[int], str]) -> list[list[S]]:
    """The sums of each fold that has rows, as `by_fold`; InputError, in these words, where none has, and for a target
    that no row has."""
    folds = by_fold(sums)
    if not folds:
        raise InputError(no_rows)
    for target in unseen(folds):
        raise InputError(no_target(target))
    return folds


@final
@dataclass(frozen=True, eq=False)
class Fitted:
    """A choice among `settings`, and the `sums` of each fold and pattern of targets that it was made from: none where
    an iteration read the rows themselves.

    Noise, posterior and evidence are computed when first asked for, and kept.
    """

    settings: Sequence[Setting]
    sums: Mapping[Part, Solvable]
    choice: Choice

    @property
    def fit(self) -> Fit:
        return self.choice.fit

    def total(self) -> tuple[list[Solvable], Setting]:
        """The sums of all rows, one for each pattern of targets, and the chosen setting, both of the chosen number of
        features."""
        folds, setting = of_first(by_fold(self.sums), self.settings[self.choice.candidate], self.choice.m)
        return pooled(folds), setting

    def pooled(self) -> Fitted:
        """The same without folds: their sums are added, and take less memory."""
        return replace(self, sums={(0, one.observed): one for one in pooled(by_fold(self.sums))})

    def without(self, fold: int) -> Fitted:
        """The same choice, solved for all rows but those of one fold; some must be left."""
        rest = replace(self, sums={part: one for part, one in self.sums.items() if part[0] != fold})
        parts, setting = rest.total()
        (fit,) = setting.solve(parts, [carried_ridges(setting, parts, self.fit)])
        return replace(rest, choice=replace(self.choice, fit=fit))

    @cached_property
    def noised(self) -> Fitted:
        """The same with the noise of each target."""
        if self.fit.noise is not None:
            return self
        parts, setting = self.total()
        return replace(self, choice=replace(self.choice, fit=setting.noised(parts, self.fit)))

    @cached_property
    def posterior(self) -> Posterior:
        """Of the coefficients. InputError for route cg, which factors no system."""
        parts, setting = self.total()
        return setting.posterior(parts, self.noised.fit)

    @cached_property
    def log_evidence(self) -> float:
        """Log marginal likelihood of the targets at the fit's ridge. InputError where there are manifold terms."""
        parts, setting = self.total()
        setting.check_scored()
        value = setting.judged(parts, [self.noised.fit])[0].log_evidence
        assert value is not None  # of a system that was formed: route cg is for jobs alone, which do not ask
        return value

    def model(self, features: FeatureMap, sampler: dict[str, Any], seed: int, info: dict[str, Any]) -> Model:
        """The model on the chosen number of the features, which the sampler drew with the seed; `info` is what a
        reader of it will want to know."""
        fit, m = self.fit, self.choice.m
        kept = features if m == features.m else cut(features, None, m // 2)[0]
        h, observe = fit.solution.h, self.settings[self.choice.candidate].observe
        return Model(kept, fit.weights, h, fit.bias, fit.scale, fit.kernel, sampler, seed, info, observe)
