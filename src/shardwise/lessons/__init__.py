"""The simulators behind ``shardwise simulate``: each file builds one lesson from computed numbers.

``from shardwise.lessons import make_lessons`` is all a surface needs.
"""

from shardwise.lessons.catalogue import LESSONS, LessonEntry, find_lesson, make_lessons
from shardwise.lessons.request import LessonRequest

__all__ = ["LESSONS", "LessonEntry", "LessonRequest", "find_lesson", "make_lessons"]
