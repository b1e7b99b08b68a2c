"""Prediction beside measurement: a row per quantity, its signed error, and what the whole says about the machine."""
