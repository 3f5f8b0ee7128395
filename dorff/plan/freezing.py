"""The constants of a pass are frozen: written by the first plan, and used by all that follow."""

from dorff.errors import InputError
from dorff.passes import Pass, RowsName, frozen_hash
from dorff.passes.frozen import freeze
from dorff.plan.constants import constants_of
from dorff.plan.lattice import same_sample
from dorff.plan.lengthscale import spread_rows
from dorff.plan.plan import Plan


def freeze_constants(plan: Plan, *, narrow: bool = False) -> Pass:
    """The plan's pass; its constants are frozen, unless they are and the rows they came from are unchanged. Anew where
    `narrow` says that rows were seen to have more patterns of targets than there are sums for."""
    if narrow or not _still_frozen(plan):
        freeze(plan.directory, plan.spec, constants_of(plan, narrow=narrow))
    return plan.frozen()


def _still_frozen(plan: Plan) -> bool:
    """Whether there are constants, and the rows they came from are what they were, or have left the window."""
    if frozen_hash(plan.directory) is None:
        return False
    try:
        constants = plan.frozen().constants
    except InputError:  # damaged: the same rows give the same constants again
        return False
    if not same_sample(plan.frozen(), plan.dataset):
        return False
    searched = _still_there(plan, constants.tuning_rows, targets=True)
    return searched and _still_there(plan, constants.landmark_rows, targets=False)


def _still_there(plan: Plan, named_rows: RowsName | None, *, targets: bool) -> bool:
    """Whether rows that constants came from are what they were, or have left the window."""
    dataset = plan.dataset
    if named_rows is None or named_rows.first < dataset.first:
        return True
    rows = dataset.window(named_rows.first)
    return named_rows.rows <= rows.n and named_rows == spread_rows(plan.spec, rows, named_rows.rows, targets=targets)[1]
