"""Solvers: from moments to coefficients."""

from dorff.solvers.cg import cg_bytes, sampled_bytes
from dorff.solvers.choose import Choice, Score, choose, held_out_squares, least, of_first, setting_scores
from dorff.solvers.direct import MOST_FACTORS, solve, solve_bytes, triangle_bytes
from dorff.solvers.feature_error import feature_variance
from dorff.solvers.outputs import targets_apart, untouched
from dorff.solvers.problem import Problem, target_covariance
from dorff.solvers.ridge_path import path_bytes
from dorff.solvers.scores import Criterion, Ridge, Solution, criterion_of
from dorff.solvers.select import R2, Spread, row_sums, squared_error, squared_errors
from dorff.solvers.setting import Fit, Setting, carried_ridges, check_apart, check_output, learned_term, spread
from dorff.solvers.stochastic import probe_bytes
from dorff.solvers.system import LARGEST_DIRECT, LARGEST_EVD, Penalty, Size
from dorff.solvers.uncertainty import LeftOut, posterior_bytes
