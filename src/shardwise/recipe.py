"""What is trained: sequence length, batch, precision, optimizer, recomputation and offload."""

from dataclasses import dataclass
from typing import Literal

from shardwise.optimizers import DEFAULT_OPTIMIZER, OptimizerName

Precision = Literal["fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed"]
Recompute = Literal["none", "selective", "full"]
Offload = Literal["none", "optimizer", "parameters", "nvme"]
Attention = Literal["flash", "eager"]
Adapter = Literal["none", "lora", "qlora"]
LoraTargets = Literal["attention", "all-linear", "qv"]
ReduceDtype = Literal["fp32", "bf16"]
MomentDtype = Literal["fp32", "bf16"]
RecomputeModule = Literal["core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "moe", "shared_experts"]
"""Parts of a block that Megatron-LM recomputes by themselves (``--recompute-modules``)."""
Convention = Literal["engine", "seed"]

MAX_SEQ_LEN = 2**27
"""Tokens; ten times the longest context that was ever announced."""

MAX_ROUTING_IMBALANCE_RATIO = 1024.0
"""All tokens on one of 1,024 ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training step's worth of choices that do not depend on the cluster."""

    seq_len: int
    micro_batch_size: int = 1
    """Sequences one data-parallel rank runs at once."""
    global_batch_size: int | None = None
    """Sequences per optimizer step; ``None`` means one micro-batch per data-parallel rank (times pp when pipelined)."""
    precision: Precision = "bf16-mixed"
    optimizer: OptimizerName = DEFAULT_OPTIMIZER
    recompute: Recompute = "none"
    recompute_layers: int | None = None
    """Recompute only this many layers of each stage; ``None`` means all of them."""
    recompute_modules: tuple[RecomputeModule, ...] | None = None
    """What selective recomputation runs again of every block; ``None`` is what the engine does."""
    activation_func_fp8_input_store: bool | None = None
    """What SwiGLU reads waits for backward in 8 bits (Megatron's name for it); ``None`` is what the engine does: no."""
    offload: Offload = "none"
    attention: Attention = "flash"
    compile: bool = True
    activation_offload: bool = False
    tokens: float | None = None
    """Tokens of the whole run, for cost."""
    adapter: Adapter = "none"
    lora_rank: int = 16
    lora_targets: LoraTargets = "attention"
    loss_chunks: int = 1
    """Pieces the cross-entropy is computed in, so that only one piece of the logits is alive."""
    fused_loss: bool | None = None
    """Cross-entropy in one kernel that makes no fp32 copies of the logits; ``None`` means what the engine does."""
    fused_optimizer: bool | None = None
    """AdamW in torch's one kernel, or in its many that make temporaries (``foreach``); ``None`` means what the engine
    does."""
    overlap_grad_reduce: bool | None = None
    """Gradients in buckets are reduced under backward (and updated weights gathered under forward); ``None`` means what
    the engine does. FSDP and ZeRO-3 reduce block by block either way."""
    blocking_launches: bool = False
    """Every kernel ends before the host goes on (``CUDA_LAUNCH_BLOCKING=1``, a remedy for runs that hang): host and
    device take turns, and nothing runs beside anything else."""
    clip_gradients: bool = True
    """Gradients are scaled down to a norm over the whole model, which every rank waits for before it updates."""
    broadcast_weights: bool | None = None
    """Ranks that divide the optimizer send what they updated by turns, whole tensors each, instead of gathering equal
    parts at once: InternEvo's ZeRO 1, for which DeepSpeed's stands; ``None`` means what the engine does."""
    reduce_dtype: ReduceDtype | None = None
    """What data-parallel ranks reduce gradients in; ``None`` means what the engine does at the precision."""
    moment_dtype: MomentDtype | None = None
    """What the optimizer keeps its moments in (Megatron's ``exp_avg_dtype`` and ``exp_avg_sq_dtype``); ``None`` means
    what the engine does at the precision."""
    lora_dropout_fraction: float = 0.0
    """Dropout before every adapter; above 0 each adapted product keeps its dropped-out input and a mask."""
    mean_document_len: int | None = None
    """Tokens of the documents packed into one sequence, which attend within themselves; ``None`` is one document."""
    routing_imbalance_ratio: float = 1.0
    """Token copies that the fullest expert-parallel rank receives over the mean; 1 is even routing. All ranks wait for
    it. Counted in time; memory is that of even routing."""
    convention: Convention = "engine"
    """``seed`` counts 2 + 2 + 8 bytes per parameter and the seeds' four tensors per layer, exactly."""

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens of one micro-batch before context or sequence parallelism divides them."""
        return self.seq_len * self.micro_batch_size

    @property
    def document_len(self) -> int:
        """Tokens that attend to each other: those of a packed document, otherwise the whole sequence."""
        return self.seq_len if self.mean_document_len is None else min(self.seq_len, self.mean_document_len)
