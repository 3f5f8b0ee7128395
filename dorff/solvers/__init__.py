"""Solvers: from moments to coefficients."""

from dorff.solvers.problem import Centred, Problem, Solution, target_covariance
from dorff.solvers.select import kfold_errors, solve, squared_error

__all__ = ["Centred", "Problem", "Solution", "kfold_errors", "solve", "squared_error", "target_covariance"]
