"""The record of one engine: how it implements a step, what it offers, and which switches it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shardwise.engines.profile import EngineProfile, StateBytes
from shardwise.layout import ZeroStage
from shardwise.optimizers import OptimizerName
from shardwise.recipe import Adapter, Offload, Precision, Recompute
from shardwise.schedules.table import Schedule

Axis = Literal["tp", "cp", "pp", "ep"]
ProgramChoice = Literal["recompute_layers", "sequence_parallel", "activation_offload", "dp_replicate", "pp", "ep"]
ActivationCopies = Literal["beside", "between", "none"]
"""How saved activations move to the host and back: on streams beside the computation, on its own stream between the
blocks, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine: how it implements a step, the choices it can run, and what its switches are."""

    profile: EngineProfile
    states: Mapping[Precision, StateBytes]
    """Bytes per parameter of every model state."""
    pipelined_states: Mapping[Precision, StateBytes] = field(default_factory=dict)
    """Bytes per parameter in a pipeline below ZeRO 2; empty where they are those of ``states``."""
    unit_states: Mapping[Precision, StateBytes] = field(default_factory=dict)
    """Bytes per parameter where units of FSDP are gathered and reduced; empty where they are those of ``states``."""
    source: str

    axes: frozenset[Axis]
    """Kinds of model parallelism."""
    zero_stages: frozenset[ZeroStage]
    schedules: frozenset[Schedule]
    forked_schedules: frozenset[Schedule] = frozenset()
    """Schedules that exist in a fork of the engine, not in its main branch."""
    offloads: frozenset[Offload]
    activation_copies: ActivationCopies = "beside"
    planned_offloads: frozenset[Offload] = frozenset()
    """Offloads that are planned for it and exported to others, but that it does not run."""
    optimizers: frozenset[OptimizerName]
    precisions: frozenset[Precision]
    adapters: frozenset[Adapter]
    replicates_kv_heads: bool = False
    """Whether tp may exceed the key-value heads, each then held by several ranks."""
    default_zero_stage: ZeroStage
    """The ZeRO stage of a plan that shards data-parallel ranks and names none."""
    pipeline_zero_stage: ZeroStage | None = None
    """The default stage of a pipeline; ``None`` where it is ``default_zero_stage``."""
    host_zero_stage: ZeroStage | None = None
    """The default stage with parameters on the host; ``None`` where it is ``default_zero_stage``."""
    has_sequence_parallel: bool
    """Whether tensor parallelism divides norms and residuals along the sequence by default."""
    foreign_vendors: frozenset[str] = frozenset()
    """Makers of accelerators that it does not run on."""
    is_public: bool = True
    """Whether people can get it; reports alone are public of others."""
    compiles: bool = False
    """Whether a run that does not say compiles its blocks with torch.compile (torchtitan ``CompileConfig.enable``,
    Accelerate's dynamo plugin and DeepSpeed's ``compile`` are off; Megatron has none)."""

    runs_torch_pipelines: bool = False
    """Whether ``torch.distributed.pipelining`` runs its stages, each of them under FSDP2."""
    interleaves_in_rounds_of_pp: bool = False
    """Whether rounds of an interleaved schedule hold one micro-batch for every stage; torch's are as even as can be."""
    refuses_one_chunk: bool = False
    """Whether schedules that run in rounds are refused with one chunk a rank, also those that torch runs so."""
    names_replicas: bool = False
    """Whether data-parallel ranks that divide nothing are ``dp_replicate`` alone, and never ``dp_shard``."""
    lends_replicas: bool = False
    """Whether expert parallelism may borrow ranks of all replicas."""
    has_expert_tp: bool = False
    """Whether tensor parallelism inside experts has a degree of its own."""
    keeps_experts_whole: bool = False
    """Whether tensor parallelism leaves routed experts whole also where no expert parallelism divides them."""
    exchanges_heads: bool = False
    """Whether context parallelism exchanges stripes of the sequence for heads (Ulysses)."""
    optimizer_offload_stage: ZeroStage = 3
    """The lowest ZeRO stage in which optimizer states alone move to the host."""
    offloads_undivided: bool = False
    """Whether states move to the host in any ZeRO stage."""
    has_compile_switch: bool = True
    """Whether torch.compile can be turned on."""
    has_overlap_switch: bool = False
    """Whether reductions beside the backward pass can be turned on and off; torch's always are beside it."""
    has_optimizer_switch: bool = False
    """Whether the loop hands torch's AdamW its ``fused`` or leaves it out."""
    has_liger_kernels: bool = False
    """Whether Liger's kernels can stand for those of transformers' models."""
    has_async_tensor_parallel: bool = False
    """Whether collectives of sequence parallelism can run piece by piece under the products that need them."""
    has_deepep: bool = False
    """Whether tokens can travel to experts by DeepEP or HybridEP."""
    has_small_shards: bool = False
    """Whether parameters may stay divided over a smaller group after forward (``reshard_size``)."""
    has_prefetch_units: bool = False
    """Whether how many units are gathered ahead can be set."""
    always_defers_reductions: bool = False
    """Whether accumulated gradients are never reduced before the last micro-batch."""
    recomputes_modules: bool = False
    """Whether modules are recomputed by name, and activations kept in fewer bits."""
    recomputes: frozenset[Recompute] = frozenset(("none", "selective", "full"))
    """Kinds of recomputation that its own arguments ask for; a search tries no other unless it is asked for."""
    program_choices: frozenset[ProgramChoice] = frozenset()
    """Choices that none of its arguments makes, only a program of the user's own; a search leaves them alone unless
    they are asked for, so that what it recommends can be exported."""
    untried_pipeline_stages: frozenset[ZeroStage] = frozenset()
    """ZeRO stages that its arguments take beside a pipeline and nobody is known to run so; a search leaves them alone
    unless they are asked for."""
    narrow_moments: frozenset[OptimizerName] = frozenset()
    """Optimizers that keep moments in fewer bits and widen them while they step, where states are divided."""
    assumptions: tuple[str, ...] = ()
    """Sentences that every prediction for this engine states."""
    precision_notes: Mapping[Precision, str] = field(default_factory=dict)
    """A sentence for each precision whose name means something else to this engine."""
