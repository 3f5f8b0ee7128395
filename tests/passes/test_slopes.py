"""Sums over rows of a loss's slopes and curvature against dense ones; their witness, files and questions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import LAW, plain_map
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from dorff.errors import InputError
from dorff.model.losses import (
    EpsilonInsensitive,
    Hinge,
    Huber,
    Logistic,
    Loss,
    Multinomial,
    Poisson,
    Quantiles,
    SimplexHinge,
    Squared,
    SquaredHinge,
)
from dorff.moments import FloatArray, Moments, Part, Products
from dorff.passes.slopes import BESIDE, Question, SlopeAdder, SlopeSums
from dorff.store.moments import load_sums, merge_moments, save_moments
from dorff.store.receipts import Checkpoint

D = 7
FEATURES = plain_map(np.random.default_rng(5).standard_normal((D, 2)))
M = FEATURES.m
#: Losses with the width they are asked at.
ASKED: dict[str, tuple[Loss, float]] = {
    "squared": (Squared(), 0.0), "huber": (Huber(0.5), 0.0), "epsilon": (EpsilonInsensitive(0.2), 0.3),
    "quantiles": (Quantiles((0.2, 0.5, 0.9)), 0.4), "poisson": (Poisson(), 0.0), "logistic": (Logistic(), 0.0),
    "multinomial": (Multinomial(), 0.0), "hinge": (Hinge(), 0.5), "squared_hinge": (SquaredHinge(), 0.0),
    "simplex": (SimplexHinge(), 0.5), "sharp hinge": (Hinge(), 0.0),
}  # fmt: skip
every = pytest.mark.parametrize("name", ASKED)


class Rows:
    """Inputs, targets, folds and weights; some weights are 0, and with `missing` targets are not there: by chance
    alone, or all of a row's."""

    def __init__(self, name: str, n: int = 90, *, missing: bool = False, seed: int = 0, folds: int = 3) -> None:
        self.loss, self.width = ASKED[name]
        rng = np.random.default_rng(seed)
        q = 2 if self.loss.takes in ("numbers", "counts") else 3
        self.X = rng.standard_normal((n, 2))
        self.Y: FloatArray = rng.standard_normal((n, q)) + [0.5] * q
        if self.loss.takes == "counts":
            self.Y = rng.poisson(2.0, (n, q)).astype(float)
        if self.loss.takes in ("classes", "labels"):
            self.Y = np.eye(q)[rng.integers(0, q, n)]
        if missing:
            self.Y[rng.random(n) < 0.1] = np.nan
            if self.loss.takes != "classes":
                self.Y[rng.random((n, q)) < 0.2] = np.nan
        self.scale = (0.5, 3.0) if self.loss.takes == "numbers" else (1.0,) * q
        self.w = rng.uniform(0.2, 2.0, n) * (rng.random(n) < 0.9)
        self.fold = np.arange(n) * folds // n
        self.V = rng.standard_normal((M + 1, 2 * q * self.loss.levels))  # two functions

    @property
    def question(self) -> Question:
        return Question(self.V, self.loss, self.scale, self.width)

    @property
    def F(self) -> FloatArray:
        return np.column_stack([FEATURES.transform(self.X), np.ones(len(self.X))])

    def dense(self, class_weight: FloatArray | None = None) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Weights (n, c), slopes (n, c) and what is beside them (BESIDE, n, c), each function and row for itself."""
        n, c = len(self.X), self.V.shape[1] // 2
        w, slopes, beside = np.zeros((n, 2 * c)), np.zeros((n, 2 * c)), np.zeros((BESIDE, n, 2 * c))
        for row in range(n):
            weight = self.w[row]
            if class_weight is not None:
                weight = weight * class_weight[np.argmax(self.Y[row])] if np.isfinite(self.Y[row, 0]) else 0.0
            y = np.concatenate([[one / s] * self.loss.levels for one, s in zip(self.Y[row], self.scale, strict=True)])
            for function in range(2):
                at = slice(function * c, (function + 1) * c)
                f = self.F[row] @ self.V[:, at]
                terms = self.loss.terms(f[None], np.where(np.isnan(y), 7.0, y)[None], self.width)
                w[row, at] = np.where(np.isnan(y), 0.0, weight)
                slopes[row, at] = terms.slope[0]
                beside[:, row, at] = terms.value[0], terms.smooth[0], terms.slope[0] ** 2 / 2, terms.curvature[0]
        return w, slopes, beside

    def add(self, sums: SlopeSums, block: int = 1000, *, weights: bool = True) -> SlopeSums:
        """Runs of rows of one fold."""
        for fold in np.unique(self.fold):
            rows = np.flatnonzero(self.fold == fold)
            for start in range(0, len(rows), block):
                at = rows[start : start + block]
                sums.add(self.X[at], self.Y[at], int(fold), weights=self.w[at] if weights else None)
        return sums


def found(sums: SlopeSums) -> Mapping[Part, Products]:
    return {part: one for part, one in sums.total(Products).items()}


def check(rows: Rows, sums: SlopeSums, class_weight: FloatArray | None = None) -> None:
    w, slopes, beside = rows.dense(class_weight)
    assert {part for part, one in found(sums).items() if one.n} == {(int(fold), "") for fold in np.unique(rows.fold)}
    for (fold, _), one in found(sums).items():
        at = rows.fold == fold
        wanted = np.vstack([rows.F[at].T @ (w * slopes)[at], (w[None] * beside).sum(axis=1, where=at[:, None])])
        np.testing.assert_allclose(one.values, wanted, rtol=1e-11, atol=1e-11)
        counted = rows.w > 0 if class_weight is None else w.max(axis=1) > 0
        assert (one.n, one.m, one.q) == ((at & counted).sum(), M, BESIDE)
    assert all(adder.intact() and not adder.overflowed() for adder in sums.sums.values())


@pytest.mark.parametrize("missing", [False, True], ids=["all", "missing"])
@every
def test_sums_of_slopes_are_dense_ones(name: str, missing: bool) -> None:
    rows = Rows(name, missing=missing)
    check(rows, rows.add(SlopeSums(rows.question, FEATURES, 16, None), 23))


@pytest.mark.parametrize("name", ["multinomial", "logistic", "hinge"])
def test_classes_have_weights(name: str) -> None:
    rows, weight = Rows(name), np.array([0.5, 1.0, 4.0])
    check(rows, rows.add(SlopeSums(rows.question, FEATURES, 16, weight)), weight)
    rows = Rows("multinomial", missing=True)
    check(rows, rows.add(SlopeSums(rows.question, FEATURES, 16, weight)), weight)
    rows.w = np.ones(len(rows.w))
    check(rows, rows.add(SlopeSums(rows.question, FEATURES, 16, weight), weights=False), weight)


def test_long_blocks_are_featurized_by_tiles() -> None:
    rows = Rows("huber", 700, folds=1)
    sums = SlopeSums(rows.question, FEATURES, 650, None)
    assert len(FEATURES.workspace(650)[0]) < 650
    check(rows, rows.add(sums))


@LAW
@given(data=st.data(), name=st.sampled_from(sorted(ASKED)), block_rows=st.integers(1, 40), seed=st.integers(0, 99))
def test_any_cut_of_the_rows_gives_the_same_sums(data: st.DataObject, name: str, block_rows: int, seed: int) -> None:
    rows = Rows(name, 50, missing=True, seed=seed, folds=1)
    cuts = sorted(data.draw(st.lists(st.integers(0, 50), max_size=5), label="cuts"))
    whole = SlopeSums(rows.question, FEATURES, 64, None)
    whole.add(rows.X, rows.Y, weights=rows.w)
    sums = SlopeSums(rows.question, FEATURES, block_rows, None)
    spans = list(zip([0, *cuts], [*cuts, 50], strict=True))
    for start, stop in data.draw(st.permutations(spans), label="order"):
        sums.add(rows.X[start:stop], rows.Y[start:stop], weights=rows.w[start:stop])
    one, other = found(whole)[0, ""], found(sums)[0, ""]
    np.testing.assert_allclose(other.values, one.values, rtol=1e-11, atol=1e-12 * np.abs(one.values).max())
    assert one.n == other.n and sums.sums[0, ""].intact()
    # Rows of weight 0 add nothing, not even a fold of their own.
    sums.add(rows.X, rows.Y, 1, weights=np.zeros(50))
    assert (1, "") not in sums.sums


@pytest.mark.parametrize("missing", [False, True], ids=["all", "missing"])
@every
def test_moments_weighed_by_curvature_are_dense_ones(name: str, missing: bool) -> None:
    rows = Rows(name, missing=missing, folds=2)
    question = Question(rows.V, rows.loss, rows.scale, rows.width, True)
    rows.V[-1, 1] = 1e6 if name in ("huber", "epsilon", "quantiles") else rows.V[-1, 1]  # curves nowhere
    sums = rows.add(SlopeSums(question, FEATURES, 16, None), 23)
    w, _, beside = rows.dense()
    curved = w * beside[3]
    if name == "multinomial":  # along the differences of two classes each
        pairs = [
            (at, other)
            for start in (0, 3)
            for at, other in ((start, start + 1), (start, start + 2), (start + 1, start + 2))
        ]
        p = np.hstack([softmax(part, axis=1) for part in np.split(rows.F @ rows.V, 2, axis=1)])
        curved = np.column_stack([w[:, 0] * p[:, at] * p[:, other] for at, other in pairs])
    assert ("sharp" in name) == (not curved.any())
    totals = sums.total(Moments)
    assert {column for column, _ in totals} <= set(range(curved.shape[1]))
    for column, d in enumerate(curved.T):
        wanted = rows.F.T @ (d[:, None] * rows.F)
        one = totals.get((column, ""))
        assert one is not None or not d.any()
        if one is not None:
            np.testing.assert_allclose(one.full, wanted, rtol=1e-11, atol=1e-11)
            assert one.n == (d > 0).sum() and (one.m, one.q) == (M, 0)
    assert all(adder.intact() for adder in sums.sums.values())
    sums.clear()
    again = rows.add(sums, 23).total(Moments)
    assert all(np.array_equal(again[part].values, one.values) for part, one in totals.items())


def test_sums_begin_anew() -> None:
    """Two questions, one after the other: nothing of the first is left in the buffers."""
    rows = Rows("poisson")
    sums = rows.add(SlopeSums(rows.question, FEATURES, 16, None))
    before = found(sums)
    sums.clear()
    assert not sums.sums
    for part, one in found(rows.add(sums)).items():
        np.testing.assert_array_equal(one.values, before[part].values)


def filled(name: str = "huber") -> tuple[Rows, SlopeSums]:
    rows = Rows(name, 300, folds=1)
    return rows, rows.add(SlopeSums(rows.question, FEATURES, 64, None))


@pytest.mark.parametrize("name", ["huber", "multinomial", "hinge"])
def test_any_changed_number_is_seen(name: str) -> None:
    """Of slopes, of the loss, of the curvature: each number of the sums in turn; and of the witness."""
    _, sums = filled(name)
    adder = sums.sums[0, ""]
    numbers, witness = adder.held()
    assert adder.intact()
    usual = np.sqrt(np.mean(numbers**2))
    for at in range(len(numbers)):
        before = numbers[at]
        for wrong in (before + 1e-4 * usual, before - 1e-4 * usual, -before - usual, np.nan, np.inf, 1e200):
            numbers[at] = wrong
            assert not adder.intact(), f"{at}: {before} is now {wrong}"
        numbers[at] = before
        assert adder.intact()
    columns = len(numbers) // (M + 1 + BESIDE)
    for at in range(1, 1 + columns):
        before = witness[at]
        witness[at] += 1e-4 * usual
        assert not adder.intact()
        witness[at] = before
    assert adder.intact()


def test_the_witness_is_what_it_says() -> None:
    """Of each block: |Z u|^2, Z^T G along u, and the sizes of G: of slopes, and of what is beside them as rows more."""
    rng = np.random.default_rng(0)
    adder = SlopeAdder(3, 2)
    F, slopes, beside = rng.standard_normal((6, 4)), rng.standard_normal((6, 2)), rng.standard_normal((BESIDE, 2))
    adder.add_slopes(F, slopes, beside)
    u = adder.probe
    assert len(u) == 4 + BESIDE and adder.n == 6
    v = F @ u[:4]
    wanted = [v @ v + u[4:] @ u[4:], *(v @ slopes + u[4:] @ beside),
              *((slopes**2).sum(axis=0) + (beside**2).sum(axis=0))]  # fmt: skip
    np.testing.assert_allclose(adder.witness, wanted, rtol=1e-13)
    np.testing.assert_allclose(adder.values, np.vstack([F.T @ slopes, beside]), rtol=1e-13)


@LAW
@given(
    seed=st.integers(0, 2**16), n=st.integers(0, 200), columns=st.integers(1, 5),
    by=st.sampled_from(["rows", "columns", "all"]), scale=st.floats(0.0, 140.0), zero=st.booleans(),
)  # fmt: skip
def test_rounding_is_never_taken_for_a_fault(
    seed: int, n: int, columns: int, by: str, scale: float, zero: bool
) -> None:
    """Slopes and losses of any size, large ones and tiny ones: without a warning, too."""
    rng = np.random.default_rng(seed)
    adder = SlopeAdder(9, columns)
    shape = {"rows": (n, 1), "columns": (1, columns), "all": (1, 1)}[by]
    slopes = rng.standard_normal((n, columns)) * 10.0 ** rng.uniform(-scale, scale, shape)
    F = np.column_stack([rng.uniform(-1.0, 1.0, (n, 9)), np.ones(n)])
    if zero:
        slopes[:, 0] = 0.0
    for part, some in zip(np.array_split(slopes, 3), np.array_split(F, 3), strict=True):
        size = 10.0 ** rng.uniform(-scale, scale)
        adder.add_slopes(some, part, size * np.abs(rng.standard_normal((BESIDE, columns))))
        assert adder.intact()


def test_sums_that_overflow_are_told_from_damaged_ones() -> None:
    adder = SlopeAdder(1, 1)
    adder.add_slopes(np.ones((2, 2)), np.full((2, 1), 1e200), np.ones((BESIDE, 1)))
    assert adder.intact() and not adder.overflowed()  # too large for a witness, not for a sum
    adder.add_slopes(np.ones((2, 2)), np.full((2, 1), 1e308), np.full((BESIDE, 1), 1e308))
    adder.add_slopes(np.ones((2, 2)), np.full((2, 1), 1e308), np.full((BESIDE, 1), 1e308))
    assert adder.intact() and adder.overflowed()
    rows = Rows("poisson", 20, folds=1)
    rows.V[-1] = 1e160  # rates far beyond what there are numbers for, as a line search may ask
    sums = rows.add(SlopeSums(rows.question, FEATURES, 16, None))
    assert sums.sums[0, ""].intact() and sums.sums[0, ""].overflowed()


@pytest.mark.parametrize("curved", [False, True])
def test_a_checkpoint_gives_back_the_same_bits(curved: bool, tmp_path: Path) -> None:
    rows = Rows("huber", missing=True)
    question = Question(rows.V, rows.loss, rows.scale, rows.width, curved)
    whole, half, rest = (SlopeSums(question, FEATURES, 16, None) for _ in range(3))
    for start in range(0, 90, 15):
        at = slice(start, start + 15)
        if start == 45:
            record = Checkpoint(
                plan="p", number=2, start=0, stop=90, row=45, stamp="s", rows_used=45, checksums=(1,)
            )  # fmt: skip
            record.save(tmp_path, half.sums)
            back = Checkpoint.load(tmp_path, 2)
            assert back is not None and back.restore(tmp_path, rest.of)
        for sums in (whole, half if start < 45 else rest):
            sums.add(rows.X[at], rows.Y[at], int(rows.fold[start]), weights=rows.w[at])
    assert whole.sums.keys() == rest.sums.keys()
    for part, adder in whole.sums.items():
        other = rest.sums[part]
        assert (adder.n, adder.unit) == (other.n, other.unit) and other.intact()
        for one, two in zip(adder.held(), other.held(), strict=True):
            np.testing.assert_array_equal(one, two)
    narrow = SlopeSums(Question(rows.V[:, :2], rows.loss, rows.scale, rows.width, curved), FEATURES, 16, None)
    record.save(tmp_path, half.sums)
    assert curved or not record.restore(tmp_path, narrow.of)  # of another question


def test_files_hold_them_as_products(tmp_path: Path) -> None:
    rows = Rows("quantiles")
    left, right = (SlopeSums(rows.question, FEATURES, 16, None) for _ in range(2))
    left.add(rows.X[:40], rows.Y[:40], 0, weights=rows.w[:40])
    right.add(rows.X[40:], rows.Y[40:], 0, weights=rows.w[40:])
    right.add(rows.X[:7], rows.Y[:7], 4)
    for name, sums in (("a", left), ("b", right)):
        save_moments(tmp_path / name, sums.sums)
        loaded = load_sums(tmp_path / name, Products)
        assert loaded is not None and loaded.keys() == sums.sums.keys()
        for part, one in found(sums).items():
            assert np.array_equal(loaded[part].values, one.values) and loaded[part].n == one.n
    assert merge_moments(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    merged = load_sums(tmp_path / "c", Products)
    assert merged is not None
    np.testing.assert_array_equal(merged[0, ""].values, found(left)[0, ""].values + found(right)[0, ""].values)
    np.testing.assert_array_equal(merged[4, ""].values, found(right)[4, ""].values)


@every
def test_a_question_is_read_as_it_is_written(name: str) -> None:
    loss, width = ASKED[name]
    V = np.ones((4, 2 * 2 * loss.levels))
    for curved in (False, True):
        asked = Question(V, loss, (0.1, 2.0), width, curved)
        back = Question.of(V, json.loads(json.dumps(asked.config())))
        assert back.V is V
        assert (back.loss, back.scale, back.width, back.curved) == (loss, (0.1, 2.0), width, curved)
        made = back.sums(FEATURES, 16, None) if curved else asked.sums(FEATURES, 16, None)
        assert isinstance(made, SlopeSums) and made.block_rows == 16
    assert (Question(V, loss, (1.0, 1.0)).width, Question(V, loss, (1.0, 1.0)).curved) == (0.0, False)


@pytest.mark.parametrize(
    ("loss", "columns", "q", "fits"),
    [("squared", 4, 2, True), ("squared", 3, 2, False), ({"quantiles": [0.1, 0.9]}, 8, 2, True),
     ({"quantiles": [0.1, 0.9]}, 6, 2, False), ({"quantiles": [0.1, 0.9]}, 2, 2, False), ("poisson", 5, 1, True)],
)  # fmt: skip
def test_columns_that_are_no_functions_are_refused(loss: Any, columns: int, q: int, fits: bool) -> None:
    words = {"loss": loss, "scale": [1.0] * q, "width": 0.0, "curved": False}
    if fits:
        assert Question.of(np.ones((3, columns)), words).V.shape == (3, columns)
        return
    with pytest.raises(InputError, match=f"^{columns} columns are no functions of {q} targets$"):
        Question.of(np.ones((3, columns)), words)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"loss": "cubed"}, InputError),
        ({"extra": 1}, TypeError),
        ({"scale": 3}, TypeError),
        ({"scale": []}, InputError),
    ],
)
def test_words_that_are_no_question_are_refused(change: dict[str, Any], error: type[Exception]) -> None:
    words = {"loss": "squared", "scale": [1.0], "width": 0.0, "curved": False} | change
    with pytest.raises(error):
        Question.of(np.ones((3, 2)), words)
    del words["loss"]
    with pytest.raises(KeyError):
        Question.of(np.ones((3, 2)), words)
