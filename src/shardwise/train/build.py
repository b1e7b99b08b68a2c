"""The order in which a model is built and divided. Each technique is a file of its own; this one only shows the order.

1. the pipeline chunks of this rank, on the meta device
2. products become 8-bit ones; matrices that are not trained become 4-bit ones and get adapters beside them
3. tensor and expert parallelism divide matrices
4. blocks learn what to recompute, then they are compiled
5. unit by unit: weights get their values, then data parallelism shards them
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion

from shardwise.step.native_engine import compiles_experts, keeps_halves, splits_backward, uses_ddp
from shardwise.train.activation_offload import offload_activations
from shardwise.train.context_parallel import positions_of_rank
from shardwise.train.data_parallel import COMPUTE_DTYPES, gather_ahead_on_cpu, set_prefetch, shard_units
from shardwise.train.decoder.blocks import is_sparse
from shardwise.train.decoder.config import read_config
from shardwise.train.decoder.groups import BlockGroups
from shardwise.train.decoder.model import Decoder
from shardwise.train.divisible import require_data_parallel, require_divisible
from shardwise.train.family_initialise import fill_as_family
from shardwise.train.family_parallel import divide_family, make_divisible
from shardwise.train.foreign import ForeignModule
from shardwise.train.fp8 import use_fp8
from shardwise.train.halves import Halves, halve_units
from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.initialise import initialise
from shardwise.train.job import Job, uses_transformers
from shardwise.train.lora import add_adapters
from shardwise.train.loss import LossSettings
from shardwise.train.mesh import Mesh
from shardwise.train.nf4 import pack_matrices
from shardwise.train.parameters import TABLE
from shardwise.train.recompute import recompute_blocks
from shardwise.train.router_balance import watch_routers
from shardwise.train.routing import RouterWatch
from shardwise.train.stages import Chunk, chunks_of_rank
from shardwise.train.tensor_parallel import PartGradient, divide_tensors
from shardwise.train.torch_private import compile_as_whole_blocks
from shardwise.train.units import Unit, units_of

AnyDecoder = Decoder | TransformersDecoder | ForeignModule


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The part of the model this rank trains."""

    chunks: tuple[nn.Module, ...]
    """Pipeline chunks, sharded; the whole model without a pipeline."""
    decoders: tuple[AnyDecoder, ...]
    """The decoders inside whatever wraps them into chunks."""
    positions: torch.Tensor
    """Which tokens of every sequence this rank computes."""
    part_gradients: tuple[PartGradient, ...] = ()
    """Parameters whose gradients tp ranks add up."""
    halves: Halves = field(default_factory=Halves)
    """The parts of weights that rounding to bf16 took off, where this rank is alone."""
    watch: RouterWatch | None = None
    """Watch the routers of this rank's blocks, where the model has some and the job asks for it."""


def build_model(job: Job, mesh: Mesh, *, device: torch.device, given: ForeignModule | None = None) -> Built:
    """This rank's part of the model with its initial weights, made of the module ``given`` if there is one."""
    layout = job.layout
    positions = positions_of_rank(rank=mesh.rank("cp"), cp=layout.cp, seq_len=job.recipe.seq_len).to(device)
    if given is not None:
        require_data_parallel(layout, model_type=type(given.inner).__name__)
        chunks, halves = _divided([given], job, mesh, device)
        return Built(chunks=chunks, decoders=(given,), positions=positions, halves=halves)
    if uses_transformers(job):
        foreign = _transformers_decoder(job, device)
        make_divisible(foreign, job)
        _choose_products(foreign, job, device)
        _freeze(foreign, job)
        parts = divide_family(foreign, job, mesh, block_groups(job, mesh))
        watch = watch_routers((foreign,), job, device)
        chunks, halves = _divided([foreign], job, mesh, device)
        return Built(
            chunks=chunks, decoders=(foreign,), positions=positions, part_gradients=parts, halves=halves, watch=watch
        )
    part_gradients: list[PartGradient] = []
    decoders = tuple(_decoder(job, mesh, chunk, positions) for chunk in chunks_of_rank(job, mesh.rank("pp")))
    for decoder in decoders:
        _choose_products(decoder, job, device)
        _freeze(decoder, job)
        part_gradients += divide_tensors(decoder, mesh)
    watch = watch_routers(decoders, job, device)
    chunks, halves = _divided(decoders, job, mesh, device)
    return Built(
        chunks=chunks,
        decoders=decoders,
        positions=positions,
        part_gradients=tuple(part_gradients),
        halves=halves,
        watch=watch,
    )


