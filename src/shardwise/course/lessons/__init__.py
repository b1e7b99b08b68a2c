"""The simulators behind ``shardwise simulate``: each file builds one lesson from computed numbers.

``from shardwise.course.lessons import make_lessons`` is all a surface needs.
"""

from shardwise.course.lessons.catalogue import LESSONS, LessonEntry, find_lesson, make_lessons
from shardwise.course.lessons.request import LessonRequest

__all__ = ["LESSONS", "LessonEntry", "LessonRequest", "find_lesson", "make_lessons"]
