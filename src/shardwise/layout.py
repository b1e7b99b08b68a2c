"""How the work is divided: the degrees of every kind of parallelism, and the groups they imply."""

from dataclasses import dataclass
from typing import Literal

from shardwise.columns import is_among, most
from shardwise.fields import ENGINES_OWN, MANY_LAYERS, plan_field
from shardwise.schedules.table import DEFAULT_SCHEDULE, SCHEDULES, TWICE_HELD_SCHEDULES, Schedule

ZeroStage = Literal[0, 1, 2, 3]
ExpertExchange = Literal["alltoall", "deepep"]
REST = -1
"""``dp_shard: -1`` in a plan file asks for what is left of the world, as in torchtitan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of parallelism. ``world_size = dp_replicate * dp_shard * tp * cp * pp``; ep borrows data ranks."""

    dp_replicate: int = plan_field(
        1,
        "copies of the model that only average gradients (HSDP)",
        left_out="",
        synonyms=("data_parallel_replicate_degree", "dp_replicate_size", "replicate", "ddp", "hsdp"),
    )
    dp_shard: int = plan_field(
        1,
        "data-parallel ranks that divide model states (see --zero-stage)",
        left_out="",
        rest=REST,
        synonyms=("dp", "fsdp", "data_parallel", "data_parallel_shard_degree", "dp_shard_size", "data_parallel_size"),
    )
    zero_stage: ZeroStage = plan_field(
        3,
        "what dp_shard divides",
        synonyms=("zero", "stage", "sharding_strategy", "use_distributed_optimizer", "distributed_optimizer"),
    )
    """0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters."""
    tp: int = plan_field(
        1,
        "tensor parallelism: each matrix divided",
        left_out="",
        synonyms=(
            "tensor_parallel",
            "tensor_parallel_size",
            "tensor_parallel_degree",
            "tensor_model_parallel_size",
            "tp_size",
            "mp",
        ),
    )
    cp: int = plan_field(
        1,
        "context parallelism: each sequence divided",
        left_out="",
        synonyms=("context_parallel", "context_parallel_degree", "context_parallel_size"),
    )
    pp: int = plan_field(
        1,
        "pipeline stages: the layers divided",
        left_out="",
        synonyms=(
            "pipeline_parallel",
            "pipeline_parallel_size",
            "pipeline_parallel_degree",
            "pipeline_model_parallel_size",
            "pp_size",
        ),
    )
    vpp: int = plan_field(
        1,
        "model chunks per stage of an interleaved pipeline",
        left_out="",
        synonyms=("vp", "virtual_pipeline_model_parallel_size", "interleave"),
    )
    num_microbatches_per_round: int | None = plan_field(
        None,
        "micro-batches that an interleaved stage runs before its next chunk",
        left_out="pp with megatron",
        highest=4096,
        offered_by="megatron",
        example="5",
        synonyms=("microbatch_group_size_per_vp_stage", "microbatch_group_size_per_virtual_pipeline_stage"),
    )
    """Megatron's ``--microbatch-group-size-per-virtual-pipeline-stage``: from pp to all of the step's micro-batches."""
    ep: int = plan_field(
        1,
        "expert parallelism: routed experts divided",
        left_out="",
        synonyms=("expert_parallel", "expert_parallel_size", "expert_parallel_degree", "expert_model_parallel_size"),
    )
    schedule: Schedule = plan_field(
        DEFAULT_SCHEDULE,
        "pipeline schedule",
        offered_by="gpipe, zb-h1, zbv and dualpipev with native and torchtitan, interleaved also with megatron, "
        "zb-h1, zb-h2 and zbv with its fork, 1f1b with these and deepspeed, dualpipe and zb-h1 with hai-llm",
        choices=SCHEDULES,
        synonyms=("pipeline_schedule", "pp_schedule"),
    )
    sequence_parallel: bool = plan_field(False, "divide norms over tp", synonyms=("sp", "enable_sequence_parallel"))
    """Norms and residuals are divided along the sequence (Megatron)."""
    expert_tp: int = plan_field(
        1, "tensor parallelism inside each expert", left_out="", synonyms=("etp", "expert_tensor_parallel_size")
    )
    stage_layers: tuple[int, ...] | None = plan_field(
        None,
        "layers of each pipeline stage",
        left_out="even",
        highest=MANY_LAYERS,
        synonyms=("pipeline_layout", "layers_per_stage"),
    )
    """They sum to the model's layers."""
    reshard_after_forward: bool = plan_field(
        True, "free gathered parameters after forward", synonyms=("fsdp_reshard_after_forward",)
    )
    """FSDP2 gathers them again for backward."""
    reshard_size: int | None = plan_field(
        None, "ranks that hold the parameters between", left_out="all", synonyms=("zero_hpz_partition_size",)
    )
    """After forward keep parameters divided over this many neighbouring ranks instead of all, so that backward gathers
    among those alone: torch's whole number for ``reshard_after_forward``, ZeRO++'s ``zero_hpz_partition_size``."""
    prefetch_units: int = plan_field(
        1,
        "FSDP2 units gathered ahead, 0 for none",
        lowest=0,
        highest=64,
        example="2",
        synonyms=("forward_prefetch", "prefetch"),
    )
    """Ahead of the unit that computes (``set_modules_to_forward_prefetch`` and to backward)."""
    async_tensor_parallel: bool = plan_field(
        False,
        "tensor-parallel collectives under their products",
        synonyms=("async_tp", "enable_async_tensor_parallel", "tp_comm_overlap"),
    )
    """Collectives of sequence parallelism run piece by piece under the products that need them (torch's
    ``_micro_pipeline_tp``, Megatron's ``--tp-comm-overlap``)."""
    expert_exchange: ExpertExchange | None = plan_field(
        None,
        "how copies of tokens travel to experts",
        left_out=ENGINES_OWN,
        offered_by="deepep with megatron and torchtitan",
        example="deepep",
        synonyms=("moe_token_dispatcher_type", "expert_parallel_comm_backend", "token_dispatcher", "moe_dispatcher"),
    )
    """``alltoall`` sends one copy for every expert, by NCCL, after the ranks told each other how many. ``deepep`` is
    DeepEP or HybridEP, whose kernels send a token once to every host and put rows in order on the way."""
    defer_grad_reduce: bool | None = plan_field(
        None, "reduce in the last micro-batch only", left_out=ENGINES_OWN, synonyms=("no_sync",)
    )
    """Gradient accumulation without communication (``no_sync``)."""
    spread_vocabulary: bool | None = plan_field(
        None,
        "divide token table and head over dp_shard, so that tokens travel",
        left_out=ENGINES_OWN,
        offered_by="native",
        synonyms=("vocab_parallel", "vocabulary_parallel"),
    )
    """Data-parallel ranks divide both by row and never gather them. ``None`` is what the engine does: our own trainer,
    where a micro-batch of all ranks has no more tokens than the vocabulary."""
    exchange_gradients: bool | None = plan_field(
        None,
        "gradients travel in bf16 and add up in fp32",
        left_out=ENGINES_OWN,
        offered_by="native",
        synonyms=("all_to_all_reduce",),
    )
    """Gradients travel to the rank that keeps them in the dtype they were made in and are added up there. ``None`` is
    what the engine does: our own trainer, within one domain of fast links."""

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.dp_replicate * self.dp_shard * self.tp * self.cp * self.pp

    @property
    def data_parallel_size(self) -> int:
        """Ranks that read different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def stage_replica_size(self) -> int:
        """Ranks that hold one replica of a pipeline stage, among which routed experts may be spread."""
        return self.dp_shard * self.cp * self.tp

    @property
    def model_copies(self) -> int:
        """Copies of the model in one pipeline: DualPipe's ranks hold a stage of each of two that run both ways."""
        return 1 + (is_among(self.schedule, TWICE_HELD_SCHEDULES) & (self.pp > 1))

    @property
    def state_shard_size(self) -> int:
        """Ranks that dense model states are divided over when the ZeRO stage divides them: dp_shard * cp.

        Both ranks that hold a stage under DualPipe are among them.

        Source: torchtitan ``distributed/parallel_dims.py`` (FSDP spans dp_shard and cp); Megatron's distributed
        optimizer does the same (``get_data_parallel_group(with_context_parallel=True)``).
        """
        return self.dp_shard * self.cp * self.model_copies

    @property
    def expert_state_shard_size(self) -> int:
        """Ranks that one routed expert's states are divided over: tp * cp * dp_shard over ep * etp."""
        return most(1, self.stage_replica_size // (self.ep * self.expert_tp)) * self.model_copies
