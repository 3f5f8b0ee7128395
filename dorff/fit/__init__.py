"""A fit: the pass over the data, the choice, the solve, the model."""

from dorff.fit.choice import build_model, filled, r2_of, settings, solve_pass
from dorff.fit.fit_report import FitReport
from dorff.fit.passes import Fitted, PassResult, Progress, folds_with_rows, run_pass, sum_terms
from dorff.fit.publish import leased, state_lease
from dorff.fit.run import fit
from dorff.fit.streaming import expected_passes
