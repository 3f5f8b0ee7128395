"""A fitted model: its weights, posterior, bands and probabilities."""

from dorff.model.model import Model
