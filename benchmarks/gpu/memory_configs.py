"""Which runs are measured, in the order of their worth, and each one as a ``shardwise.plan/1`` record."""

from dataclasses import asdict, dataclass, replace
from typing import Literal

from decoder import Shape

HIDDEN_2048 = Shape(
    hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, head_dim=64
)
HIDDEN_4096 = Shape(
    hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128
)
HIDDEN_4096_MHA = Shape(
    hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_key_value_heads=32, head_dim=128
)
HIDDEN_8192 = Shape(
    hidden_size=8192, intermediate_size=28672, num_attention_heads=64, num_key_value_heads=8, head_dim=128
)
TINY = Shape(hidden_size=64, intermediate_size=128, num_attention_heads=8, num_key_value_heads=4, head_dim=8)

Kind = Literal["single", "fsdp2", "hsdp", "fsdp2-tp-sp", "ddp", "tp", "tp-sp", "pp"]
FSDP2_KINDS = ("fsdp2", "hsdp", "fsdp2-tp-sp")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRun:
    """One measured run: a plan plus the choices a plan leaves to its engine."""

    name: str
    kind: Kind = "single"
    shape: Shape = HIDDEN_4096
    num_hidden_layers: int = 4
    vocab_size: int = 32000
    seq_len: int = 4096
    micro_batch_size: int = 1
    num_microbatches: int = 1
    precision: str = "bf16-mixed"
    optimizer: str = "adamw"
    optimizer_kernel: str = "fused"
    recompute: str = "none"
    compile: bool = False
    attention: str = "flash"
    model: str = "decoder"
    """``decoder`` (decoder.py, torchtitan-like) or ``transformers`` (LlamaForCausalLM)."""
    reshard_after_forward: bool = True
    wrap: str = "blocks"
    """FSDP units: ``blocks`` = blocks + root; ``titan`` = embedding, blocks, [norm, head], root."""
    gradient_as_bucket_view: bool = False
    clip: bool = False
    offload: str = "none"
    adapter: str = "none"
    lora_targets: str = "attention"
    trace: bool = False
    """Also replay the allocation history and record what was alive at the peak."""


