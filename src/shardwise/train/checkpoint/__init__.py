"""Checkpoints: written by all ranks, visible only when durable, loaded under any layout.

``folder`` knows which checkpoints exist and needs no torch; the rest runs in the workers.
"""
