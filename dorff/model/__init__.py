"""A fitted model: its weights, posterior, bands and probabilities."""

from dorff.model.calibration import (
    SAMPLE_NUMBERS,
    SAMPLE_ROWS,
    Calibration,
    Conformal,
    HeldSample,
    Sites,
    most_rows,
)
from dorff.model.model import Model, Views, evaluation_bytes
from dorff.model.posterior import Posterior
from dorff.model.weights import Density, OperatorWeights, operator_weights
