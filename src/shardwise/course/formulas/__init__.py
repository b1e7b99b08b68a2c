"""Published closed forms that the course teaches and tests compare with; no prediction needs them.

They keep the rules of :mod:`shardwise.formulas`: plain numbers as arguments, one function for each convention.
"""
