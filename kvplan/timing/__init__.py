"""Step-time models: constant, roofline, and measured profiles."""

from kvplan.timing.constant import constant
from kvplan.timing.measured import from_profile
from kvplan.timing.profile import BlockForm, Profile, read_profile, write_profile
from kvplan.timing.roofline import roofline
from kvplan.timing.step_times import AttentionGroup, Grid, StepTimes, Term

__all__ = [
    "AttentionGroup",
    "BlockForm",
    "Grid",
    "Profile",
    "StepTimes",
    "Term",
    "constant",
    "from_profile",
    "read_profile",
    "roofline",
    "write_profile",
]
