"""Field names that are pure numbers: degrees, counts in the field's own words, indices and positions."""

DEGREES = {"tp", "cp", "pp", "vpp", "ep", "dp_replicate", "dp_shard", "expert_tp", "zero_stage", "group_size"}
MODEL_SHAPE = {
    "conv_kernel",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "kv_lora_rank",
    "max_position_embeddings",
    "moe_intermediate_size",
    "q_lora_rank",
    "qk_rope_head_dim",
    "shared_intermediate_size",
    "sliding_window",
    "split_limit",
    "state_size",
    "time_step_rank",
    "v_head_dim",
    "version",
    "vocab_size",
}
RECIPE = {"seq_len", "micro_batch_size", "global_batch_size", "recompute_layers", "lora_rank", "loss_chunks"}
COUNTS = {"count", "gpus_per_node", "scale_up_domain_gpus", "sm_count", "layers", "in_flight_micro_batches"}
POSITIONS = {"index", "stage", "rank", "born", "dies", "m", "n", "k", "low", "high", "device_index"}

PURE_NUMBERS = DEGREES | MODEL_SHAPE | RECIPE | COUNTS | POSITIONS
