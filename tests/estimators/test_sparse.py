"""Sparse inputs, one-hot ones say, whose rows are made dense as they are read."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.preprocessing import OneHotEncoder

from dorff import ORFFClassifier, ORFFRegressor, kernels
from dorff.errors import InputError

RNG = np.random.default_rng(0)
WORDS = RNG.integers(0, 5, (5000, 2))
SPARSE = OneHotEncoder().fit_transform(WORDS)
Y = np.column_stack([np.sin(WORDS[:, 0]), WORDS[:, 1] == 2]) + 0.1 * RNG.standard_normal((5000, 2))


@pytest.mark.parametrize("form", [scipy.sparse.csr_matrix, scipy.sparse.coo_array, scipy.sparse.csc_matrix])
def test_sparse_inputs_give_what_dense_ones_do(form: type) -> None:
    model = ORFFRegressor(kernels.Gaussian(1.5), 64, ridge=1e-4, random_state=0).fit(form(SPARSE), Y)
    dense = ORFFRegressor(kernels.Gaussian(1.5), 64, ridge=1e-4, random_state=0).fit(SPARSE.toarray(), Y)
    np.testing.assert_allclose(model.predict(form(SPARSE)), dense.predict(SPARSE.toarray()), atol=1e-8)
    assert model.n_features_in_ == 10 and model.score(form(SPARSE), Y) > 0.9
    std = model.predict(form(SPARSE)[:7], return_std=True)[1]
    np.testing.assert_allclose(std, dense.predict(SPARSE.toarray()[:7], return_std=True)[1], rtol=1e-6)


def test_a_classifier_takes_them_too() -> None:
    labels = np.array(["low", "high"])[(WORDS[:, 0] > 2).astype(int)]
    model = ORFFClassifier(kernels.Gaussian(1.5), 64, random_state=0).fit(SPARSE, labels)
    few, groups = slice(0, 400), np.arange(400) % 7
    folds = ORFFClassifier(kernels.Gaussian(1.5), 64, ridge=1e-4, cv=4)
    sparse, dense = (folds.fit(rows, labels[few], groups=groups).predict_proba(SPARSE[few])
                     for rows in (SPARSE[few], SPARSE[few].toarray()))  # fmt: skip
    np.testing.assert_allclose(sparse, dense, atol=1e-8)  # calibrated on rows of each fold in turn
    assert model.score(SPARSE, labels) > 0.99 and model.predict_proba(SPARSE[:3]).shape == (3, 2)


def test_what_is_no_number_is_refused() -> None:
    gap = SPARSE.tolil()
    gap[4321, 3] = np.nan
    with pytest.raises(InputError, match="X, row 4321, column 3: expected a finite number, got nan"):
        ORFFRegressor(kernels.Gaussian(1.5), 64).fit(gap, Y)
    with pytest.raises(InputError, match="X must hold real numbers, not complex128; convert it first"):
        ORFFRegressor(kernels.Gaussian(1.5), 64).fit(SPARSE.astype(complex), Y)
    model = ORFFRegressor(kernels.Gaussian(1.5), 64).fit(SPARSE, Y)
    with pytest.raises(ValueError, match="has 9 features, but ORFFRegressor is expecting 10"):
        model.predict(SPARSE[:, :9])
