"""How the work is divided: the degrees of every kind of parallelism, and the groups they imply."""

from dataclasses import dataclass
from typing import Literal

from shardwise.columns import is_among, most
from shardwise.schedules.table import DEFAULT_SCHEDULE, TWICE_HELD_SCHEDULES, Schedule

ZeroStage = Literal[0, 1, 2, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of parallelism. ``world_size = dp_replicate * dp_shard * tp * cp * pp``; ep borrows data ranks."""

    dp_replicate: int = 1
    dp_shard: int = 1
    zero_stage: ZeroStage = 3
    """What dp_shard divides: 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters."""
    tp: int = 1
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    schedule: Schedule = DEFAULT_SCHEDULE
    sequence_parallel: bool = False
    """Norms and residuals divided over tp along the sequence (Megatron)."""
    expert_tp: int = 1
    """Tensor parallelism inside each routed expert (Megatron's etp)."""
    stage_layers: tuple[int, ...] | None = None
    """Layers of each pipeline stage when they are not as even as possible; sums to the model's layers."""
    reshard_after_forward: bool = True
    """FSDP2: free gathered parameters after forward and gather them again for backward."""
    reshard_size: int | None = None
    """After forward keep parameters divided over this many neighbouring ranks instead of all, so that backward gathers
    among those alone: torch's whole number for ``reshard_after_forward``, ZeRO++'s ``zero_hpz_partition_size``."""
    prefetch_units: int = 1
    """FSDP2: gathers issued ahead of the unit that computes, 0 for none (``set_modules_to_forward_prefetch`` and to
    backward)."""
    async_tensor_parallel: bool = False
    """Collectives of sequence parallelism run piece by piece under the products that need them (torch's
    ``_micro_pipeline_tp``, Megatron's ``--tp-comm-overlap``)."""
    defer_grad_reduce: bool | None = None
    """Gradient accumulation reduces in the last micro-batch only (``no_sync``); ``None`` is what the engine does."""
    spread_vocabulary: bool | None = None
    """Data-parallel ranks divide token table and head by row and never gather them: tokens travel instead. ``None`` is
    what the engine does: our own trainer, where a micro-batch of all ranks has no more tokens than the vocabulary."""
    exchange_gradients: bool | None = None
    """Gradients travel to the rank that keeps them in the dtype they were made in and are added up there in fp32.
    ``None`` is what the engine does: our own trainer, within one domain of fast links."""

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.dp_replicate * self.dp_shard * self.tp * self.cp * self.pp

    @property
    def data_parallel_size(self) -> int:
        """Ranks that read different sequences."""
        return self.dp_replicate * self.dp_shard

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
        return most(1, self.dp_shard * self.cp * self.tp // (self.ep * self.expert_tp)) * self.model_copies
