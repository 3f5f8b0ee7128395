"""ORFFClassifier: classes by least squares on one-hot targets, with calibrated probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, final

import dask.array as da
import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from dorff.calibration import Calibration
from dorff.errors import InputError
from dorff.estimators.base import ORFFEstimator, unchanged
from dorff.estimators.drawing import Drawing
from dorff.estimators.held import FOLDS, HeldRows, held_fold
from dorff.estimators.labels import (
    AnyLabels,
    Labels,
    StoredLabels,
    find_classes,
    in_memory,
    target_rows,
    unwrap_labels,
)
from dorff.estimators.rows import Rows, StoredRows, together, unwrap, with_rows
from dorff.estimators.sums import RowSums, Targets, one_thread
from dorff.frequencies import Sampler
from dorff.kernels import Decomposable, OperatorKernel, ScalarKernel
from dorff.kernels.scalar import FloatArray
from dorff.leaf import FoldRule
from dorff.moments import by_fold, pooled
from dorff.store import Folds

CODINGS = {"simplex": "simplex", "one_vs_all": "identity"}  # and their output matrices


def _calibrates(estimator: Any) -> bool:
    if not estimator.calibrate:
        raise AttributeError("probabilities need calibrate=True")
    return True


@final
class ORFFClassifier(ClassifierMixin, ORFFEstimator):  # type: ignore[misc]
    """Classes by vector-valued kernel ridge regression on operator-valued random Fourier features.

    Each class has an output, whose targets are 1 in its own rows and 0 in all others; f is `ORFFRegressor`'s fit to
    them, in the same single pass, and the class predicted that of the largest f (Brault, Heinonen & d'Alche-Buc 2016,
    section 5.2). Probabilities are softmax(slope f), `slope` being the likeliest on held-out rows (`Calibration`).

    Parameters
    ----------
    kernel, n_features, sampler, ridge, cv, random_state, intercept
        As of `ORFFRegressor`; ridges are compared by squared error on the one-hot targets. An OperatorKernel is taken
        as it is, with an output for each class.
    coding : "simplex" or "one_vs_all"
        What a scalar kernel k0 stands for: `Decomposable(k0, "simplex")` (Mroueh, Poggio, Rosasco & Slotine 2012), of
        rank K - 1 for K classes, or `Decomposable(k0, "identity")`. One-hot targets sum to 1, so with an intercept
        both give the same f, simplex coding's ridge counting (K - 1) / K of the other's.
    class_weight : "balanced", dict of label to weight, or None
        How much a row counts: "balanced" is n / (K n_k) for the n_k rows of class k. Labels that a dict leaves out
        count 1. Probabilities are then those of data in which the classes have that share.
    calibrate : bool
        Hold the rows of one fold out (of `cv`, or of 5), fit to the others, and find `slope` on its rows, which are
        read once more: all of them, or 2^17 from all over the data. The model is then fitted to all rows. Needs a
        second set of sums. Without it there is no `predict_proba`.
    standardize : bool
        Divide inputs by their standard deviations; targets stay ones and zeros.

    Attributes
    ----------
    classes_ : ndarray (K,)
        The labels, sorted.
    model_ : Model
        Gives f; `info` has the labels and the calibration.
    calibration_ : Calibration
        Where asked for.
    class_weight_ : ndarray (K,)
    ridge_, gcv_, cv_errors_, condition_, rung_, digits_, n_features_in_, feature_names_in_
        As of `ORFFRegressor`.

    Notes
    -----
    X is as `ORFFRegressor` takes it. y (n,) holds text, whole numbers, booleans or whatever else sorts: NumPy, a list,
    pandas, xarray, a Zarr array in a local folder, or a Dask array. Of the last two the classes are found by one pass
    over y alone; ones and zeros are made chunk by chunk. Labels predicted are a lazy Dask array for Dask input.
    """

    def __init__(
        self,
        kernel: OperatorKernel | ScalarKernel | None = None,
        n_features: int = 1024,
        *,
        coding: str = "simplex",
        sampler: Sampler | None = None,
        ridge: float | Sequence[float] = 1e-6,
        cv: int | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        calibrate: bool = True,
        random_state: int | np.random.RandomState | None = 0,
        intercept: bool = True,
        standardize: bool = False,
    ) -> None:
        self.kernel = kernel
        self.n_features = n_features
        self.coding = coding
        self.sampler = sampler
        self.ridge = ridge
        self.cv = cv
        self.class_weight = class_weight
        self.calibrate = calibrate
        self.random_state = random_state
        self.intercept = intercept
        self.standardize = standardize

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to inputs X (n, d) and labels y (n,)."""
        self._check_arguments()
        X, labels = self._validated(unwrap(X, "X"), unwrap_labels(y))
        coded: AnyLabels = labels
        if isinstance(labels, StoredLabels | da.Array):
            self.classes_, counts = find_classes(labels)
            classes = self.classes_
        else:
            self.classes_, coded, counts = in_memory(labels)
            classes = np.arange(len(self.classes_))
        if len(classes) < 2:
            raise InputError(f"y has one class only, {self.classes_.tolist()[0]!r}; a classifier needs two or more")
        self.class_weight_ = self._weights(counts)
        X = with_rows(X, "X")
        if isinstance(X, da.Array) and not isinstance(coded, da.Array):
            coded = da.from_array(coded, chunks=(X.chunks[0] if len(X) == len(coded) else -1,))
        X, Y = together(X, target_rows(coded, classes))
        with one_thread():
            self._fit(X, Y)
        return self

    def predict(self, X: Any) -> Any:
        """Labels (n,) at X (n, d)."""
        check_is_fitted(self)
        return self._mapped(X, partial(_likeliest, classes=self.classes_), (), self.classes_.dtype)

    def decision_function(self, X: Any) -> Any:
        """f (n, K) at X (n, d); of two classes f_1 - f_0 (n,), above zero for the second."""
        check_is_fitted(self)
        K = len(self.classes_)
        return self._mapped(X, _difference, ()) if K == 2 else self._mapped(X, unchanged, (K,))

    @available_if(_calibrates)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Probabilities (n, K) of the classes at X (n, d)."""
        check_is_fitted(self, "calibration_")
        return self._mapped(X, self.calibration_.probabilities, (len(self.classes_),))

    @available_if(_calibrates)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms (n, K) of the probabilities, finite where those underflow."""
        check_is_fitted(self, "calibration_")
        return self._mapped(X, self.calibration_.log_probabilities, (len(self.classes_),))

    def score(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> float:
        """The share of labels that are right. Holds y and the predictions in memory."""
        y = unwrap_labels(y)
        y = np.asarray(y[:]) if isinstance(y, StoredLabels | da.Array) else y
        return float(accuracy_score(y, np.asarray(self.predict(X)), sample_weight=sample_weight))

    def _of_scalar(self, scalar: ScalarKernel) -> OperatorKernel:
        return Decomposable(scalar, CODINGS[self.coding])

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.coding not in CODINGS:
            raise InputError(f"coding must be 'simplex' or 'one_vs_all', not {self.coding!r}")

    def _weights(self, counts: npt.NDArray[np.int64]) -> FloatArray:
        """How much a row of each class (K,) counts."""
        chosen, K = self.class_weight, len(counts)
        if chosen is None:
            return np.ones(K)
        if isinstance(chosen, str) and chosen == "balanced":
            return np.asarray(counts.sum() / (K * counts))
        if not isinstance(chosen, Mapping):
            raise InputError(f"class_weight must be 'balanced', a dict of labels to weights, or None, not {chosen!r}")
        labels = self.classes_.tolist()
        if unknown := [label for label in chosen if label not in labels]:
            raise InputError(f"class_weight names {unknown[0]!r}, but the labels are {labels[:20]}")
        weights = np.array([float(chosen.get(label, 1.0)) for label in labels])
        if not np.isfinite(weights).all() or (weights <= 0).any():
            raise InputError(f"class_weight must be numbers above 0, not {dict(chosen)!r}; leave out a class's rows")
        return weights

    def _validated(self, X: Any, y: Any) -> tuple[Any, AnyLabels]:
        """What scikit-learn demands of X and y, without reading what lies in Zarr or Dask."""
        if isinstance(y, StoredLabels | da.Array):
            return self._inputs(X, reset=True), y
        if isinstance(X, StoredRows | da.Array):
            if y is None:
                raise InputError("fit requires y to be passed, but the target y is None")
            y = column_or_1d(check_array(y, ensure_2d=False, dtype=None, input_name="y"), warn=True)
            X = self._inputs(X, reset=True)
        else:
            X, y = validate_data(self, X, y, dtype=np.float64)
        return X, y

    def _fit(self, X: Rows, Y: Targets) -> None:
        drawing = self._draw(X, Y)
        deal = FoldRule(self.cv or 1, by_rows=True, seed=drawing.seed)
        if self.cv is None and self.calibrate:
            deal = FoldRule.one_held(FOLDS, by_rows=True, seed=drawing.seed)
        sums = RowSums(drawing.features, drawing.y0, deal, self.class_weight_)
        parts = sums.of(X, Y)
        model = self._solve(drawing, parts).model
        found: dict[str, Any] = {"labels": [_plain(label) for label in self.classes_]}
        self.__dict__.pop("calibration_", None)  # of an earlier fit
        if self.calibrate:
            self.calibration_ = self._calibration(drawing, deal, parts, X, Y)
            found["calibration"] = self.calibration_.config()
        self.model_ = replace(model, info={**model.info, **found})

    def _calibration(self, drawing: Drawing, deal: FoldRule, parts: Folds, X: Rows, Y: Targets) -> Calibration:
        """Of a fit to the other folds, at the same ridge; the held-out rows had a part in choosing that one number."""
        held = held_fold(deal)
        rest = pooled(by_fold({part: moments for part, moments in parts.items() if part[0] != held}))
        if not rest:
            raise InputError("y has too few rows to hold some out for probabilities; use calibrate=False")
        (fit,) = drawing.setting.solve(rest, [self.ridge_])
        f, codes = HeldRows.of_classes(drawing.model(fit, rest), deal, X.shape[0]).read(X, Y)
        return Calibration.fit(f, codes, self.class_weight_[codes])


def _likeliest(values: FloatArray, classes: Labels) -> Labels:
    return np.asarray(classes[values.argmax(axis=1)])


def _difference(values: FloatArray) -> FloatArray:
    return values[:, 1] - values[:, 0]


def _plain(label: Any) -> Any:
    """A label as JSON has it."""
    plain = label.item() if isinstance(label, np.number | np.bool | np.str_) else label
    return plain if isinstance(plain, str | bool | int | float) else str(plain)
