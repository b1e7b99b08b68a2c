"""Predictions against published measurements: which rows can be repeated, and how far off we are on them."""
