"""Reports: what was fitted and how, on one self-contained HTML page with plots."""

from dorff.report.page import write_report
from dorff.report.selection import Candidate, trial_plot
