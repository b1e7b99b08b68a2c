"""Structured findings: why a plan fits or not, what dominates, what to change, which strategy when."""