def weights_dtype(job: Job) -> torch.dtype:
    """The dtype of the parameters that the optimizer updates."""
    return torch.bfloat16 if job.recipe.precision == "bf16" else torch.float32


def _loss_settings(job: Job) -> LossSettings:
    chunks = job.tuning.num_loss_chunks or (job.recipe.loss_chunks if job.recipe.loss_chunks > 1 else None)
    return LossSettings(num_chunks=chunks, is_compiled=job.recipe.compile, is_plain=splits_backward(job.layout))


def _transformers_decoder(job: Job, device: torch.device) -> TransformersDecoder:
    require_divisible(job)
    decoder = TransformersDecoder(
        job.model_config,
        dtype=weights_dtype(job),
        attention=job.recipe.attention,
        has_block_masks=job.data.masks_documents and device.type == "cuda",
    )
    decoder.compute_dtype = COMPUTE_DTYPES[job.recipe.precision] or weights_dtype(job)
    decoder.fill_buffers(device)
    if decoder.loss_head is not None:
        decoder.loss_head.settings = _loss_settings(job)
    return decoder


def _decoder(job: Job, mesh: Mesh, chunk: Chunk, positions: torch.Tensor) -> Decoder:
    layers, is_first, is_last = chunk
    with torch.device("meta"), made_as(weights_dtype(job)):
        decoder = Decoder(read_config(job.model_config), layers=layers, is_first=is_first, is_last=is_last)
    decoder.join(block_groups(job, mesh))
    decoder.prepare_positions(positions)
    if decoder.lm_head is not None:
        decoder.lm_head.settings = _loss_settings(job)
    return decoder


@contextmanager
def made_as(dtype: torch.dtype) -> Iterator[None]:
    """New floating-point tensors have this dtype: a model that is made in it needs no conversion."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _choose_products(decoder: AnyDecoder, job: Job, device: torch.device) -> None:
    """8-bit products, where the recipe says so."""
    if job.recipe.precision == "fp8-mixed":
        num_tokens = job.recipe.tokens_per_micro_batch // job.layout.cp
        use_fp8(list(decoder.blocks()), num_tokens=num_tokens, device=device)


def _freeze(decoder: AnyDecoder, job: Job) -> None:
    """Train adapters alone, where the recipe says so."""
    if job.recipe.adapter != "none":
        add_adapters(decoder, job.recipe)


def block_groups(job: Job, mesh: Mesh) -> BlockGroups:
    """The groups that blocks communicate in."""
    layout = job.layout
    return BlockGroups(
        tp=mesh.group("tp"),
        cp=mesh.group("cp"),
        ep=mesh.experts.get_group() if layout.ep > 1 else None,
        is_sequence_parallel=layout.sequence_parallel and layout.tp > 1,
    )


def _divided(
    decoders: Sequence[AnyDecoder], job: Job, mesh: Mesh, device: torch.device
) -> tuple[tuple[nn.Module, ...], Halves]:
    """The decoders with their values, recomputed, compiled and divided over data-parallel ranks, or halved."""
    before = 0
    for decoder in decoders:
        blocks = list(decoder.blocks())
        _recompute_and_compile(blocks, job, num_before=before)
        before += len(blocks)
    if keeps_halves(layout=job.layout, recipe=job.recipe):
        (decoder,) = decoders
        adds_up = job.num_microbatches > 1
        return (decoder,), halve_units(_filled(decoder, job, device), decoder, adds_up=adds_up)
    return tuple(_shared(decoder, job, mesh, device) for decoder in decoders), Halves()


def _recompute_and_compile(blocks: list[nn.Module], job: Job, *, num_before: int) -> None:
    compiles_first = recomputes_compiled_code(job)
    has_whole_experts = compiles_experts(layout=job.layout, recipe=job.recipe)
    ways = {"saves_elementwise": job.tuning.saves_elementwise, "compiles_experts": has_whole_experts}
    if job.recipe.compile and compiles_first:
        compile_blocks(blocks, **ways)
    recompute_blocks(
        blocks,
        job.recipe,
        num_before=num_before,
        splits_backward=splits_backward(job.layout),
        is_compiled_together=not compiles_first,
        compiles_experts=has_whole_experts,
    )
    if job.recipe.compile and not compiles_first:
        compile_blocks(blocks, **ways)
    if job.recipe.activation_offload:
        offload_activations(blocks)


def _shared(decoder: AnyDecoder, job: Job, mesh: Mesh, device: torch.device) -> nn.Module:
    """The decoder filled, and divided or copied over the ranks that see different tokens."""
    if needs_ddp(job):
        for _ in _filled(decoder, job, device):
            pass
        return _in_ddp(decoder, mesh)
    shard_units(_filled(decoder, job, device), decoder, job=job, mesh=mesh)
    blocks = list(decoder.blocks())
    set_prefetch(blocks, job.layout)
    if device.type == "cpu":
        gather_ahead_on_cpu(blocks, job.layout)
    return decoder


def recomputes_compiled_code(job: Job) -> bool:
    """Whether compiled blocks are run again as they are, instead of being compiled together with what runs again.

    The compiler would keep the mesh of a divided matrix for backward, which torch 2.13 refuses as it is no tensor
    (2.11 does not). With selective recomputation it keeps the matrix.
    """
    return job.layout.tp > 1 and job.recipe.recompute == "full" and TorchVersion(torch.__version__) >= (2, 12)


def compile_blocks(blocks: list[nn.Module], *, saves_elementwise: bool = False, compiles_experts: bool = False) -> None:
    """Compile what a block computes, not the hooks around it; of a block whose experts are not compiled, attention.

    By itself the compiler keeps what a product of backward reads. Making activations and norms again in the kernel
    before it costs no product and a third of what an unrecomputed block keeps. Under DDP it would divide a block at the
    borders of buckets, and keep what crosses them; whole blocks are pieces enough to send the gradients of one early.
    """
    compile_as_whole_blocks(saves_elementwise=saves_elementwise)
    for block in blocks:
        part = block.self_attn if is_sparse(block) and not compiles_experts else block
        part.forward = torch.compile(part.forward, dynamic=False)


def needs_ddp(job: Job) -> bool:
    """torch's DDP where it can serve: whole states, nothing cast and no part of a matrix."""
    return uses_ddp(layout=job.layout, recipe=job.recipe)


