"""Published closed forms that the course teaches, or that tests compare our own numbers with; no prediction needs them.

They keep the rules of :mod:`shardwise.formulas`: plain numbers as arguments, one function for each convention.
"""
