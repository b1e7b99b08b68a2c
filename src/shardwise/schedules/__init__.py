"""The exact order of forward and backward passes on every rank, for every pipeline schedule.

One file per family of orders. They are pure functions of the degrees: no durations, no clock. ``docs/schedules.md``
says against what each was checked and where it differs on purpose.
"""
