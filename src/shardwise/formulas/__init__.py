"""Published closed forms: one function per formula, one physical subject per file, each with its source.

They are the second road in tests, the fast path of the search, and what the lessons show. They know nothing of plans:
arguments are plain numbers, and two conventions of the same quantity are two functions.
"""
