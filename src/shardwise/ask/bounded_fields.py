"""The fields of a plan that a search varies."""

BOUNDED = (
    *("dp_replicate", "dp_shard", "zero_stage", "tp", "cp", "pp", "vpp", "ep", "expert_tp", "micro_batch_size"),
    *("schedule", "recompute", "offload", "stage_layers", "sequence_parallel", "reshard_after_forward"),
)
"""Fields of layout and recipe that ``plan`` pins or limits."""
