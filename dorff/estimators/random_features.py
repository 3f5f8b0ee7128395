"""RandomFeatures, a transformer of scikit-learn; and what it and models answer for every kind of array."""

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final, Self, TypeAlias, TypeVar

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.delayed import delayed
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dorff.errors import InputError
from dorff.estimators.array_sums import RowsRead, ends_of, lattice_box, one_thread, sample
from dorff.estimators.arrays import Flags, StoredRows, check_inside, finite_in, runs_of, with_rows
from dorff.estimators.landmarks import candidate_runs
from dorff.estimators.parameters import Nested, in_python, named_kernel, seed_of, warn_of_few_features
from dorff.features import FeatureMap, Projected, Recipe, endless, folded, periods_of
from dorff.frequencies import Landmarks, Lattice, Sampler, default_sampler
from dorff.kernels import Decomposable, FloatArray, ScalarKernel
from dorff.model.model import Model
from dorff.model.weights import operator_weights
from dorff.plan import Scaling, draw_features

PREDICTS: Final = ("data", "loss", "labels", "calibration")  # what of a model's `info` its predictions depend on
M = TypeVar("M")
Answer: TypeAlias = Callable[[M, FloatArray], npt.NDArray[Any]]  # from a model and X (k, d) to what is asked for


@dataclass(eq=False, repr=False)
class RandomFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Nested):  # type: ignore[misc]
    """Random features F of a scalar kernel: F(x) . F(z) estimates k0(x, z), as in the feature maps of the estimators.

    Parameters
    ----------
    kernel : ScalarKernel, name or None
        None is "gaussian"; a name's length-scale is the median distance between rows of a sample.
    n_features, sampler, random_state
        As of `ORFFRegressor`: at most so many columns. None is always a sampler of random features.
    standardize : bool
        Divide inputs by their standard deviations first.

    Attributes
    ----------
    feature_map_ : FeatureMap
    n_features_in_, feature_names_in_
        As in scikit-learn.

    X (n, d) is of any kind that `ORFFRegressor` takes; constants come from the same rows of it."""

    kernel: ScalarKernel | str | None = None
    n_features: int = 1024
    _: KW_ONLY
    sampler: Sampler | None = None
    random_state: int | np.random.RandomState | None = 0
    standardize: bool = False

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the features for inputs X (n, d), whose units are kept; y is not looked at.

        Raises
        ------
        InputError
            As of `ORFFRegressor.fit`; the features cannot be drawn.
        """
        rows = with_rows(self._inputs(self._adapt_inputs(X, reset=True), reset=True), "X")
        d = int(rows.shape[1])
        periods, box = np.full(d, np.inf), None
        if isinstance(self.sampler, Lattice):
            periods, box = periods_of(self.sampler.config(), d), lattice_box(self.sampler, rows)
            if self.sampler.box is not None:
                check_inside(endless(box, periods), ends_of(rows))
        some = folded(sample(rows, rows)[0], periods)
        candidates = some
        if isinstance(self.sampler, Landmarks):
            runs = candidate_runs(int(rows.shape[0]))
            candidates = RowsRead.of(rows, rows, runs)[runs][0]
        seed = seed_of(self.random_state)

        with one_thread():
            scaling = Scaling.from_rows(
                some,
                None,
                tied=() if self.standardize else None,
                shift_invariant=self._scalar(some[:1]).shift_invariant,
            )
            kernel = Decomposable(self._scalar(scaling(some))).fix(d, 1)
            sampler = default_sampler(kernel) if self.sampler is None else self.sampler
            if isinstance(sampler, Lattice) and box is not None:
                sampler = sampler.over(np.ptp(scaling(box), axis=0), constant=True)
            recipe = Recipe(kernel, sampler, d, 1, self.n_features, intercept=False)
            recipe = recipe.among(scaling(candidates), seed)
            drawn_features = draw_features(
                recipe,
                some,
                scaling,
                seed,
                standardized=bool(self.standardize),
            )
            drawn, features = drawn_features.drawn, drawn_features.feature_map
            self._model: Model | FeatureMap = features
            if box is not None:  # features without the kernel: psi has it, of one scalar kernel a number each
                phi, psi = features.phi, operator_weights(kernel, features.m, drawn.density)
                assert isinstance(phi, Projected)
                features = replace(features, phi=replace(phi, weights=phi.weights * psi.gain[: len(phi.weights)]))
                h, one, config = np.zeros((features.m, 1)), np.ones(1), recipe.sampler.config()
                info = {"data": {"low": box[0].tolist(), "high": box[1].tolist()}}
                self._model = Model(features, psi, h, one, one, kernel, config, seed, info)
        if self.sampler is not None and "sampler" in recipe.idle:
            why = recipe.idle["sampler"]
            warnings.warn(f"sampler={self.sampler!r} has no effect: {why}", UserWarning, stacklevel=2)
        warn_of_few_features(kernel, drawn.density, recipe, stacklevel=3)
        self.feature_map_ = features
        return self

    def transform(self, X: Any) -> Any:
        """Return F (n, m) at X (n, d), converted to the units of the fit: lazy for Dask input, else NumPy.

        Raises
        ------
        InputError
            As of `ORFFRegressor.predict`.
        """
        check_is_fitted(self)
        return self._answered(self._inputs(self._adapt_inputs(X, reset=False), reset=False))

    def _answered(self, X: Any) -> Any:  # as far from who calls as predictions of estimators: what warns is that line
        return answered(X, self._model, _features, (self.feature_map_.m,))

    @property
    def _n_features_out(self) -> int:
        return self.feature_map_.m

    def _scalar(self, X: FloatArray) -> ScalarKernel:
        """The kernel, for scaled inputs X (n, d) where it is a name."""
        kernel = self.kernel or "gaussian"
        scalar = named_kernel(kernel, X) if isinstance(kernel, str) else kernel
        if not isinstance(scalar, ScalarKernel):
            raise InputError(f"kernel must be a scalar kernel or its name, such as Gaussian(2.0), not {kernel!r}")
        return scalar


def _features(model: Model | FeatureMap, X: FloatArray) -> FloatArray:
    return (model.feature_map if isinstance(model, Model) else model).transform(X)


def answered(
    X: Any, model: M, answer: Answer[M], columns: tuple[int, ...], dtype: Any = np.float64, read: Flags | None = None
) -> Any:
    """What `answer` makes of a model, or of a feature map, and X (n, d), (n, *columns): a lazy Dask array for Dask
    input, else NumPy. Only the columns `read` (d,) of what is read here are looked at, where it is given."""
    if isinstance(X, da.Array):
        if isinstance(model, Model):  # with no more said of it than predictions need
            model = replace(model, info={key: model.info[key] for key in PREDICTS if key in model.info})
        return X.rechunk({1: -1}).map_blocks(
            _answer_of_chunk,
            delayed(model),  # one copy in the graph
            answer=answer,
            read=read,
            dtype=dtype,
            chunks=(X.chunks[0], *((width,) for width in columns)),
            drop_axis=None if columns else 1,
            meta=np.empty((0,) * (1 + len(columns)), dtype),
        )
    if not isinstance(X, StoredRows):
        _warn_of(model, _repeating(model, X), len(X))
        return answer(model, X)
    out, far = np.empty((len(X), *columns), dtype), 0
    for start, stop in runs_of(len(X), X.unit_rows):
        rows = finite_in(X[start:stop], read, "X", start)
        out[start:stop], far = answer(model, rows), far + _repeating(model, rows)
    _warn_of(model, far, len(X))
    return out


def _answer_of_chunk(
    X: FloatArray, model: M, *, answer: Answer[M], read: Flags | None, block_id: tuple[int, ...]
) -> npt.NDArray[Any]:
    rows = finite_in(np.ascontiguousarray(X, dtype=np.float64), read, f"X, chunk {block_id[0]}", 0)
    _warn_of(model, _repeating(model, rows), len(rows))
    return answer(model, rows)


def _repeating(model: Any, X: FloatArray) -> int:
    return model.repeating(X) if isinstance(model, Model) else 0


def _warn_of(model: Any, far: int, rows: int) -> None:
    if far:
        warnings.warn(in_python(model.beyond(far, rows)), UserWarning, stacklevel=6)
