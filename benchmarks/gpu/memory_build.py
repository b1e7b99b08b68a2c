"""Builds the model of one run the way its kind of parallelism asks for: recompute, compile, then shard."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial

import torch
import torch.distributed as dist
from decoder import Decoder, next_token_loss
from memory_configs import FSDP2_KINDS, MemoryRun
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(slots=True, kw_only=True)
class Built:
    """What a step needs."""

    model: nn.Module
    blocks: list[nn.Module]
    forward: Callable[[Tensor], Tensor]
    loss: LossFunction
    optimizer: torch.optim.Optimizer
    autocast: Callable[[], AbstractContextManager[object]]
    around_loss: Callable[[], AbstractContextManager[object]] = nullcontext


def _saved_ops() -> frozenset[object]:
    aten = torch.ops.aten
    return frozenset(
        {
            aten.mm.default,
            aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_cudnn_attention.default,
            torch.ops._c10d_functional.reduce_scatter_tensor.default,
            aten.max.default,
        }
    )


def selective_contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Per-op recompute as torchtitan does it: keep attention, collectives and every other matrix product."""
    saved = _saved_ops()
    num_mm = {"forward": 0, "recompute": 0}

    def policy(ctx: object, op: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
        mode = "recompute" if ctx.is_recompute else "forward"  # type: ignore[attr-defined]
        is_mm = op == torch.ops.aten.mm.default
        num_mm[mode] += is_mm
        keep = op in saved and not (is_mm and num_mm[mode] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _recomputed(block: nn.Module, run: MemoryRun) -> nn.Module:
    if run.recompute == "none":
        return block
    if run.recompute == "full":
        return checkpoint_wrapper(block, preserve_rng_state=False)
    return checkpoint_wrapper(block, context_fn=selective_contexts, preserve_rng_state=False)


def _make_decoder(run: MemoryRun, device: torch.device, stage: tuple[int, int] = (0, 1)) -> Decoder:
    with torch.device(device):
        return Decoder(run.shape, num_hidden_layers=run.num_hidden_layers, vocab_size=run.vocab_size, stage=stage)


def _make_transformers(run: MemoryRun, device: torch.device) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **asdict(run.shape),
        num_hidden_layers=run.num_hidden_layers,
        vocab_size=run.vocab_size,
        tie_word_embeddings=False,
        rms_norm_eps=1e-5,
        max_position_embeddings=131072,
        use_cache=False,
        attn_implementation="eager" if run.attention == "eager" else "sdpa",
    )
    with torch.device(device):
        model = LlamaForCausalLM(config)
    if run.recompute == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def _with_adapter(model: nn.Module, run: MemoryRun) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    targets = attention if run.lora_targets == "attention" else [*attention, "gate_proj", "up_proj", "down_proj"]
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=targets))


def _shard_fsdp2(model: Decoder | nn.Module, blocks: list[nn.Module], run: MemoryRun, mesh: DeviceMesh) -> None:
    offload = CPUOffloadPolicy() if run.offload == "parameters" else OffloadPolicy()
    dtype = torch.float32 if run.precision == "fp32" else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy, offload_policy=offload)
    reshard = run.reshard_after_forward
    if run.wrap == "titan":
        assert isinstance(model, Decoder)
        shard(model.tok_embeddings, reshard_after_forward=reshard)
        for block in blocks:
            shard(block, reshard_after_forward=reshard)
        shard([model.norm, model.output], reshard_after_forward=False)
    else:
        for index, block in enumerate(blocks):
            shard(block, reshard_after_forward=reshard and index < len(blocks) - 1)
    shard(model)


def _shard_tensors(model: Decoder, run: MemoryRun, mesh: DeviceMesh) -> None:
    along = Replicate() if run.kind == "tp" else Shard(1)
    plan: dict[str, object] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=along),
        "output": ColwiseParallel(input_layouts=along, output_layouts=Shard(-1), use_local_output=False),
    }
    block_plan: dict[str, object] = {
        "attention": PrepareModuleInput(input_layouts=(along, None), desired_input_layouts=(Replicate(), None)),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=along),
        "feed_forward": PrepareModuleInput(input_layouts=(along,), desired_input_layouts=(Replicate(),)),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=along),
        "feed_forward.w3": ColwiseParallel(),
    }
    if run.kind != "tp":
        plan["norm"] = SequenceParallel()
        block_plan |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
    parallelize_module(model, mesh, plan)
    for block in model.layers:
        parallelize_module(block, mesh, block_plan)


