"""Labs: a question about distributed training, a few real runs that differ in one thing, and what comes out."""

from shardwise.labs.catalogue import LABS, find_lab
from shardwise.labs.report import lab_lesson
from shardwise.labs.run import run_lab
from shardwise.labs.settings import LabSetting, lab_setting
from shardwise.labs.trial import Lab, Outcome, Trial

__all__ = [
    "LABS",
    "Lab",
    "LabSetting",
    "Outcome",
    "Trial",
    "find_lab",
    "lab_lesson",
    "lab_setting",
    "run_lab",
]
