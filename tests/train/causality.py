"""What the loss of a token depends on: later tokens, other sequences, other documents, and what it may see.

A probe compares sums of losses over some positions before and after other tokens are replaced, and of packed documents
with the same documents alone.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.loss import IGNORED_LABEL
from train.tiny_families import VOCAB_SIZE, tiny_fields

WINDOW = 8
WINDOW_FIELDS = ("sliding_window", "sliding_window_size", "attention_chunk_size")
WINDOWED_LAYERS = ("sliding_attention", "chunked_attention")
NEEDS_A_WINDOW = ("deepseek_v4", "inkling_text", "inkling2_text", "inkling2_loop_text", "laguna", "moshi")
"""Families whose window is a number, so that none is one as long as the sequence."""
LOCAL = {"gpt_neo": {"attention_types": [[["global"], 4]]}}
"""How a family without ``layer_types`` says that all its layers attend in full."""
SEQ_LEN = 48
SPLIT = 30
"""Tokens from here on are replaced; losses before it may not change."""
LENGTHS = (11, 20, 17)
"""Of packed documents; two are longer than twice a window."""
SAME = 2e-6
"""Two sums of losses that differ by rounding alone lie nearer to each other, relative to either (5e-7 were seen)."""
SEEN = 1e-5
"""A token that is seen changes what sees it by more (1.6e-5 is the least that was seen)."""
HYBRID = {"layer_types": ["conv", "full_attention", "conv", "full_attention"]}
INDEXED = {"index_n_heads": 16}
"""With two heads, an indexer scores many tokens 0, and which of equals it chooses is anybody's guess."""
INKLING = {"swa_head_dim": 8, "unpadded_vocab_size": VOCAB_SIZE}
PROBED: dict[str, dict[str, Any]] = {
    "lfm2": HYBRID,
    "inkling_text": {"swa_head_dim": 8},
    "inkling2_text": INKLING,
    "inkling2_loop_text": INKLING,
    "lfm3": HYBRID,
    "deepseek_v32": INDEXED,
    "glm_moe_dsa": INDEXED,
    "falcon_h1": {
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
        "mamba_chunk_size": 16,
    },
    "rembert": {"input_embedding_size": 32, "output_embedding_size": 32},
    "dots3_note_text": {"num_key_value_heads": 4},
    "kimi_linear": {"num_key_value_heads": 4},
    "cpmant": {"vocab_size": 200, "segment_types": 32, "prompt_types": 32, "prompt_length": 32},
    "reformer": {
        "is_decoder": True,
        "attention_head_size": 8,
        "axial_pos_embds": False,
        "lsh_attn_chunk_length": 8,
        "local_attn_chunk_length": 8,
        "feed_forward_size": 48,
    },
}
"""What the probe needs beside the sizes of a family, so that all it has is there and nothing is a tie."""
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim")
HEAD_WIDTHS = (
    *(
        "head_dim",
        "v_head_dim",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "rotary_dim",
        "global_head_dim",
        "swa_head_dim",
    ),
    *("linear_key_head_dim", "linear_value_head_dim", "attention_head_dim", "mamba_d_head", "mamba_headdim"),
)
LEFT_AS_THEY_BEGIN = ("A_log", "dt_bias", "time_decay")
"""Parameters that make numbers overflow when they are moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """How far losses moved, relative to what they are."""

    later: float
    """Losses of early tokens, when later ones are replaced or cut off."""
    other_sequence: float
    """Losses of one sequence, when the other of the batch is replaced."""
    own: float
    """Losses of tokens, when one that they may see is replaced."""
    apart: float | None
    """Losses of packed documents, from those of the same documents alone; ``None`` where packing them fails."""

    @property
    def is_causal(self) -> bool:
        """Whether nothing that must not be seen is, in whole sequences."""
        return max(self.later, self.other_sequence) < SAME

    @property
    def keeps_documents_apart(self) -> bool:
        """Whether packed documents have the losses that they have alone."""
        return self.apart is not None and self.apart < SAME


def probed_fields(model_type: str, *, has_windows: bool = False) -> dict[str, Any]:
    """The fields of a small config of a family: with sliding windows or chunks wherever it has fields for them, or with
    every layer that attends in full and no window at all."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    fields = {**tiny_fields(model_type), **PROBED.get(model_type, {})}
    known = vars(CONFIG_MAPPING[model_type](**{name: value for name, value in fields.items() if name != "model_type"}))
    windows = {name for name in WINDOW_FIELDS if name in known}
    if has_windows:
        deepest = {"max_window_layers": 0} if "use_sliding_window" in known else {}
        return {**fields, **dict.fromkeys(windows, WINDOW), **_where_known(known, use_sliding_window=True), **deepest}
    layers = known.get("layer_types") or ()
    in_full = {"layer_types": ["full_attention"] * len(layers)} if {*layers} & {*WINDOWED_LAYERS} else {}
    wide = dict.fromkeys(windows, SEQ_LEN if in_full or model_type in NEEDS_A_WINDOW else None)
    if model_type in LOCAL:
        wide, in_full = {}, LOCAL[model_type]
    return {**fields, **wide, **in_full, **_where_known(known, use_sliding_window=False)}