def _make_optimizer(run: MemoryRun, model: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    # Fused and foreach kernels refuse a list that mixes plain tensors (norms under TP) with DTensors.
    by_kind = [[p for p in trained if isinstance(p, DTensor) == is_dtensor] for is_dtensor in (True, False)]
    params = [{"params": group} for group in by_kind if group]
    kernel = {run.optimizer_kernel: True}
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adamw": lambda: torch.optim.AdamW(params, lr=1e-5, **kernel),
        "sgd": lambda: torch.optim.SGD(params, lr=1e-5, **kernel),
        "sgd-momentum": lambda: torch.optim.SGD(params, lr=1e-5, momentum=0.9, **kernel),
        "adafactor": lambda: torch.optim.Adafactor(params, lr=1e-5, **kernel),
    }
    return makers[run.optimizer]()


def _autocast_of(run: MemoryRun, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    if run.precision == "bf16-mixed" and run.kind not in FSDP2_KINDS:
        return partial(torch.autocast, device.type, dtype=torch.bfloat16)
    return nullcontext


def mesh_of(run: MemoryRun, device: torch.device) -> DeviceMesh:
    """Ranks of the run, by axis."""
    size = dist.get_world_size()
    names, degrees = {
        "hsdp": (("dp_replicate", "dp_shard"), (2, size // 2)),
        "fsdp2-tp-sp": (("dp_shard", "tp"), (size // 2, 2)),
        "tp": (("tp",), (size,)),
        "tp-sp": (("tp",), (size,)),
    }.get(run.kind, (("dp_shard",), (size,)))
    return init_device_mesh(device.type, degrees, mesh_dim_names=names)


def _layers_of(model: nn.Module) -> nn.ModuleList:
    return model.layers if isinstance(model, Decoder) else model.model.layers


def _make_model(run: MemoryRun, device: torch.device) -> nn.Module:
    """The whole model with recompute, adapter and compile applied, not yet divided."""
    is_decoder = run.model == "decoder"
    model = _make_decoder(run, device) if is_decoder else _make_transformers(run, device)
    if (run.precision == "bf16" and run.kind not in FSDP2_KINDS) or run.adapter != "none":
        model.to(torch.bfloat16)
    if isinstance(model, Decoder):
        model.prepare(seq_len=run.seq_len, device=device)
        if "tp" in run.kind:
            _shard_tensors(model, run, mesh_of(run, device)["tp"])
    layers = _layers_of(model)
    for index, block in enumerate(layers):
        changed = _recomputed(block, run) if is_decoder else block
        layers[index] = torch.compile(changed, fullgraph=is_decoder, dynamic=False) if run.compile else changed
    return model


def build(run: MemoryRun, device: torch.device) -> Built:
    """The run's model, ready for its first step (pipelines are built by :func:`build_stage`)."""
    is_decoder = run.model == "decoder"
    model = _make_model(run, device)
    blocks = list(_layers_of(model))
    if run.adapter != "none":
        model = _with_adapter(model, run)
    if run.kind in FSDP2_KINDS:
        mesh = mesh_of(run, device)
        _shard_fsdp2(model, blocks, run, mesh if run.kind == "hsdp" else mesh["dp_shard"])
        if run.precision == "bf16":
            model.to(torch.bfloat16)
    loss: LossFunction = next_token_loss if is_decoder else partial(_transformers_loss, model)
    wrapped = model
    if run.kind == "ddp":
        ids = [device.index] if device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=run.gradient_as_bucket_view)
    return Built(
        model=wrapped,
        blocks=blocks,
        forward=wrapped if is_decoder else (lambda tokens: wrapped(tokens).logits),
        loss=torch.compile(loss) if run.compile else loss,
        optimizer=_make_optimizer(run, wrapped),
        autocast=_autocast_of(run, device),
        around_loss=loss_parallel if "tp" in run.kind else nullcontext,
    )


def _transformers_loss(model: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return base.loss_function(logits=logits, labels=labels, vocab_size=base.config.vocab_size)


def build_stage(run: MemoryRun, device: torch.device) -> tuple[Built, object]:
    """This rank's pipeline stage and its 1F1B schedule."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = _make_decoder(run, device, stage=(rank, world_size))
    if run.precision == "bf16":
        model.to(torch.bfloat16)
    model.prepare(seq_len=run.seq_len, device=device)
    for index, block in enumerate(model.layers):
        model.layers[index] = _recomputed(block, run)
    stage = PipelineStage(model, rank, world_size, device)
    schedule = Schedule1F1B(stage, n_microbatches=run.num_microbatches, loss_fn=next_token_loss)
    built = Built(
        model=model,
        blocks=list(model.layers),
        forward=model,
        loss=next_token_loss,
        optimizer=_make_optimizer(run, model),
        autocast=_autocast_of(run, device),
    )
    return built, schedule


def device_of_rank() -> torch.device:
    """This process's GPU, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
