"""Length-scales from the data: the evidence of a sample of rows, maximised."""

from dorff.lengthscale.evidence import Evidence
from dorff.lengthscale.features import UnitFeatures, with_lengthscale
from dorff.lengthscale.tuning import FEATURES, ROWS, Tuned, tune_lengthscales
