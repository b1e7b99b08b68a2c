"""What is trained: sequence length, batch, precision, optimizer, recomputation and offload."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from shardwise.attention_kernels import ATTENTION_KERNELS, AttentionKernel
from shardwise.fields import ABOUT, ENGINES_OWN, MANY_LAYERS, Field, Needs, plan_field
from shardwise.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS, OptimizerName

Precision = Literal["fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed"]
Recompute = Literal["none", "selective", "full"]
Offload = Literal["none", "optimizer", "parameters", "nvme"]
Attention = Literal["flash", "eager"]
Adapter = Literal["none", "lora", "qlora"]
LoraTargets: TypeAlias = str
"""``attention``, ``all-linear`` or ``qv``, or matrices of a block by name or pattern, with commas between them."""
ReduceDtype = Literal["fp32", "bf16"]
MomentDtype = Literal["fp32", "bf16"]
RecomputeModule = Literal["core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "moe", "shared_experts"]
"""Parts of a block that Megatron-LM recomputes by themselves (``--recompute-modules``)."""
FusedLossKernel = Literal["te", "native"]
StateDict = Literal["sharded", "full", "full-on-host"]
Convention = Literal["engine", "seed"]

MAX_SEQ_LEN = 2**27
"""Tokens; ten times the longest context that was ever announced."""

MAX_ROUTING_IMBALANCE_RATIO = 1024.0
"""All tokens on one of 1,024 ranks."""

MAX_TOKENS = 1e18
DEFAULT_SEQ_LEN = 8192
"""Tokens per sequence where MODEL and CLUSTER are given without ``--seq-len``."""

ADAPTER_SEQ_LEN = 2048
"""Tokens per sequence where adapters are trained and nobody says how long; their recipes cut examples off there
(LLaMA-Factory, examples/train_qlora/llama3_lora_sft_otfq.yaml at 24073f5, 2025)."""

ASKED = ("seq_len", "precision", "optimizer", "compile", "attention", "attention_kernel")
"""Fields of a recipe that a question is made of, and that have a default."""

NEEDS_ADAPTER = Needs(name="adapter", value="lora", words="without --adapter")
NEEDS_RECOMPUTE = Needs(name="recompute", value="full", words="where nothing is recomputed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One training step's worth of choices that do not depend on the cluster."""

    seq_len: int = field(
        metadata={
            ABOUT: Field(
                "tokens per sequence",
                is_length=True,
                left_out=f"{DEFAULT_SEQ_LEN}, {ADAPTER_SEQ_LEN} for adapters, or a table of positions' fewer",
                highest=MAX_SEQ_LEN,
                example="4096",
                synonyms=(
                    "seq_length",
                    "sequence_length",
                    "max_seq_len",
                    "context_length",
                    "max_context_length",
                    "seqlen",
                ),
            )
        }
    )
    micro_batch_size: int = plan_field(
        1,
        "sequences one rank runs at once",
        synonyms=("micro_batch", "mbs", "batch_size", "train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    )
    global_batch_size: int | None = plan_field(
        None, "sequences per optimizer step", highest=2**30, synonyms=("gbs", "train_batch_size")
    )
    """``None`` means one micro-batch per data-parallel rank (times pp when pipelined)."""
    precision: Precision = plan_field("bf16-mixed", "number formats", synonyms=("dtype", "mixed_precision"))
    optimizer: OptimizerName = plan_field(
        DEFAULT_OPTIMIZER, "what updates the weights", choices=tuple(OPTIMIZERS), synonyms=("optim",)
    )
    recompute: Recompute = plan_field(
        "none",
        "activation checkpointing",
        synonyms=("activation_checkpointing", "gradient_checkpointing", "recompute_granularity", "ac", "act_ckpt"),
    )
    recompute_layers: int | None = plan_field(
        None,
        "recompute only N layers of each stage",
        left_out="all",
        highest=MANY_LAYERS,
        synonyms=("recompute_num_layers",),
        instead_of_zero="recompute=none",
        needs=NEEDS_RECOMPUTE,
    )
    recompute_modules: tuple[RecomputeModule, ...] | None = plan_field(
        None,
        "what selective recomputation repeats of every block",
        left_out=ENGINES_OWN,
        offered_by="megatron",
        example="[layernorm, mla_up_proj]",
        synonyms=("modules", "recompute_module", "selective_modules"),
    )
    activation_func_fp8_input_store: bool | None = plan_field(
        None,
        "keep what SwiGLU reads in 8 bits",
        left_out=ENGINES_OWN,
        offered_by="megatron",
        synonyms=("fp8_input_store", "fp8_activations"),
    )
    """The name is Megatron's."""
    offload: Offload = plan_field("none", "states kept on the host", synonyms=("cpu_offload", "offload_optimizer"))
    attention: Attention = plan_field(
        "flash", "fused attention or written-out scores", synonyms=("attn_implementation",)
    )
    attention_kernel: AttentionKernel | None = plan_field(
        None,
        "the kernel of fused attention",
        left_out=ENGINES_OWN,
        choices=tuple(ATTENTION_KERNELS),
        example="cudnn",
        synonyms=("attention_backend", "sdpa_backend", "attn_backend", "sdp_kernel"),
    )
    """What an engine runs by itself depends on the architecture and on the engine's date; older runs say theirs."""
    compile: bool = plan_field(
        True, "fuse elementwise kernels", left_out="the engine's; on for native", synonyms=("torch_compile",)
    )
    activation_offload: bool = plan_field(False, "keep saved activations on the host", synonyms=("cpu_offloading",))
    expandable_segments: bool = plan_field(
        False,
        "torch's allocator joins what it freed (PYTORCH_ALLOC_CONF)",
        synonyms=("pytorch_alloc_conf", "pytorch_cuda_alloc_conf"),
    )
    """It changes what is reserved. torchtitan's ``run_train.sh`` sets it since a5e57e4 (2024-10-22), and so does the
    launcher of our trainer."""
    load_state_dict: StateDict = plan_field(
        "sharded", "how ranks load weights: their part alone, or all on the GPU or host first"
    )
    """A whole model on every host process is what ``from_pretrained`` does before FSDP divides it."""
    save_state_dict: StateDict = plan_field(
        "sharded",
        "how a checkpoint is gathered: not, or whole on every GPU or one host",
        synonyms=("state_dict_type", "fsdp_state_dict_type"),
    )
    """Whole on a host is Accelerate's FULL_STATE_DICT, which gathers optimizer states there as well."""
    tokens: float | None = plan_field(
        None,
        "tokens of the whole run, such as 15T: adds the cost",
        highest=MAX_TOKENS,
        example="1.0e12",
        synonyms=("num_tokens", "total_tokens", "train_tokens"),
    )
    adapter: Adapter = plan_field("none", "train low-rank adapters", synonyms=("peft", "lora"))
    lora_rank: int = plan_field(
        16, "rank of the adapters", highest=MANY_LAYERS, synonyms=("lora_r", "rank", "r"), needs=NEEDS_ADAPTER
    )
    lora_targets: LoraTargets = plan_field(
        "attention",
        "matrices that get an adapter: attention, all-linear, qv, names or patterns, such as q_proj,mlp.*",
        example="attention",
        synonyms=("target_modules",),
        needs=NEEDS_ADAPTER,
    )
    lora_alpha: float | None = plan_field(
        None,
        "what adapters are multiplied with, over the rank",
        left_out="twice the rank",
        lowest=0.001,
        highest=MANY_LAYERS,
        example="32",
        needs=NEEDS_ADAPTER,
    )
    use_rslora: bool | None = plan_field(
        None, "lora_alpha over the root of the rank", left_out="off", synonyms=("rslora",), needs=NEEDS_ADAPTER
    )
    """The name is peft's. Source: Kalajdzievski 2023, arXiv:2312.03732."""
    loss_chunks: int = plan_field(1, "pieces of the loss", highest=MANY_LAYERS, synonyms=("chunked_loss",))
    """The cross-entropy is computed piece by piece, so that only one piece of the logits is alive."""
    fused_loss: bool | None = plan_field(
        None, "never store fp32 logits", left_out=ENGINES_OWN, synonyms=("fused_cross_entropy",)
    )
    """The cross-entropy is one kernel."""
    fused_loss_kernel: FusedLossKernel | None = plan_field(
        None,
        "which of Megatron's kernels fused_loss is",
        left_out="te",
        offered_by="megatron",
        synonyms=("cross_entropy_fusion_impl",),
    )
    """``te`` is Transformer Engine's, which writes the gradient over the logits. ``native`` is Megatron's own, compiled
    by torch, and what Megatron-LM runs for ``--cross-entropy-loss-fusion`` alone: it keeps an fp32 copy of the logits
    more than the loss that is not fused."""
    liger_kernels: bool = plan_field(
        False,
        "norms, rotary, gated activation, head with loss by Liger",
        offered_by="accelerate, fsdp2, fsdp1, deepspeed",
        synonyms=("liger", "use_liger_kernel", "enable_liger_kernel", "use_liger"),
    )
    """Liger-Kernel's replacements for what transformers spells out (``apply_liger_kernel_to_llama`` and its like)."""
    fused_optimizer: bool | None = plan_field(
        None,
        "AdamW in one kernel",
        left_out=ENGINES_OWN,
        offered_by="torchtitan, fsdp2, fsdp1, accelerate",
        synonyms=("fused_adamw", "optimizer_fused", "adamw_torch_fused"),
    )
    """The other way is torch's many kernels that make temporaries (``foreach``)."""
    wrap_ends: bool | None = plan_field(
        None,
        "token table and head are FSDP units of their own",
        left_out=ENGINES_OWN,
        offered_by="torchtitan, fsdp2, accelerate",
    )
    """Otherwise they are one root unit. torchtitan wraps them since 83e6941 (2025-07-28); older runs say false."""
    repeat_kv_heads: bool = plan_field(
        False,
        "keys and values are repeated to the heads of queries before attention",
        offered_by="torchtitan, fsdp2, accelerate",
        synonyms=("repeat_kv",),
    )
    """Grouped heads whose kernel is not told of groups: torchtitan until ff0829c (2026-01-27). Context parallelism then
    sends as many heads of keys and values as of queries."""
    overlap_grad_reduce: bool | None = plan_field(
        None,
        "reduce buckets of gradients under backward",
        left_out=ENGINES_OWN,
        synonyms=("overlap_comm", "overlap_communication"),
    )
    """Updated weights are gathered under forward, too. FSDP and ZeRO-3 reduce block by block either way."""
    blocking_launches: bool = plan_field(
        False,
        "host and device take turns, as with CUDA_LAUNCH_BLOCKING=1",
        synonyms=("cuda_launch_blocking", "launch_blocking"),
    )
    """A remedy for runs that hang: every kernel ends before the host goes on, and nothing runs beside anything else."""
    clip_gradients: bool = plan_field(
        True, "wait for the norm of all gradients before the update", synonyms=("gradient_clipping", "grad_clip")
    )
    """Gradients are scaled down to a norm over the whole model."""
    broadcast_weights: bool | None = plan_field(
        None,
        "send updated tensors from owner after owner, as InternEvo does",
        left_out="gather them",
        offered_by="deepspeed",
        synonyms=("broadcast_params", "broadcast_parameters"),
    )
    """Ranks that divide the optimizer send whole tensors by turns instead of gathering equal parts at once: InternEvo's
    ZeRO 1, for which DeepSpeed's stands."""
    reduce_dtype: ReduceDtype | None = plan_field(
        None,
        "what gradients are reduced in",
        left_out=ENGINES_OWN,
        synonyms=("grad_reduce_in_bf16", "mixed_precision_reduce", "communication_data_type"),
    )
    """What an engine does by itself depends on the precision, here and for ``moment_dtype``."""
    moment_dtype: MomentDtype | None = plan_field(
        None,
        "the optimizer's moments",
        left_out=ENGINES_OWN,
        offered_by="megatron",
        synonyms=("exp_avg_dtype", "exp_avg_sq_dtype", "optimizer_dtype"),
    )
    lora_dropout_fraction: float = plan_field(
        0.0,
        "dropout before the adapters",
        lowest=0,
        highest=1,
        example="0.05",
        synonyms=("lora_dropout",),
        needs=NEEDS_ADAPTER,
    )
    """Above 0 each adapted product keeps its dropped-out input and a mask."""
    mean_document_len: int | None = plan_field(
        None,
        "tokens of the documents packed into a sequence",
        left_out="one document",
        highest=MAX_SEQ_LEN,
        example="1024",
        synonyms=("document_len", "packed_len", "mean_doc_len"),
    )
    """Tokens attend within their document."""
    routing_imbalance_ratio: float | None = plan_field(
        None,
        "tokens of the fullest rank of experts over the mean, 1 if balanced by force",
        left_out="even, natural beside adapters",
        highest=MAX_ROUTING_IMBALANCE_RATIO,
        example="1.3",
        synonyms=("routing_imbalance", "expert_imbalance", "moe_imbalance"),
    )
    """Counts the token copies that an expert-parallel rank receives. All ranks wait for the fullest. It changes time;
    memory is that of even routing."""
    convention: Convention = plan_field("engine", "'seed' counts the textbook 2+2+8 bytes per parameter")
    """``seed`` also counts the seeds' four tensors per layer, exactly."""

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens of one micro-batch before context or sequence parallelism divides them."""
        return self.seq_len * self.micro_batch_size

    @property
    def adapter_scale_ratio(self) -> float:
        """What the product of an adapter's two factors is multiplied with.

        Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; Kalajdzievski 2023, arXiv:2312.03732 (rsLoRA).
        """
        alpha = 2.0 * self.lora_rank if self.lora_alpha is None else self.lora_alpha
        return alpha / (self.lora_rank**0.5 if self.use_rslora else self.lora_rank)

    @property
    def writes_scores(self) -> bool:
        """Whether the scores of attention are written out: eager attention, or SDPA's math kernel."""
        return self.attention == "eager" or self.attention_kernel == "math"

    @property
    def document_len(self) -> int:
        """Tokens that attend to each other: those of a packed document, otherwise the whole sequence."""
        return self.seq_len if self.mean_document_len is None else min(self.seq_len, self.mean_document_len)
