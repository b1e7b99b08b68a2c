"""A model of a family that only the installed transformers knows: its class is built by a process of its own.

Weights and counts are those of the class, to the parameter. Which half of a block a weight belongs to is read off its
name, so a plan says that its blocks were described this way.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import prod
from pathlib import Path

from shardwise.errors import ModelError
from shardwise.families.assembly import NO_POSITION_LIMIT, repeat_layers
from shardwise.families.blocks import Weights
from shardwise.families.config import ModelConfig, with_our_spelling
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, MambaSpec, ModelSpec, MoeSpec, Role, Split, Weight

__all__ = ["can_ask", "class_model", "is_listed"]

Fields = Mapping[str, object]
BUILDER = "shardwise.train.described_class"
BUILDER_S = 300
"""Seconds that importing transformers and building a class without values may take; usually five."""
ROW_NAMES = re.compile(
    r"(^|\.)(o|out|down|output|c|wo|w2|fc2|fc_out|dense|dense_4h_to_h|\w*_out|\w*(down|out|o|c)_proj)$"
)
"""Matrices that bring a block's inner width back to the hidden size: tensor parallelism divides their input."""
RECURRENT = re.compile(r"mamba|ssm|conv|A_log|lru|linear_attn|delta|recurren|rwkv|time_mix|decay")
ATTENTION = re.compile(r"attn|attention|(^|\.)(q|k|v|qkv)_proj|query_key_value|c_attn|Wqkv")
ROUTER = re.compile(r"(^|\.)(gate|router|wg|gate_proj|classifier)(\.\w+)*$")
UNKNOWN = ("KeyError", "ImportError", "ModuleNotFoundError")
"""Answers that say nothing of the config: a family that the installed version has not, or a library that it lacks."""
PART = re.compile(r"[^.]*(\.\d+)*")
ONE_EXPERT = re.compile(r"(experts)\.\d+\.")
SHARED = re.compile("shared")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One parameter of the class: its path, shape and the class of the module that holds it."""

    name: str
    shape: tuple[int, ...]
    module: str


def can_ask() -> bool:
    """Whether transformers and torch are installed, without which no class is built."""
    return find_spec("transformers") is not None and find_spec("torch") is not None


def is_listed(model_type: str) -> bool:
    """Whether the installed transformers names a family in its tables, which are read as text and not imported."""
    found = find_spec("transformers")
    folders = (found.submodule_search_locations or ()) if found is not None else ()
    tables = [file for folder in folders for file in Path(folder, "models", "auto").glob("*.py")]
    return any(f'"{model_type}"' in table.read_text(encoding="utf-8") for table in tables)


def class_model(fields: Fields, model_type: str) -> ModelSpec | None:
    """The model that the installed transformers builds; ``None`` without it, or where it knows no such family.

    Raises:
        ModelError: it knows the family and takes no such config.
    """
    if not (can_ask() and is_listed(model_type)):
        return None
    answer = _answer({**fields, "model_type": model_type})
    if answer is None or "unknown" in answer:
        return None
    refused = answer.get("refused")
    if isinstance(refused, str):
        if refused.startswith(UNKNOWN):
            return None
        raise ModelError(
            f"transformers builds no {model_type:.60} of this config: {refused}",
            code="model-field-type",
            fix="write the field as transformers takes it in config.json",
        )
    return _model(answer, model_type)


def _answer(fields: Fields) -> dict[str, object] | None:
    """Ask a process of its own to build the class; ``None`` where it ends without an answer."""
    try:
        answer = _asked(json.dumps(fields))
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return None
    return answer if isinstance(answer, dict) else None


@lru_cache(maxsize=64)
def _asked(fields_json: str) -> object:
    """The builder's answer for a config; a refusal is kept too, so that a file of plans asks once, not once a line.

    A process that ends without an answer is asked again.
    """
    done = subprocess.run(
        [sys.executable, "-m", BUILDER],
        input=fields_json,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILDER_S,
    )
    return json.loads(done.stdout.splitlines()[-1])


def _model(answer: Mapping[str, object], model_type: str) -> ModelSpec:
    given = answer["fields"]
    spelled = with_our_spelling(given) if isinstance(given, Mapping) else {}
    config = ModelConfig(model_type, {name: value for name, value in spelled.items() if value is not None}, {})
    rows, stacks = answer["weights"], answer["stacks"]
    tensors = [Tensor(name, tuple(shape), module) for name, shape, module in rows] if isinstance(rows, list) else []
    stacks = [str(stack) for stack in stacks] if isinstance(stacks, list) else []
    table, head = str(answer["table"]), str(answer["head"])
    blocks = [block for stack in stacks for block in _blocks(tensors, stack)]
    if not blocks:
        raise ModelError(
            f"{answer['class']} of transformers has no stack of blocks that could be planned",
            code="model-unknown-family",
            fix='describe the decoder with "model_type": "generic" and its sizes',
        )
    outside = [tensor for tensor in tensors if not tensor.name.startswith(tuple(f"{stack}." for stack in stacks))]
    root = table.rpartition(".")[0].rpartition(".")[0]
    sides = [tensor for tensor in outside if tensor.name not in (table, head) and not _is_near(tensor.name, root)]
    others = [tensor for tensor in outside if tensor.name not in (table, head) and tensor not in sides]
    rows_of_table = next((tensor.shape for tensor in tensors if tensor.name == table), None)
    vocab, hidden = rows_of_table or (config.count("vocab_size"), config.count("hidden_size"))
    has_own_head = bool(head) and head != table
    return ModelSpec(
        name=config.text_or("name", model_type),
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=vocab,
        max_position_embeddings=config.count_or("max_position_embeddings", NO_POSITION_LIMIT),
        layers=repeat_layers(blocks, lambda block: _layer(config, hidden, block)),
        embedding_weights=tuple(
            Weight(name=tensor.name, shape=tensor.shape, split="vocab", role="embedding")
            for tensor in tensors
            if tensor.name == table
        ),
        final_weights=tuple(_weight(tensor, 0, hidden) for tensor in others),
        head_weights=tuple(
            Weight(name=tensor.name, shape=tensor.shape, split="vocab", role="head")
            for tensor in tensors
            if has_own_head and tensor.name == head
        ),
        side_weights=tuple(_weight(tensor, 0, hidden) for tensor in sides),
        tie_word_embeddings=bool(head) and head == table,
        has_head=bool(head),
        assumptions=(
            f"{model_type} is no family of ours: weights and counts are those of {answer['class']} as transformers "
            f"{answer['version']} builds it, and what its blocks do is read off their names",
        ),
    )


def _is_near(name: str, root: str) -> bool:
    """Whether a weight outside the blocks lies beside the token table, and is no tower of its own."""
    return name.startswith(f"{root}.") if root else name.count(".") < 2


def _blocks(tensors: list[Tensor], stack: str) -> Iterator[tuple[Tensor, ...]]:
    """The weights of each block of a stack by their names within it, experts that are modules of their own stacked."""
    blocks: dict[int, dict[str, Tensor]] = {}
    experts: dict[tuple[int, str], int] = {}
    for tensor in tensors:
        if not tensor.name.startswith(f"{stack}."):
            continue
        index, _, name = tensor.name.removeprefix(f"{stack}.").partition(".")
        plain = ONE_EXPERT.sub(r"\1.", name)
        key = (int(index), plain)
        experts[key] = experts.get(key, 0) + 1
        shape = (experts[key], *tensor.shape) if plain != name else tensor.shape
        blocks.setdefault(int(index), {})[plain] = Tensor(plain, shape, tensor.module)
    return (tuple(blocks[index].values()) for index in sorted(blocks))


def _weight(tensor: Tensor, num_experts: int, hidden: int) -> Weight:
    """The weight with its part in a block, as its name, shape and module say."""
    shape, path = tensor.shape, tensor.name.removesuffix(".weight").removesuffix("_weight")
    role: Role = "matrix"
    is_row = bool(ROW_NAMES.search(path))
    if len(shape) == 2 and (shape[0] == hidden) != (shape[1] == hidden):
        is_row = (shape[0] == hidden) != ("Conv1D" in tensor.module)
    split: Split = "row" if is_row else "column"
    if "norm" in tensor.module.lower() or ("norm" in path and len(shape) == 1):
        role, split = "norm", "replicated"
    elif "Embedding" in tensor.module:
        role, split = "embedding", "replicated"
    elif "Conv" in tensor.module and "Conv1D" not in tensor.module:
        role = "convolution" if len(shape) > 1 else "bias"
    elif tensor.name.endswith("bias"):
        role, split = "bias", "replicated" if split == "row" else split
    elif len(shape) < 2:
        role, split = "other", "replicated"
    elif num_experts and shape == (num_experts, hidden) and ROUTER.search(path):
        role, split = "router", "replicated"
    if len(shape) == 2 and "Conv1D" in tensor.module:
        shape = (shape[1], shape[0])
    is_expert = num_experts > 0 and "expert" in path and len(shape) > 1 and shape[0] == num_experts and role != "router"
    return Weight(
        name=tensor.name, shape=shape, split=split, role=role, is_expert=is_expert and not SHARED.search(path)
    )


def _layer(config: ModelConfig, hidden: int, block: tuple[Tensor, ...]) -> LayerSpec:
    count = config.count_or_zero("num_experts") or max(
        (t.shape[0] for t in block if "experts" in t.name and len(t.shape) == 3), default=0
    )
    weights = tuple(_weight(tensor, count, hidden) for tensor in block)
    norms = [weight for weight in weights if weight.role == "norm" and weight.shape == (hidden,)]
    has_norm_bias = any(weight.name.endswith("bias") for weight in norms)
    matrices = tuple(weight for weight in weights if weight.is_matrix)
    recurrent_parts = {_part(weight) for weight in weights if RECURRENT.search(weight.name) and not weight.is_expert}
    attention_parts = {_part(weight) for weight in matrices if ATTENTION.search(weight.name)} - recurrent_parts
    recurrent = tuple(weight for weight in weights if _part(weight) in recurrent_parts)
    attention = tuple(weight for weight in matrices if _part(weight) in attention_parts)
    second = tuple(weight for weight in matrices if weight not in attention and weight not in recurrent)
    return LayerSpec(
        mixer=_attention(config, hidden) if attention else _recurrent(config, recurrent, hidden),
        feed_forward=_feed_forward(config, second, hidden),
        norm="layernorm" if has_norm_bias else "rmsnorm",
        num_norms=sum(not weight.name.endswith("bias") for weight in norms),
        weights=weights,
    )


def _part(weight: Weight) -> str:
    """The module of a block that a weight belongs to, such as ``self_attn`` or ``layer.0``."""
    found = PART.match(weight.name)
    return found[0] if found else ""


def _attention(config: ModelConfig, hidden: int) -> AttentionSpec:
    heads = config.count("num_attention_heads")
    latent = config.optional_count("kv_lora_rank")
    rope_dim = config.optional_count("qk_rope_head_dim")
    head_dim = config.optional_count("head_dim") or hidden // heads
    if latent and rope_dim:
        head_dim = config.count("qk_nope_head_dim") + rope_dim
    return AttentionSpec(
        kind="mla" if latent and rope_dim else "mha",
        num_attention_heads=heads,
        num_key_value_heads=heads if latent else config.count_or("num_key_value_heads", heads),
        head_dim=head_dim,
        v_head_dim=config.count_or("v_head_dim", head_dim),
        q_lora_rank=config.count_or_zero("q_lora_rank") or None,
        kv_lora_rank=latent,
        qk_rope_head_dim=rope_dim,
    )


def _recurrent(config: ModelConfig, weights: Weights, hidden: int) -> MambaSpec | None:
    """A mixer with a state, as wide as the matrix that ends it."""
    if not any(weight.is_matrix for weight in weights):
        return None
    widths = [weight.shape[-1] for weight in weights if weight.is_matrix and weight.split == "row"]
    kernels = [weight.shape[-1] for weight in weights if weight.role == "convolution"]
    sizes = [config.optional_count(name) for name in ("state_size", "mamba_d_state", "ssm_state_size", "head_dim")]
    return MambaSpec(
        version=2,
        intermediate_size=max(widths, default=hidden),
        state_size=next((size for size in sizes if size), 1),
        conv_kernel=max(kernels, default=1),
        time_step_rank=0,
        num_heads=config.optional_count("mamba_n_heads") or max(widths, default=hidden),
    )


def _feed_forward(config: ModelConfig, matrices: Weights, hidden: int) -> DenseSpec | MoeSpec | None:
    """The second half of a block, its width that of the matrices that end it."""
    experts = tuple(weight for weight in matrices if weight.is_expert)
    shared = tuple(weight for weight in matrices if not weight.is_expert and weight.role == "matrix")
    act = config.text_or("hidden_act", "unknown")
    width, is_gated = _width(shared, hidden)
    if not experts:
        return DenseSpec(intermediate_size=width, hidden_act=act, is_gated=is_gated) if width else None
    count = experts[0].shape[0]
    expert_width, is_gated = _width(experts, hidden * count)
    return MoeSpec(
        num_experts=count,
        num_experts_per_tok=min(count, config.count_or("num_experts_per_tok", 1)),
        moe_intermediate_size=max(1, expert_width),
        shared_intermediate_size=width,
        hidden_act=act,
        is_gated=is_gated,
    )


def _width(matrices: Weights, hidden: int) -> tuple[int, bool]:
    """Inner width of a feed-forward part, and whether it has a gate: what goes in is then twice what comes out."""
    into = sum(prod(weight.shape) for weight in matrices if weight.split == "column")
    out = sum(prod(weight.shape) for weight in matrices if weight.split == "row")
    return max(out, into // 2 if not out else 0) // hidden, into > 1.5 * out
