"""Step-time models: constant, roofline, and measured profiles."""

from kvplan.timing.constant import constant
from kvplan.timing.roofline import roofline
from kvplan.timing.step_times import AttentionGroup, Grid, StepTimes, Term

__all__ = ["AttentionGroup", "Grid", "StepTimes", "Term", "constant", "roofline"]
