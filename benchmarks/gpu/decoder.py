"""A plain Llama-like decoder for measuring memory: nothing fused by hand, every saved tensor can be named by a reader.

Shapes: B sequences, S tokens, D hidden, F intermediate, N query heads, K key-value heads, H head size, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Widths of one decoder, spelled as in Hugging Face configs."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


def rotary_table(*, head_dim: int, seq_len: int, device: torch.device) -> Tensor:
    """Unit complex numbers ``(seq_len, head_dim / 2)`` that turn one pair of channels at each position."""
    frequencies = 500000.0 ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x_BSNH: Tensor, table: Tensor) -> Tensor:  # noqa: N803
    """Rotary position embedding in fp32, returned in the dtype it came in."""
    pairs = torch.view_as_complex(x_BSNH.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * table[None, :, None, :]).flatten(-2).type_as(x_BSNH)


class Attention(nn.Module):
    """Causal grouped-query attention on the flash kernel (the math kernel where flash cannot run: fp32, or no GPU)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        query_size = shape.num_attention_heads * shape.head_dim
        key_value_size = shape.num_key_value_heads * shape.head_dim
        self.wq = nn.Linear(shape.hidden_size, query_size, bias=False)
        self.wk = nn.Linear(shape.hidden_size, key_value_size, bias=False)
        self.wv = nn.Linear(shape.hidden_size, key_value_size, bias=False)
        self.wo = nn.Linear(query_size, shape.hidden_size, bias=False)

    def forward(self, x_BSD: Tensor, table: Tensor) -> Tensor:  # noqa: N803
        """``(B, S, D)`` to ``(B, S, D)``; the head count is taken from the projections, so shards work unchanged."""
        q, k, v = (proj(x_BSD).unflatten(-1, (-1, self.head_dim)) for proj in (self.wq, self.wk, self.wv))
        q, k = rotate(q, table), rotate(k, table)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).contiguous().flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU: ``w2(silu(w1 x) * w3 x)``."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.w2 = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)
        self.w3 = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:  # noqa: N803
        """``(B, S, D)`` to ``(B, S, D)``."""
        return self.w2(F.silu(self.w1(x_BSD)) * self.w3(x_BSD))


class Block(nn.Module):
    """Pre-norm decoder block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden_size, eps=1e-5)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.hidden_size, eps=1e-5)
        self.feed_forward = FeedForward(shape)

    def forward(self, x_BSD: Tensor, table: Tensor) -> Tensor:  # noqa: N803
        """``(B, S, D)`` to ``(B, S, D)``."""
        h_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), table)  # noqa: N806
        return h_BSD + self.feed_forward(self.ffn_norm(h_BSD))


class Decoder(nn.Module):
    """Embedding, blocks, final norm, untied head. A pipeline stage has ``None`` for the parts it does not hold."""

    def __init__(
        self, shape: Shape, *, num_hidden_layers: int, vocab_size: int, stage: tuple[int, int] = (0, 1)
    ) -> None:
        super().__init__()
        index, num_stages = stage
        self.head_dim = shape.head_dim
        self.tok_embeddings = nn.Embedding(vocab_size, shape.hidden_size) if index == 0 else None
        self.layers = nn.ModuleList(Block(shape) for _ in range(num_hidden_layers // num_stages))
        is_last = index == num_stages - 1
        self.norm = nn.RMSNorm(shape.hidden_size, eps=1e-5) if is_last else None
        self.output = nn.Linear(shape.hidden_size, vocab_size, bias=False) if is_last else None
        self.rotary: Tensor | None = None

    def prepare(self, *, seq_len: int, device: torch.device) -> None:
        """Fill the weights with small random numbers and make the rotary table."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else nn.init.ones_(parameter)
        self.rotary = rotary_table(head_dim=self.head_dim, seq_len=seq_len, device=device)

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids ``(B, S)`` to logits ``(B, S, V)``; between pipeline stages, hidden states ``(B, S, D)``."""
        x_BSD = tokens if self.tok_embeddings is None else self.tok_embeddings(tokens)  # noqa: N806
        for block in self.layers:
            x_BSD = block(x_BSD, self.rotary)  # noqa: N806
        return x_BSD if self.norm is None else self.output(self.norm(x_BSD))


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in fp32, the way most trainers write it."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
