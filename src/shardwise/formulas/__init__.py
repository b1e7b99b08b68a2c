"""Published closed forms: one function per formula, one physical subject per file, each with its source.

Predictions call them, and tests compare with them. They know nothing of plans: arguments are plain numbers, and two
conventions of the same quantity are two functions. Formulas that no prediction needs are in the course.
"""
