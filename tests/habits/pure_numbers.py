"""Field names that are pure numbers: degrees, counts in the field's own words, indices and positions."""

DEGREES = {
    "cp",
    "data_parallel_size",
    "dp_replicate",
    "dp_shard",
    "ep",
    "expert_tp",
    "group_size",
    "pp",
    "ranks_per_domain",
    "ranks_per_host",
    "size",
    "stride",
    "tp",
    "vpp",
    "zero_stage",
}
MODEL_SHAPE = {
    "conv_kernel",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "kv_lora_rank",
    "max_position_embeddings",
    "moe_intermediate_size",
    "output_size",
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
    "window_period",
}
RECIPE = {
    "document_len",
    "global_batch_size",
    "lora_alpha",
    "lora_rank",
    "loss_chunks",
    "mean_document_len",
    "micro_batch_size",
    "recompute_layers",
    "seq_len",
}
COUNTS = {
    "count",
    "prefetch_units",
    "ranks",
    "reshard_size",
    "elements",
    "first_elements",
    "last_elements",
    "failures_per_node_day",
    "gpus_per_node",
    "groups",
    "in_features",
    "in_flight_micro_batches",
    "layers",
    "layouts_considered",
    "layouts_evaluated",
    "layouts_feasible",
    "layouts_invalid",
    "layouts_predicted",
    "layouts_slower",
    "layouts_too_big",
    "model_copies",
    "out_features",
    "pod_gpus",
    "rounds",
    "rows",
    "scale_up_domain_gpus",
    "sequence_shards",
    "sequences",
    "sm_count",
}
POSITIONS = {
    "allocated",
    "first_use",
    "chunk",
    "device_index",
    "event_index",
    "line_number",
    "stream_id",
    "freed",
    "last_use",
    "high",
    "index",
    "k",
    "low",
    "m",
    "micro_batch",
    "n",
    "position",
    "rank",
    "stage",
}

TRAINING = {
    "end_token",
    "epoch",
    "exit_code",
    "pid",
    "best_loss",
    "best_step",
    "every_steps",
    "first_step",
    "last_step",
    "first_loss",
    "format_version",
    "gradient_norm",
    "epsilon",
    "last_loss",
    "learning_rate",
    "loss",
    "next_position",
    "original_seq_len",
    "seed",
    "step",
    "router_aux_loss",
    "validation_loss",
    "validation_perplexity",
}

PURE_NUMBERS = DEGREES | MODEL_SHAPE | RECIPE | COUNTS | POSITIONS | TRAINING

PURE_FIELDS = {
    "Allocation.begin",  # event numbers
    "Allocation.end",
    "Guide.level",  # in the unit of the curve beside it
    "FrontPoint.x",
    "FrontPoint.y",
    "DecoderConfig.padding_row",  # a row of the token table
    "Check.difference",  # as its text says
    "Check.limit",
    "Claim.computed",  # its unit is the field beside it
    "Claim.said",
    "Claim.strength",  # a rank
    "Claim.value",  # in the unit of the field it names
    "Fact.value",  # as the file has it
    "Name.default",
    "Drawing.height",  # pixels
    "GanttBar.end",  # in the unit of its picture
    "GanttBar.start",
    "LayerMoment.layer",  # an index
    "LessonRequest.ranks_per_node",  # how many
    "LessonRequest.seed",  # of random numbers
    "Message.receiver",  # ranks
    "Message.sender",
    "PieceMessage.receiver",
    "PieceMessage.sender",
    "Moment.unit",  # an index
    "RoundState.round_index",
    "Setting.value",
    "AttentionRate.backward_half",  # a sequence length
    "AttentionRate.forward_half",  # a sequence length
    "Bar.capacity_cell",  # a character cell
    "Bar.amount",  # in the unit of its picture
    "RunCostComparison.high_amount",  # in the unit of its quantity
    "RunCostComparison.low_amount",
    "RunCostComparison.predicted_amount",
    "RunCostComparison.published_amount",
    "RunCostComparison.published_high_amount",
    "RunCostComparison.published_low_amount",
    "Division.number",  # a rank
    "Edit.effort",  # a class from 0 to 3
    "Field.default",  # a value, in the unit of the field it is about
    "Field.highest",
    "Field.lowest",
    "Field.rest",
    "OptimizerKind.moments",  # how many
    "Part.trained",  # elements
    "Part.trained_shard",  # elements
    "Place.block",  # an index
    "Judgement.reported_amount",  # in the unit beside it
    "Quantity.value",  # its unit is the field beside it
    "ReconciledRow.high_amount",  # in the unit beside it
    "ReconciledRow.low_amount",
    "ReconciledRow.measured_amount",
    "ReconciledRow.predicted_amount",
    "ScheduleKind.least_chunks",  # how many, as the two below
    "ScheduleKind.least_microbatches_per_rank",
    "ScheduleKind.steady_microbatches_per_rank",
    "RankedPlan.objective_value",  # in the unit of the objective
    "RankedPlan.ratio_to_best",
    "Rank.number",
    "Reenactment.copy_error",  # between weights
    "Request.from_rank",
    "Request.to_rank",
    "SeedPipeline.total_time",  # in layer units, as the lesson prints it
    "Space.offload",  # an index
    "StageProgram.loss_sum",  # in nats
    "StepParts.critical",  # an index
    "Mark.thread",  # the number of a thread
    "LoggedStep.step",  # counted by the trainer
    "RankProfile.rank",  # which of the job
    "RankTrace.rank",
    "RankTrace.world_size",  # how many ranks
    "TextStyle.width",  # characters
    "TimelineFlow.from_stage",  # indices
    "TimelineFlow.to_stage",
    "TraceProfile.straggler_rank",  # which of the job
    "TraceProfile.world_size",
    "TrainedElements.shard",  # elements
    "TrainedElements.whole",
    "Unit.run",  # an index
    "UnitStates.trainable_shard",  # elements
    "Work.launch_thread",
    "Work.stream",  # the number of a stream
    "ValidCandidates.considered",  # how many
    "VerifiedChange.effort",
}
"""Fields whose name is pure only in their record."""

INDEX_RECORDS = {"RunMoments", "Timeline"}
"""Records whose fields are all positions in the list of a step's moments."""
