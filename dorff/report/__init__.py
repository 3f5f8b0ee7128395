"""Reports: what was fitted and how, on one self-contained HTML page with plots."""

from dorff.report.figures import Candidate, trial_plot
from dorff.report.page import write_report
