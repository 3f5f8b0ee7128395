"""What a job will do and cost, computed before a row is read; and the constants it freezes from its first rows."""

from dorff.plan.costs import Costs, keeps_posterior
from dorff.plan.freezing import constants_of, draw_features, freeze_constants, target_means
from dorff.plan.plan import Plan, make_plan
from dorff.plan.resolving import features_for
