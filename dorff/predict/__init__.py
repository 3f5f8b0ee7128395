"""Predictions from Zarr to Zarr, and scores against targets."""

from dorff.predict.scoring import COVERAGE_LEVELS, ROWS, Scores, score
from dorff.predict.shared import check_uncertain
from dorff.predict.writing import NAN_ROWS, REPEATING_ROWS, Uncertainty, predict
