"""scikit-learn estimators over NumPy, pandas, Dask, Zarr and xarray."""

from dorff.estimators.by_descent import (
    DoublyStochasticClassifier,
    DoublyStochasticRegressor,
    StochasticORFFClassifier,
    StochasticORFFRegressor,
)
from dorff.estimators.classifier import ORFFClassifier
from dorff.estimators.random_features import RandomFeatures
from dorff.estimators.regressor import ORFFRegressor