def twice_as_wide(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with heads of at least 16 elements, which ``flex_attention`` asks for on a GPU."""
    wider = {name: 2 * fields[name] for name in (*WIDTHS, *HEAD_WIDTHS) if isinstance(fields.get(name), int)}
    return {**fields, **wider}


def _where_known(known: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in known}


def filled_decoder(
    fields: dict[str, Any], attention: str, *, device: torch.device, has_block_masks: bool = False
) -> TransformersDecoder:
    """Our model of transformers with initial values of its class, all moved a little, as zeros hide what is wrong."""
    from transformers import AutoConfig, AutoModelForCausalLM

    decoder = TransformersDecoder(copy.deepcopy(fields), attention=attention, has_block_masks=has_block_masks)
    options = copy.deepcopy(fields)
    torch.manual_seed(0)
    source = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(options.pop("model_type"), **options), dtype=torch.float32
    )
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in source.named_parameters():
            if not name.endswith(LEFT_AS_THEY_BEGIN):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=chance))
    source.to(device)
    decoder.load_state_dict(source.state_dict(), strict=False, assign=True)
    for name, buffer in source.named_buffers():
        owner, _, leaf = name.rpartition(".")
        decoder.get_submodule(owner).register_buffer(leaf, buffer, persistent=False)
    return decoder.eval()


def probe(decoder: nn.Module, *, device: torch.device) -> Findings:
    """What the losses of a decoder depend on."""
    chance = torch.Generator().manual_seed(2)
    ids, labels, others = (torch.randint(VOCAB_SIZE, (2, SEQ_LEN), generator=chance).to(device) for _ in range(3))
    early, own = _only(labels, 0, SPLIT), _only(labels, 4, 9)
    replaced, longer = torch.cat([ids[:, :SPLIT], others[:, SPLIT:]], dim=1), _loss(decoder, ids, early)
    first = ids.clone()
    first[:, 0] = others[:, 0] + (others[:, 0] == ids[:, 0])
    top = _only(labels, 0, SEQ_LEN)
    top[1] = IGNORED_LABEL
    later = (_loss(decoder, replaced, early), _loss(decoder, ids[:, :SPLIT], labels[:, :SPLIT]))
    documents = _documents(decoder, ids, labels)
    return Findings(
        later=max(_moved(loss, longer) for loss in later),
        other_sequence=_moved(_loss(decoder, torch.stack([ids[0], others[1]]), top), _loss(decoder, ids, top)),
        own=_moved(_loss(decoder, first, own), _loss(decoder, ids, own)),
        apart=max(documents) if documents else None,
    )


def _documents(decoder: nn.Module, ids: Tensor, labels: Tensor) -> list[float]:
    """How far the loss of every packed document is from that of the document alone; nothing where packing fails."""
    places = torch.cat([torch.arange(length) for length in LENGTHS]).expand(2, -1).to(ids.device)
    found, start = [], 0
    for length in LENGTHS:
        end = start + length
        alone = _loss(decoder, ids[:, start:end], labels[:, start:end])
        try:
            found.append(_moved(_loss(decoder, ids, _only(labels, start, end), places), alone))
        except Exception:  # noqa: BLE001 - whatever a family says to masks that it does not take
            return []
        start = end
    return found


def _only(labels: Tensor, start: int, end: int) -> Tensor:
    kept = torch.full_like(labels, IGNORED_LABEL)
    kept[:, start:end] = labels[:, start:end]
    return kept


def _loss(decoder: nn.Module, ids: Tensor, labels: Tensor, *places: Tensor) -> float:
    with torch.no_grad():
        return decoder(ids.contiguous(), labels.contiguous(), *places).item()


def _moved(loss: float, before: float) -> float:
    return abs(loss - before) / abs(before) if math.isfinite(loss) else math.inf
