"""Predictions from Zarr to Zarr, and scores against targets."""

from dorff.predict.scoring import COVERAGE_LEVELS, ROWS, Scores, score
from dorff.predict.shared import check_uncertain
from dorff.predict.writing import Uncertainty, predict

__all__ = ["COVERAGE_LEVELS", "ROWS", "Scores", "Uncertainty", "check_uncertain", "predict", "score"]
