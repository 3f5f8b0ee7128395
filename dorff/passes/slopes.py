"""Sums over rows of a loss at given functions: its values and slopes, or Gram matrices weighed by its curvature."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from dorff import moments
from dorff.errors import InputError
from dorff.features import FeatureMap
from dorff.model.losses import Loss, Terms, as_loss
from dorff.moments import FloatArray
from dorff.passes.blocks import RowSums

#: Beside its slopes, what is summed of a column of values: loss, smooth loss, half of the slopes' squares, curvature.
BESIDE: Final = 4


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of a pass: at the functions with columns V (m + 1, c) of weights and constants, in the targets'
    units over `scale` (q,), what a loss of this `width` comes to; or, `curved`, of each of the loss's combinations of
    columns the moments of [F | 1] weighed by the curvature along it. V may be of several functions side by side, which
    may have a width each."""

    V: FloatArray
    loss: Loss
    scale: tuple[float, ...]
    width: float | tuple[float, ...] = 0.0
    curved: bool = False

    def config(self) -> dict[str, Any]:
        """All but V, as JSON."""
        return {"loss": self.loss.config(), "scale": self.scale, "width": self.width, "curved": self.curved}

    @classmethod
    def of(cls, V: FloatArray, config: Mapping[str, Any]) -> Self:
        """From V and the rest; InputError, KeyError or TypeError where that is none."""
        given = {**config, "loss": as_loss(config["loss"]), "scale": tuple(config["scale"])}
        given["width"] = tuple(config["width"]) if isinstance(config["width"], list | tuple) else config["width"]
        c = len(given["scale"]) * given["loss"].levels
        if c == 0 or V.shape[1] % c:
            raise InputError(f"{V.shape[1]} columns are no functions of {len(given['scale'])} targets")
        return cls(V, **given)

    def sums(self, features: FeatureMap, block_rows: int, class_weight: FloatArray | None) -> RowSums:
        """Empty sums, for blocks of so many rows."""
        return SlopeSums(self, features, block_rows, class_weight)


class SlopeAdder(moments.ProductAccumulator):
    """Adds [F | 1]^T G for slopes G (n, c) of rows, and of each column the numbers `BESIDE`, which stand in the place
    of targets: files of products hold both. The witness is as that of products, of the slopes for Z V; the numbers of a
    block are as rows more, in which Z is the identity."""

    def __init__(self, m: int, columns: int) -> None:
        width = m + 1 + BESIDE
        super().__init__(m, BESIDE, np.zeros(BESIDE), V=np.zeros((width, columns)))

    def add_slopes(self, F: FloatArray, slopes: FloatArray, beside: FloatArray) -> None:
        """Rows F (n, m + 1), their slopes (n, c), and sums (BESIDE, c) over them."""
        ones, probe = self.m + 1, self.probe
        with np.errstate(over="ignore", invalid="ignore"):  # `overflowed` tells
            v = F @ probe[:ones]
            self.witness[0] += np.dot(v, v) + np.dot(probe[ones:], probe[ones:])
            seen = v @ slopes + probe[ones:] @ beside
            size = np.einsum("nc,nc->c", slopes, slopes) + np.sum(beside**2, axis=0)
            self.witness[1:] += np.concatenate([seen, size])
            self._sums[:, :ones] += slopes.T @ F
            self._sums[:, ones:] += beside.T
        self.n += len(F)


class SlopeSums(RowSums):
    """Featurizes blocks of rows into one buffer [F | 1], and sums what a `Question` asks: slopes fold by fold; of
    curvature the moments of every combination of columns, whose number stands in the place of the fold's. Targets that
    are missing (NaN) count for nothing; `class_weight` (q,) is of one-hot rows."""

    def __init__(
        self, question: Question, features: FeatureMap, block_rows: int, class_weight: FloatArray | None
    ) -> None:
        super().__init__(block_rows)
        self._of, self._features, self._class_weight = question, features, class_weight
        self._scale = np.array(question.scale)
        width = features.m + 1
        self._Z = np.zeros((block_rows, -(-width // 8) * 8))[:, :width]
        self._weighed = np.zeros((block_rows, -(-width // 8) * 8))[:, :width] if question.curved else None
        self._work = features.workspace(block_rows)

    def add(
        self, X: FloatArray, Y: FloatArray, fold: int = 0, *, partial: bool = False, weights: FloatArray | None = None
    ) -> None:
        weight = np.ones(len(X)) if weights is None else weights
        if self._class_weight is not None:
            weight = weight * (Y @ self._class_weight)
        if not np.all(weight > 0):
            some = weight > 0
            X, Y, weight = X[some], Y[some], weight[some]
        for start in range(0, len(X), self.block_rows):
            at = slice(start, start + self.block_rows)
            self._add_block(X[at], Y[at], weight[at, None], fold)

    def _add_block(self, x: FloatArray, y: FloatArray, weight: FloatArray, fold: int) -> None:
        Z, tile = self._Z[: len(x)], len(self._work[0])
        Z[:, -1] = 1.0
        for start in range(0, len(x), tile):
            rows = slice(start, min(start + tile, len(x)))
            self._features(x[rows], Z[rows], self._work)
        of, targets = self._of, self._of.loss.spread(y / self._scale)
        f = Z @ of.V
        functions = f.shape[1] // targets.shape[1]
        there = np.isfinite(targets)
        w = np.where(there, weight, 0.0)
        targets = np.where(there, targets, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):  # `overflowed` tells
            widths = of.width if isinstance(of.width, tuple) else (of.width,) * functions
            parts = np.split(f, functions, axis=1)
            if self._weighed is not None:
                if of.loss.coupled:  # whose combinations are of all of a row's values
                    w = np.where(there.all(axis=1, keepdims=True), weight, 0.0)
                curvatures = [
                    of.loss.curvatures(part, targets, width) for part, width in zip(parts, widths, strict=True)
                ]
                self._add_curvature(Z, np.hstack([w * curvature for curvature in curvatures]))
                return
            each = [of.loss.terms(part, targets, width) for part, width in zip(parts, widths, strict=True)]
            slopes = np.hstack([w * one.slope for one in each])
            beside = np.hstack([_beside(w, one) for one in each])
        sums_of_fold = self.of((fold, ""))
        assert isinstance(sums_of_fold, SlopeAdder)
        sums_of_fold.add_slopes(Z, slopes, beside)

    def _add_curvature(self, Z: FloatArray, curvature: FloatArray) -> None:
        assert self._weighed is not None
        for column, d in enumerate(curvature.T):
            some = np.flatnonzero(d > 0)
            rows = self._weighed[: len(some)]
            np.multiply(Z[some], np.sqrt(d[some])[:, None], out=rows)
            self.of((column, "")).add(rows)

    def empty(self, part: moments.Part) -> moments.Adder:
        if self._of.curved:
            return moments.Accumulator(self._features.m, 0, np.zeros(0))
        return SlopeAdder(self._features.m, self._of.V.shape[1])


def _beside(w: FloatArray, terms: Terms) -> FloatArray:
    """(BESIDE, c) over rows of weights w (n, c)."""
    each = (terms.value, terms.smooth, terms.slope**2 / 2.0, terms.curvature)
    return np.array([np.sum(w * one, axis=0) for one in each])