def _in_ddp(decoder: AnyDecoder, mesh: Mesh) -> nn.Module:
    if mesh.copies.size() == 1:
        return decoder
    wrapped = DistributedDataParallel(
        decoder,
        process_group=mesh.copies.get_group(),
        gradient_as_bucket_view=True,
        broadcast_buffers=False,
        init_sync=False,  # weights follow from the seed, or from a file that every rank reads
    )
    wrapped.register_comm_hook(mesh.copies.get_group(), _sum_bucket)
    return wrapped


def _sum_bucket(
    group: torch.distributed.ProcessGroup, bucket: torch.distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Sum gradients over ranks, where DDP by itself would average."""
    whole = bucket.buffer()
    work = torch.distributed.all_reduce(whole, group=group, async_op=True)
    return work.get_future().then(lambda _: whole)


def _filled(decoder: AnyDecoder, job: Job, device: torch.device) -> Iterator[Unit]:
    """The units, each with its values as it is handed out; the rest of the model at the end."""
    for unit in units_of(decoder):
        _fill(decoder, unit.module, unit.name, job, device)
        pack_matrices(unit.module)
        yield unit
    if isinstance(decoder, Decoder) and decoder.tied_end is not None and decoder.lm_head is not None:
        # The twin of the first stage's table starts with the same values.
        _fill(decoder, decoder.lm_head, TABLE.removesuffix(".weight"), job, device)
    _fill(decoder, decoder, "", job, device)


def _fill(decoder: AnyDecoder, module: nn.Module, name: str, job: Job, device: torch.device) -> None:
    """Initial values for what is still on the meta device in a module of the given name."""
    if isinstance(decoder, TransformersDecoder):
        fill_as_family(decoder.untouched[0], module, prefix=name, device=device, seed=job.seed)
    # Of a model of transformers, adapters are left.
    initialise(module, prefix=name, device=device, seed=job.seed, std=decoder.initializer_ratio)


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 manages the module."""
    return isinstance(module, FSDPModule)
