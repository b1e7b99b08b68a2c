"""Training steps re-enacted in numpy: many simulated ranks, the real mathematics, every byte counted.

Each rank runs a program that reads like the code of one real rank. The programs follow the same plan, groups and
weights as the inventory, so that what they communicate and hold can be laid beside its prediction.
"""
