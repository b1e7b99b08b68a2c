"""Blocks of the decoder.

Shapes: B sequences, S tokens, D hidden, F intermediate (this rank's part), N heads (this rank's), H head size.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor, nn

from shardwise.train.context_parallel import causal_attention
from shardwise.train.decoder.config import DecoderConfig
from shardwise.train.decoder.experts import MoeFeedForward
from shardwise.train.decoder.gated import gated, gated_down
from shardwise.train.decoder.groups import ALONE, BlockGroups, local, part_of_bias
from shardwise.train.decoder.rotary import rotate
from shardwise.train.document_mask import DocumentMask
from shardwise.train.routing import Routing


class Places(NamedTuple):
    """Where the tokens stand: cosines and sines of their positions, and who sees whom in packed documents."""

    cosines: Tensor
    sines: Tensor
    mask: DocumentMask | None = None
    """``None``: every earlier token of the sequence."""


class Linear(nn.Module):
    """``x W^T (+ b)`` with this rank's part of W; initialised by name, not here."""

    def __init__(self, in_features: int, out_features: int, *, has_bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if has_bias else None
        self.bias_fraction = 1.0
        """This rank's share of a bias that ranks add up with their outputs."""

    def forward(self, x: Tensor) -> Tensor:
        """``(..., in)`` to ``(..., out)``."""
        return F.linear(x, local(self.weight), part_of_bias(self.bias, self.bias_fraction))


class RmsNorm(nn.Module):
    """Root-mean-square norm over the last dim."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape; statistics in fp32."""
        return F.rms_norm(x, (x.size(-1),), local(self.weight), self.eps)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        query_size, key_size = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
        self.head_dim = head_dim
        self.q_proj = Linear(hidden, query_size, has_bias=config.has_qkv_bias)
        self.k_proj = Linear(hidden, key_size, has_bias=config.has_qkv_bias)
        self.v_proj = Linear(hidden, key_size, has_bias=config.has_qkv_bias)
        self.o_proj = Linear(query_size, hidden, has_bias=config.has_output_bias)
        eps = config.rms_norm_eps_ratio
        self.q_norm = RmsNorm(head_dim, eps) if config.has_qk_norm else None
        self.k_norm = RmsNorm(head_dim, eps) if config.has_qk_norm else None
        self.groups = ALONE

    def forward(self, x_BSD: Tensor, places: Places) -> Tensor:
        """``(B, S, D)`` to the same, already summed over tensor-parallel ranks."""
        x_BSD = self.groups.enter(x_BSD)
        q = self.q_proj(x_BSD).unflatten(-1, (-1, self.head_dim))
        k = self.k_proj(x_BSD).unflatten(-1, (-1, self.head_dim))
        v = self.v_proj(x_BSD).unflatten(-1, (-1, self.head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        table = (places.cosines, places.sines)
        out = causal_attention(rotate(q, table), rotate(k, table), v, group=self.groups.cp, mask=places.mask)
        return self.groups.leave(self.o_proj(out.flatten(-2)))


class FeedForward(nn.Module):
    """SwiGLU: ``down(silu(gate x) * up x)``."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)
        self.groups = ALONE
        self.overwritten: frozenset[str] = frozenset()
        """Which of ``gate`` and ``up`` a compiler recomputes, so that backward may write over them."""

    def forward(self, x_BSD: Tensor) -> Tensor:
        """``(B, S, D)`` to the same, already summed over tensor-parallel ranks."""
        x_BSD = self.groups.enter(x_BSD)
        return self.groups.leave(self._down(self.gate_proj(x_BSD), self.up_proj(x_BSD)))

    def _down(self, gate_BSF: Tensor, up_BSF: Tensor) -> Tensor:
        if "up" not in self.overwritten:
            return self.down_proj(F.silu(gate_BSF) * up_BSF)
        writes_over_gate = "gate" in self.overwritten
        weight_DF = local(self.down_proj.weight)
        has_adapter = any(True for _ in self.down_proj.children())
        if type(self.down_proj) is Linear and not has_adapter and weight_DF.dtype == gate_BSF.dtype:
            return gated_down(gate_BSF, up_BSF, weight_DF, writes_over_gate=writes_over_gate)
        return self.down_proj(gated(gate_BSF, up_BSF, writes_over_gate=writes_over_gate))


class Block(nn.Module):
    """Pre-norm decoder block."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        eps = config.rms_norm_eps_ratio
        self.input_layernorm = RmsNorm(config.hidden_size, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, eps)
        self.mlp: FeedForward | MoeFeedForward = MoeFeedForward(config) if config.is_moe else FeedForward(config)
        self.tells_routing = False
        """Whether the block gives beside its output how its router spread the tokens."""

    def join(self, groups: BlockGroups) -> None:
        """Work in these groups from now on."""
        self.self_attn.groups = groups
        self.mlp.groups = groups

    def forward(self, x_BSD: Tensor, places: Places) -> Tensor | tuple[Tensor, Routing]:
        """``(B, S, D)`` to the same; a routing is an output, as nothing else leaves a block that is recomputed."""
        h_BSD = x_BSD + self.self_attn(self.input_layernorm(x_BSD), places)
        normed_BSD = self.post_attention_layernorm(h_BSD)
        if self.tells_routing and isinstance(self.mlp, MoeFeedForward):
            out_BSD, routing = self.mlp.routed(normed_BSD)
            return h_BSD + out_BSD, routing
        return h_BSD + self.mlp(normed_BSD)


def let_backward_write_over(block: nn.Module, names: frozenset[str]) -> None:
    """Say to one of our dense blocks which outputs of its feed-forward are recomputed for backward alone.

    This is about memory alone: backward may put gradients where these outputs were.
    """
    if isinstance(block, Block) and isinstance(block.mlp, FeedForward):
        block.mlp.overwritten = names


def is_sparse(block: nn.Module) -> bool:
    """Whether it is one of our blocks, and routes tokens to experts."""
    return isinstance(block, Block) and isinstance(block.mlp, MoeFeedForward)
