"""From the tables that sources publish to plans: ``python -m benchmarks.published`` writes what ``validate`` reads."""
