"""Solvers: from moments to coefficients."""

from dorff.solvers.choose import Choice, Score, choose, kfold_errors
from dorff.solvers.problem import Problem, Solution, target_covariance, untouched
from dorff.solvers.select import MOST_FACTORS, solve, squared_error
from dorff.solvers.setting import Fit, Setting, check_output, learned_term, spread

__all__ = [
    "MOST_FACTORS",
    "Choice",
    "Fit",
    "Problem",
    "Score",
    "Setting",
    "Solution",
    "check_output",
    "choose",
    "kfold_errors",
    "learned_term",
    "solve",
    "spread",
    "squared_error",
    "target_covariance",
    "untouched",
]
