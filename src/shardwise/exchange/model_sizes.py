"""The sizes of a model that files say beside its name, set against those of the model itself."""

from collections.abc import Mapping

from shardwise.exchange.names import FILE, Claim
from shardwise.exchange.reading import Contradiction, Reading
from shardwise.model import ModelSpec

__all__ = ["against_model"]

VOCABULARY = "vocab_size"
PADDED_ROWS = 1024
"""The fewest rows by which two vocabularies of one model do not differ: tables are padded to multiples of 128 for each
rank of tensor parallelism (``make_vocab_size_divisible_by``), and published ones to multiples of up to 1024."""


def against_model(reading: Reading, model: ModelSpec, *, place: str) -> tuple[Contradiction, ...]:
    """Each size that the files say and the model does not have, beside the model's own.

    Args:
        reading: of the files.
        model: what is trained.
        place: where the model is named.
    """
    found = []
    for field, sizes in _sizes(model).items():
        said = reading.claim(field)
        number = reading.number(field)
        slack = PADDED_ROWS if field == VOCABULARY else 1
        if said is not None and number is not None and all(abs(size - number) >= slack for size in sizes):
            found.append(
                Contradiction(first=said, second=Claim(field=field, value=sizes[0], place=place, strength=FILE))
            )
    return tuple(found)


def _sizes(model: ModelSpec) -> Mapping[str, tuple[int, ...]]:
    """The sizes of a model by the names that files' claims have; several where its blocks differ."""
    attention = model.attention_shapes
    widths = [shape.intermediate_size for shape in model.dense_shapes]
    widths += [shape.moe_intermediate_size for shape in model.moe_shapes]
    sizes = {
        "num_layers": (model.num_hidden_layers,),
        "hidden_size": (model.hidden_size,),
        "ffn_hidden_size": tuple(widths),
        "num_heads": tuple(shape.num_attention_heads for shape in attention),
        "num_key_value_heads": tuple(shape.num_key_value_heads for shape in attention if shape.kv_lora_rank is None),
        "num_experts": tuple(shape.num_experts for shape in model.moe_shapes) or (0,),
        VOCABULARY: (model.vocab_size,),
    }
    return {field: values for field, values in sizes.items() if values}
