"""Blocks of our decoder, and its tables with the loss, run by the runtime's own code."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from shardwise.train.build import compile_blocks
from shardwise.train.calibrate.clock import Desk, typical_s, wall_s
from shardwise.train.calibrate.kernels import UPDATE_BYTES_PER_ELEMENT
from shardwise.train.decoder.config import DecoderConfig, read_config
from shardwise.train.decoder.model import Decoder
from shardwise.units import Seconds

Row = Mapping[str, object]
REPEATED_BLOCKS = 4
"""Blocks of one stack; its time is divided by them."""
REPEATS = 5
SETTLING_PASSES = 25
"""Passes of a compiled stack before those that count: about a second, after which the device draws as much power as in
training, and its clocks are those of training."""
SCRATCH_BYTES = 256 * 2**20
"""What stands for weights and optimizer states between passes; larger than any cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCase:
    """Sizes of one stack of blocks."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    seq_len: int
    num_sequences: int
    is_sharded: bool = False
    is_compiled: bool = False

    def config(self, vocab_size: int = 64) -> DecoderConfig:
        """A Llama of these sizes."""
        return read_config(
            {
                "model_type": "llama",
                "hidden_size": self.hidden_size,
                "intermediate_size": self.intermediate_size,
                "num_hidden_layers": REPEATED_BLOCKS,
                "num_attention_heads": self.num_attention_heads,
                "num_key_value_heads": self.num_key_value_heads,
                "head_dim": self.head_dim,
                "vocab_size": vocab_size,
            }
        )


def _case(
    hidden: int,
    inner: int,
    heads: int,
    head_dim: int,
    tokens: tuple[int, int],
    *,
    is_sharded: bool = False,
    is_compiled: bool = False,
) -> BlockCase:
    return BlockCase(
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        head_dim=head_dim,
        num_sequences=tokens[0],
        seq_len=tokens[1],
        is_sharded=is_sharded,
        is_compiled=is_compiled,
    )


def block_cases(desk: Desk) -> list[BlockCase]:
    """Sizes between those of the models people train, and one so small that the host decides."""
    if desk.is_tiny:
        return [_case(64, 128, 4, 16, (1, 64), is_sharded=shards) for shards in (False, True)]
    if desk.is_cuda:
        return [
            _case(256, 512, 4, 64, (1, 256), is_sharded=True),
            _case(256, 512, 4, 64, (1, 256)),
            _case(2560, 7680, 20, 128, (1, 6144), is_compiled=True),
            _case(2560, 7680, 20, 128, (1, 6144)),
            _case(5120, 15360, 40, 128, (1, 4096), is_compiled=True),
            _case(1536, 6144, 24, 64, (2, 4096), is_compiled=True),
            _case(5120, 15360, 40, 128, (1, 4096)),
            _case(1536, 6144, 24, 64, (2, 4096)),
        ]
    sizes = [
        (192, 512, 6, 32, (2, 192), False),
        (384, 1024, 6, 64, (1, 384), False),
        (192, 512, 6, 32, (2, 192), True),
        (96, 256, 4, 24, (2, 128), False),
        (384, 1024, 6, 64, (2, 384), False),
        (384, 1024, 6, 64, (1, 384), True),
    ]
    return [
        _case(hidden, inner, heads, head, tokens, is_sharded=shards)
        for hidden, inner, heads, head, tokens, shards in sizes
    ]


def block_row(case: BlockCase, desk: Desk, mesh: DeviceMesh) -> Row:
    """Forward and backward of one block of a stack."""
    config = case.config()
    decoder = _decoder(config, desk, blocks=REPEATED_BLOCKS, seq_len=case.seq_len)
    decoder = decoder.to(torch.float32) if case.is_sharded else decoder
    if case.is_sharded:
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
        if desk.is_cuda:
            policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        for block in decoder.blocks():
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(decoder, mesh=mesh, mp_policy=policy)
    if case.is_compiled:
        compile_blocks(list(decoder.blocks()))
    shape = (case.num_sequences, case.seq_len, case.hidden_size)
    x = torch.randn(shape, device=desk.device, dtype=desk.dtype, requires_grad=True)
    forward_s, backward_s = (_settled_s if case.is_compiled and desk.is_cuda else _passes_s)(decoder, x, desk)
    return {
        "hidden_size": case.hidden_size,
        "intermediate_size": case.intermediate_size,
        "num_attention_heads": case.num_attention_heads,
        "num_key_value_heads": case.num_key_value_heads,
        "head_dim": case.head_dim,
        "seq_len": case.seq_len,
        "num_sequences": case.num_sequences,
        "dtype": desk.dtype_name,
        "is_sharded": case.is_sharded,
        "is_compiled": case.is_compiled,
        "forward_s": forward_s / REPEATED_BLOCKS,
        "backward_s": backward_s / REPEATED_BLOCKS,
    }


def _decoder(config: DecoderConfig, desk: Desk, *, blocks: int, seq_len: int, has_tables: bool = False) -> Decoder:
    with desk.device:
        decoder = Decoder(config, layers=range(blocks), is_first=has_tables, is_last=has_tables).to(desk.dtype)
    decoder.prepare_positions(torch.arange(seq_len, device=desk.device))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.02) if parameter.dim() > 1 else parameter.fill_(1.0)
    return decoder


def _settled_s(decoder: nn.Module, x: Tensor, desk: Desk) -> tuple[Seconds, Seconds]:
    """Seconds of a forward and of a backward among many that are issued ahead of the device, as in training.

    A host that waits for the device before each pass leaves it idle until the first kernel of the next one comes. After
    every second pass, as in steps of two micro-batches, as many bytes are moved as an update of the weights moves: such
    kernels draw half the power of products, whose clock rises under the device's limit
    (``benchmarks/results/2026-12-01-h200-power.md``).
    """
    gradient, found = torch.randn_like(x), []
    scratch = torch.zeros(SCRATCH_BYTES, device=desk.device, dtype=torch.uint8)
    moved = UPDATE_BYTES_PER_ELEMENT["cuda"] * sum(parameter.numel() for parameter in decoder.parameters())
    for number in range(SETTLING_PASSES + REPEATS):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        events[0].record()
        out = decoder(x)
        events[1].record()
        out.backward(gradient)
        events[2].record()
        found.append(events)
        for parameter in decoder.parameters():
            parameter.grad = None
        x.grad = None
        for _ in range(number % 2 * moved // (2 * SCRATCH_BYTES)):
            scratch.add_(1)
    torch.cuda.synchronize()
    measured = found[SETTLING_PASSES:]
    forwards, backwards = ([events[i].elapsed_time(events[i + 1]) / 1e3 for events in measured] for i in range(2))
    return typical_s(forwards, desk), typical_s(backwards, desk)


def _passes_s(decoder: nn.Module, x: Tensor, desk: Desk) -> tuple[Seconds, Seconds]:
    """Seconds of a forward and of a backward, the first ones left out as warm-up; on CPUs without waiting for ranks."""
    gradient = torch.randn_like(x)
    found: list[tuple[Seconds, Seconds]] = []
    for _ in range(2 + REPEATS):
        outs: list[Tensor] = []
        forward_s = wall_s(lambda _, outs=outs: outs.append(decoder(x)), 1, desk)  # type: ignore[misc]
        backward_s = wall_s(partial(_backward, outs[0], gradient), 1, desk)
        found.append((forward_s, backward_s))
        for parameter in decoder.parameters():
            parameter.grad = None
        x.grad = None
    forwards, backwards = zip(*found[2:], strict=True)
    return typical_s(forwards, desk), typical_s(backwards, desk)


def _backward(out: Tensor, gradient: Tensor, _index: int) -> None:
    out.backward(gradient)


def tables_cases(desk: Desk) -> list[tuple[int, int, int]]:
    """Sizes that the tables are timed at: ``(hidden size, vocabulary, tokens)``."""
    if desk.is_tiny:
        return [(64, 128, 64)]
    return [(3072, 65536, 6144), (1536, 65536, 8192)] if desk.is_cuda else [(192, 3072, 384), (384, 6144, 384)]


def tables_row(case: tuple[int, int, int], desk: Desk) -> Row:
    """Time forward and backward of token table, last norm, head and loss together."""
    hidden_size, vocab_size, num_tokens = case
    sizes = _case(hidden_size, hidden_size, 4, 64, (1, num_tokens), is_sharded=False)
    decoder = _decoder(sizes.config(vocab_size), desk, blocks=0, seq_len=num_tokens, has_tables=True)
    ids, labels = (torch.randint(vocab_size, (1, num_tokens), device=desk.device) for _ in range(2))
    found = []
    for _ in range(2 + REPEATS):
        found.append(wall_s(lambda _: decoder(ids, labels).backward(), 1, desk))
        for parameter in decoder.parameters():
            parameter.grad = None
    return {
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "num_tokens": num_tokens,
        "dtype": desk.dtype_name,
        "duration_s": typical_s(found[2:], desk),
    }
