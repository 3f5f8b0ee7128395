"""scikit-learn estimators over NumPy, pandas, Dask, Zarr and xarray."""

from dorff.estimators.classifier import ORFFClassifier
from dorff.estimators.random_features import RandomFeatures
from dorff.estimators.regressor import ORFFRegressor
from dorff.estimators.stochastic import (
    DoublyStochasticClassifier,
    DoublyStochasticRegressor,
    StochasticORFFClassifier,
    StochasticORFFRegressor,
)
