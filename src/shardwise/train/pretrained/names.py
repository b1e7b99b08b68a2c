"""What the tensors of a model are called in a Hugging Face checkpoint, and how stacked experts lie there.

A model holds the weights of all experts of a block in two tensors, ``experts.gate_up_proj`` with shape
``(num_experts, 2 * width, hidden_size)`` and ``experts.down_proj`` with ``(num_experts, hidden_size, width)``.
Checkpoints hold one matrix for every expert and projection. Everything else has the same name on both sides, up to the
prefix of the base model.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["Piece", "pieces_of"]

TIED = {"lm_head.weight": ("model.embed_tokens.weight", "transformer.wte.weight")}
"""Tensors that a checkpoint leaves out when they are tied to another tensor."""
STACKED_GATE_UP = ".experts.gate_up_proj"
STACKED_DOWN = ".experts.down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNames:
    """How one family of checkpoints names the matrices of an expert."""

    block: str
    """The module that holds router and experts."""
    gate: str
    up: str
    down: str


STYLES = (
    ExpertNames(block="mlp", gate="gate_proj", up="up_proj", down="down_proj"),
    ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2"),
)
"""Qwen, DeepSeek, OLMoE, GLM and their like; then Mixtral. Source: transformers 5 ``conversion_mapping.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A tensor of the checkpoint, and where in the model's tensor it lies."""

    name: str
    start: tuple[int, ...] = ()
    """First index along every dim of the model's tensor; empty when the two are the same tensor."""
    is_stacked: bool = False
    """Whether the model's tensor has one dim more, in front: which expert."""


def pieces_of(
    name: str, shape: tuple[int, ...], *, has: Callable[[str], bool], is_tied: bool = True
) -> tuple[Piece, ...]:
    """The tensors of a checkpoint that a model's tensor is made of; none when they are not there.

    Args:
        name: of the model's tensor.
        shape: of the model's tensor, whole.
        has: whether the checkpoint holds a tensor of a name.
        is_tied: whether the output head may be the token table.
    """
    spellings = _spellings(name, is_tied=is_tied)
    direct = next((spelling for spelling in spellings if has(spelling)), None)
    if direct is not None:
        return (Piece(name=direct),)
    if len(shape) != 3:
        return ()
    for style in STYLES:
        made = stacked_pieces(name, shape, style=style)
        for prefixed in (made, tuple(_without_base(piece) for piece in made)):
            if prefixed and has(prefixed[0].name):
                return prefixed
    return ()


def stacked_pieces(name: str, shape: tuple[int, ...], *, style: ExpertNames) -> tuple[Piece, ...]:
    """Every expert's matrices inside a stacked tensor; none when the name is not that of a stack."""
    module, _, _ = name.rpartition(".experts.")
    block = f"{module.removesuffix('.mlp')}.{style.block}" if module.endswith(".mlp") else module
    num_experts = shape[0]
    if name.endswith(STACKED_GATE_UP):
        half = shape[1] // 2
        return tuple(
            Piece(name=f"{block}.experts.{expert}.{projection}.weight", start=(expert, row, 0), is_stacked=True)
            for expert in range(num_experts)
            for projection, row in ((style.gate, 0), (style.up, half))
        )
    if name.endswith(STACKED_DOWN):
        return tuple(
            Piece(name=f"{block}.experts.{expert}.{style.down}.weight", start=(expert, 0, 0), is_stacked=True)
            for expert in range(num_experts)
        )
    return ()


def saved_names(name: str, shape: tuple[int, ...], *, model_type: str) -> tuple[Piece, ...]:
    """The tensors that a checkpoint of this family holds a model's tensor as."""
    style = STYLES[1] if model_type in ("mixtral", "minimax", "minimax_m2") else STYLES[0]
    stacked = stacked_pieces(name, shape, style=style) if len(shape) == 3 else ()
    renamed = name.replace(".mlp.gate.", f".{style.block}.gate.") if style.block != "mlp" else name
    return stacked or (Piece(name=renamed),)


def _spellings(name: str, *, is_tied: bool) -> tuple[str, ...]:
    """The names a tensor may have, likeliest first."""
    twins: Iterable[str] = TIED.get(name, ()) if is_tied else ()
    found = [name, name.replace(".mlp.gate.", ".block_sparse_moe.gate."), *twins]
    return tuple(dict.fromkeys([*found, *(_base_name(spelling) for spelling in found)]))


def _base_name(name: str) -> str:
    """The name without the prefix that a checkpoint of the bare base model lacks."""
    for prefix in ("model.", "transformer."):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _without_base(piece: Piece) -> Piece:
    return Piece(name=_base_name(piece.name), start=piece.start, is_stacked=piece.is_stacked)
