"""Solvers: from moments to coefficients."""

from dorff.solvers.choose import Choice, Score, choose
from dorff.solvers.problem import Centred, Problem, Solution, target_covariance
from dorff.solvers.select import MOST_FACTORS, kfold_errors, solve, squared_error
from dorff.solvers.setting import Setting, spread

__all__ = [
    "MOST_FACTORS",
    "Centred",
    "Choice",
    "Problem",
    "Score",
    "Setting",
    "Solution",
    "choose",
    "kfold_errors",
    "solve",
    "spread",
    "squared_error",
    "target_covariance",
]
