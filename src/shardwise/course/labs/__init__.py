"""Labs: a question about distributed training, a few real runs that differ in one thing, and what comes out."""

from shardwise.course.labs.catalogue import LABS, find_lab
from shardwise.course.labs.report import lab_lesson
from shardwise.course.labs.run import run_lab
from shardwise.course.labs.settings import LabSetting, lab_setting
from shardwise.course.labs.trial import Lab, Outcome, Trial

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
