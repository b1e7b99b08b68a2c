"""Collective operations message by message: who sends which piece to whom, what every rank holds, how long it takes.

``moves`` is the program of an algorithm and the order it implies, ``values`` runs it on numbers, ``timing`` on a clock.
"""