def plan_of(run: MemoryRun, *, gpu: str, world_size: int) -> dict[str, object]:
    """The run as a plan file."""
    data_parallel = {"fsdp2": world_size, "ddp": world_size, "hsdp": world_size, "fsdp2-tp-sp": world_size // 2}
    zero3 = {"zero_stage": 3, "reshard_after_forward": run.reshard_after_forward}
    layout: dict[str, object] = {
        "fsdp2": {"dp_shard": world_size, **zero3},
        "hsdp": {"dp_replicate": 2, "dp_shard": world_size // 2, **zero3},
        "fsdp2-tp-sp": {"dp_shard": world_size // 2, "tp": 2, "sequence_parallel": True, **zero3},
        "ddp": {"dp_replicate": world_size, "zero_stage": 0},
        "tp": {"tp": world_size},
        "tp-sp": {"tp": world_size, "sequence_parallel": True},
        "pp": {"pp": world_size, "schedule": "1f1b"},
        "single": {},
    }[run.kind]
    recipe = {
        "seq_len": run.seq_len,
        "micro_batch_size": run.micro_batch_size,
        "global_batch_size": run.micro_batch_size * run.num_microbatches * data_parallel.get(run.kind, 1),
        "precision": run.precision,
        "optimizer": run.optimizer,
        "recompute": run.recompute,
        "attention": run.attention,
        "compile": run.compile,
        "offload": run.offload,
        "adapter": run.adapter,
    }
    if run.adapter != "none":
        recipe |= {"lora_rank": 16, "lora_targets": run.lora_targets}
    return {
        "schema": "shardwise.plan/1",
        "model": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **asdict(run.shape)}
        | {
            "num_hidden_layers": run.num_hidden_layers,
            "vocab_size": run.vocab_size,
            "tie_word_embeddings": False,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
        },
        "cluster": {"gpu": gpu, "gpus_per_node": world_size, "num_nodes": 1},
        "recipe": recipe,
        "layout": layout,
        "engine": "native",
    }


def implementation_of(run: MemoryRun) -> dict[str, object]:
    """What the plan does not say about how the step was carried out."""
    keys = ("model", "optimizer_kernel", "wrap", "gradient_as_bucket_view", "clip", "num_microbatches")
    return {key: getattr(run, key) for key in keys}


def _single() -> tuple[MemoryRun, ...]:
    base = MemoryRun(name="base")
    pure = replace(base, precision="bf16")
    narrow = replace(base, shape=HIDDEN_2048, num_hidden_layers=8)
    return (
        replace(base, name="mixed", trace=True),
        replace(pure, name="pure", trace=True),
        replace(base, name="mixed-foreach", optimizer_kernel="foreach"),
        replace(pure, name="pure-foreach", optimizer_kernel="foreach"),
        replace(base, name="mixed-full", recompute="full", trace=True),
        replace(base, name="mixed-selective", recompute="selective", trace=True),
        replace(pure, name="pure-full", recompute="full"),
        replace(pure, name="pure-selective", recompute="selective"),
        replace(base, name="mixed-8layers", num_hidden_layers=8),
        replace(pure, name="pure-8layers", num_hidden_layers=8),
        replace(base, name="mixed-full-8layers", recompute="full", num_hidden_layers=8),
        replace(base, name="mixed-selective-8layers", recompute="selective", num_hidden_layers=8),
        replace(base, name="mixed-vocab128k", vocab_size=128256, trace=True),
        replace(pure, name="pure-vocab128k", vocab_size=128256),
        replace(base, name="mixed-vocab128k-full-s8192", vocab_size=128256, seq_len=8192, recompute="full"),
        replace(base, name="mixed-b2", micro_batch_size=2),
        replace(base, name="mixed-s8192", seq_len=8192),
        replace(base, name="mixed-s2048-b4", seq_len=2048, micro_batch_size=4),
        replace(base, name="mixed-accumulate4", num_microbatches=4),
        replace(pure, name="pure-accumulate4", num_microbatches=4),
        replace(base, name="mixed-clip", clip=True),
        replace(base, name="mixed-sgd", optimizer="sgd"),
        replace(base, name="mixed-sgd-momentum-foreach", optimizer="sgd-momentum", optimizer_kernel="foreach"),
        replace(base, name="mixed-adafactor", optimizer="adafactor", optimizer_kernel="foreach"),
        replace(base, name="fp32-eager-attention", precision="fp32", attention="eager", seq_len=2048),
        replace(base, name="mixed-mha7b", shape=HIDDEN_4096_MHA),
        replace(narrow, name="mixed-h2048"),
        replace(narrow, name="mixed-h2048-16layers-vocab128k", num_hidden_layers=16, vocab_size=128256),
        replace(narrow, name="pure-h2048-16layers-b4-full", precision="bf16", num_hidden_layers=16,
                micro_batch_size=4, recompute="full"),
        replace(base, name="mixed-h8192-2layers", shape=HIDDEN_8192, num_hidden_layers=2, seq_len=2048),
    )  # fmt: skip


def _transformers() -> tuple[MemoryRun, ...]:
    base = MemoryRun(name="base", model="transformers")
    pure = replace(base, precision="bf16")
    lora = replace(base, adapter="lora", num_hidden_layers=16, vocab_size=128256)
    return (
        replace(base, name="hf-mixed", trace=True),
        replace(pure, name="hf-pure", trace=True),
        replace(base, name="hf-mixed-8layers", num_hidden_layers=8),
        replace(pure, name="hf-pure-8layers", num_hidden_layers=8),
        replace(base, name="hf-mixed-full", recompute="full"),
        replace(base, name="hf-mixed-full-8layers", recompute="full", num_hidden_layers=8),
        replace(pure, name="hf-pure-full", recompute="full"),
        replace(base, name="hf-mixed-vocab128k", vocab_size=128256),
        replace(pure, name="hf-pure-vocab128k-s8192", vocab_size=128256, seq_len=8192),
        replace(pure, name="hf-pure-b2", micro_batch_size=2),
        replace(base, name="hf-mixed-h2048-16layers-vocab128k", shape=HIDDEN_2048, num_hidden_layers=16,
                vocab_size=128256, seq_len=2048, micro_batch_size=2),
        replace(lora, name="hf-lora", trace=True),
        replace(lora, name="hf-lora-full", recompute="full", seq_len=8192),
        replace(lora, name="hf-lora-without-autocast", precision="bf16"),
        replace(lora, name="hf-lora-all-linear", lora_targets="all-linear"),
        replace(lora, name="hf-lora-all-linear-8layers", lora_targets="all-linear", num_hidden_layers=8),
        replace(base, name="hf-mixed-eager-attention", attention="eager", seq_len=2048),
        replace(pure, name="hf-pure-mha7b", shape=HIDDEN_4096_MHA),
    )  # fmt: skip


def _compiled() -> tuple[MemoryRun, ...]:
    base = MemoryRun(name="base", compile=True)
    return (
        replace(base, name="mixed-compile", trace=True),
        replace(base, name="mixed-compile-8layers", num_hidden_layers=8),
        replace(base, name="pure-compile", precision="bf16", trace=True),
        replace(base, name="pure-compile-8layers", precision="bf16", num_hidden_layers=8),
        replace(base, name="mixed-compile-full", recompute="full"),
        replace(base, name="mixed-compile-selective", recompute="selective"),
        replace(base, name="mixed-compile-vocab128k", vocab_size=128256),
        replace(base, name="hf-pure-compile", precision="bf16", model="transformers"),
        replace(base, name="mixed-compile-h2048-16layers", shape=HIDDEN_2048, num_hidden_layers=16),
    )


def _fsdp2() -> tuple[MemoryRun, ...]:
    base = MemoryRun(name="base", kind="fsdp2", vocab_size=128256)
    deep = replace(base, num_hidden_layers=8)
    titan = replace(base, wrap="titan")
    return (
        replace(deep, name="fsdp2", trace=True),
        replace(base, name="fsdp2-4layers"),
        replace(deep, name="fsdp2-full", recompute="full", trace=True),
        replace(deep, name="fsdp2-selective", recompute="selective", trace=True),
        replace(deep, name="fsdp2-noreshard", reshard_after_forward=False),
        replace(deep, name="fsdp2-titan-selective", wrap="titan", recompute="selective", trace=True),
        replace(titan, name="fsdp2-titan-4layers"),
        replace(deep, name="fsdp2-vocab32k", vocab_size=32000),
        replace(deep, name="fsdp2-16layers-full", num_hidden_layers=16, recompute="full"),
        replace(deep, name="fsdp2-16layers-vocab32k-full", num_hidden_layers=16, vocab_size=32000, recompute="full"),
        replace(deep, name="fsdp2-s8192-selective", seq_len=8192, recompute="selective"),
        replace(deep, name="fsdp2-s2048-b2", seq_len=2048, micro_batch_size=2),
        replace(deep, name="fsdp2-s8192-b2-full", seq_len=8192, micro_batch_size=2, recompute="full", vocab_size=32000),
        replace(deep, name="fsdp2-accumulate4", num_microbatches=4),
        replace(deep, name="fsdp2-foreach", optimizer_kernel="foreach"),
        replace(deep, name="fsdp2-clip", clip=True),
        replace(deep, name="fsdp2-pure", precision="bf16"),
        replace(base, name="fsdp2-h2048-16layers", shape=HIDDEN_2048, num_hidden_layers=16),
        replace(base, name="fsdp2-h2048-16layers-b4-full", shape=HIDDEN_2048, num_hidden_layers=16,
                micro_batch_size=4, recompute="full"),
        replace(deep, name="fsdp2-sgd", optimizer="sgd", optimizer_kernel="foreach"),
        replace(base, name="fsdp2-h8192-2layers-full", shape=HIDDEN_8192, num_hidden_layers=2, recompute="full"),
        replace(base, name="fsdp2-cpu-offload", offload="parameters", vocab_size=32000),
    )  # fmt: skip


def _fsdp2_transformers() -> tuple[MemoryRun, ...]:
    base = MemoryRun(name="base", kind="fsdp2", vocab_size=128256, num_hidden_layers=8, model="transformers")
    return (
        replace(base, name="fsdp2-hf"),
        replace(base, name="fsdp2-hf-full", recompute="full", trace=True),
        replace(base, name="fsdp2-hf-full-s8192", recompute="full", seq_len=8192),
        replace(base, name="fsdp2-hf-h2048-16layers-b2", shape=HIDDEN_2048, num_hidden_layers=16, micro_batch_size=2,
                recompute="full"),
    )  # fmt: skip


def _fsdp2_compiled() -> tuple[MemoryRun, ...]:
    base = MemoryRun(name="base", kind="fsdp2", vocab_size=128256, num_hidden_layers=8, compile=True)
    return (
        replace(base, name="fsdp2-compile"),
        replace(base, name="fsdp2-compile-selective", recompute="selective"),
        replace(base, name="fsdp2-compile-full", recompute="full"),
    )


def _ddp() -> tuple[MemoryRun, ...]:
    base = MemoryRun(name="base", kind="ddp")
    return (
        replace(base, name="ddp", trace=True),
        replace(base, name="ddp-bucket-view", gradient_as_bucket_view=True),
        replace(base, name="ddp-accumulate4", num_microbatches=4),
        replace(base, name="ddp-bucket-view-vocab128k-full", gradient_as_bucket_view=True, vocab_size=128256,
                recompute="full"),
    )  # fmt: skip


def _tensor_parallel() -> tuple[MemoryRun, ...]:
    base = MemoryRun(name="base", kind="tp-sp", vocab_size=128256)
    return (
        replace(base, name="tp-sp", trace=True),
        replace(base, name="tp-sp-8layers", num_hidden_layers=8),
        replace(base, name="tp", kind="tp", trace=True),
        replace(base, name="tp-8layers", kind="tp", num_hidden_layers=8),
        replace(base, name="tp-sp-pure", precision="bf16"),
        replace(base, name="tp-sp-full", recompute="full"),
    )


def _pipeline() -> tuple[MemoryRun, ...]:
    base = MemoryRun(name="base", kind="pp", num_hidden_layers=8, num_microbatches=4, precision="bf16")
    return (
        replace(base, name="pp-pure"),
        replace(base, name="pp-pure-8microbatches", num_microbatches=8),
        replace(base, name="pp-mixed", precision="bf16-mixed"),
        replace(base, name="pp-pure-full", recompute="full"),
    )


def _four() -> tuple[MemoryRun, ...]:
    base = MemoryRun(name="base", kind="fsdp2", vocab_size=128256, num_hidden_layers=8)
    return (
        replace(base, name="four-hsdp", kind="hsdp", trace=True),
        replace(base, name="four-hsdp-full", kind="hsdp", recompute="full"),
        replace(base, name="four-fsdp2", trace=True),
        replace(base, name="four-fsdp2-16layers-selective", num_hidden_layers=16, recompute="selective"),
        replace(base, name="four-fsdp2-24layers-full", num_hidden_layers=24, recompute="full"),
        replace(base, name="four-fsdp2-tp-sp", kind="fsdp2-tp-sp", trace=True),
        replace(
            base, name="four-fsdp2-tp-sp-16layers-full", kind="fsdp2-tp-sp", num_hidden_layers=16, recompute="full"
        ),
        replace(base, name="four-tp-sp", kind="tp-sp"),
        replace(base, name="four-tp-sp-h8192", kind="tp-sp", shape=HIDDEN_8192, num_hidden_layers=4),
        replace(base, name="four-pp", kind="pp", num_microbatches=8, precision="bf16", vocab_size=32000),
        replace(base, name="four-ddp", kind="ddp", num_hidden_layers=4, vocab_size=32000),
    )


def _expandable() -> tuple[MemoryRun, ...]:
    names = ("mixed", "mixed-selective-8layers", "mixed-vocab128k", "mixed-full-8layers", "mixed-mha7b")
    return tuple(replace(run, name=f"{run.name}-expandable", trace=False) for run in _single() if run.name in names)


def _fsdp2_expandable() -> tuple[MemoryRun, ...]:
    names = ("fsdp2", "fsdp2-titan-selective", "fsdp2-16layers-full", "fsdp2-s8192-selective")
    return tuple(replace(run, name=f"{run.name}-expandable", trace=False) for run in _fsdp2() if run.name in names)


def _streams() -> tuple[MemoryRun, ...]:
    """Runs traced again for what each stream's pool holds."""
    names = ("fsdp2", "fsdp2-full", "fsdp2-titan-selective", "fsdp2-16layers-full", "fsdp2-s8192-selective",
             "fsdp2-vocab32k", "fsdp2-h2048-16layers", "fsdp2-16layers-vocab32k-full")  # fmt: skip
    return tuple(replace(run, name=f"{run.name}-streams", trace=True) for run in _fsdp2() if run.name in names)


def _streams_expandable() -> tuple[MemoryRun, ...]:
    return tuple(replace(run, name=f"{run.name}-expandable") for run in _streams())


def _whole_model() -> tuple[MemoryRun, ...]:
    """Llama-3.1-8B, all 32 layers, on four GPUs, as torchtitan trains it."""
    base = MemoryRun(name="base", kind="fsdp2", num_hidden_layers=32, vocab_size=128256, seq_len=8192, wrap="titan",
                     recompute="selective", clip=True)  # fmt: skip
    hf = replace(base, model="transformers", wrap="blocks")
    return (
        replace(base, name="8b-full-b2", recompute="full", micro_batch_size=2),
        replace(base, name="8b-selective-s4096", seq_len=4096),
        replace(base, name="8b-full", recompute="full"),
        replace(base, name="8b-tp-full-b2", kind="fsdp2-tp-sp", wrap="blocks", recompute="full", micro_batch_size=2),
        replace(hf, name="8b-hf-full", recompute="full", seq_len=8192),
        replace(base, name="8b-selective-compile", compile=True),
        replace(base, name="8b-none-s2048-compile", recompute="none", compile=True, seq_len=2048),
        replace(base, name="8b-selective"),
    )


FAMILIES = {
    "streams": _streams,
    "streams-expandable": _streams_expandable,
    "whole-model": _whole_model,
    "single": _single,
    "expandable": _expandable,
    "transformers": _transformers,
    "compiled": _compiled,
    "fsdp2": _fsdp2,
    "fsdp2-expandable": _fsdp2_expandable,
    "fsdp2-transformers": _fsdp2_transformers,
    "fsdp2-compiled": _fsdp2_compiled,
    "ddp": _ddp,
    "tensor-parallel": _tensor_parallel,
    "pipeline": _pipeline,
    "four": _four,
}


def runs_of(family: str, *, tiny: bool) -> tuple[MemoryRun, ...]:
    """The runs of one family; ``tiny`` shrinks them so that the logic can be tried on a laptop."""
    runs = FAMILIES[family]()
    if not tiny:
        return runs
    return tuple(replace(run, shape=TINY, num_hidden_layers=4, vocab_size=96, seq_len=32) for run in runs)
