"""Simulation in time: tasks on streams, and the order in which every pipeline schedule runs its micro-batches."""
