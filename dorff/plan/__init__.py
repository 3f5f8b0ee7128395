"""What a job will do and cost, computed before the pass; and the constants it freezes from its first rows."""

from dorff.plan.constants import Scaling, constants_of, draw_features, target_means
from dorff.plan.costs import Costs, keeps_posterior, leaves_out, most_left_out
from dorff.plan.freezing import freeze_constants
from dorff.plan.lengthscale import array_columns
from dorff.plan.manifold_terms import ManifoldTerm, features_of, penalty
from dorff.plan.plan import Plan, make_plan
from dorff.plan.resolving import features_for
from dorff.plan.sampled import RUN_ROWS, RUNS, FirstLook, alike, left_out_runs, linear_r2
