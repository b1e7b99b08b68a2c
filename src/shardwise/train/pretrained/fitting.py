"""Whether a Hugging Face checkpoint holds what a model wants, by name and shape: headers are read and no weight."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from shardwise.errors import CheckpointError
from shardwise.train.pretrained.files import SavedTensor, read_config, saved_tensors
from shardwise.train.pretrained.names import STACKED_GATE_UP, Piece, pieces_of

__all__ = [
    "first_of",
    "missing_tensor",
    "not_convertible",
    "not_finite",
    "other_dtype",
    "other_shape",
    "require_fitting",
    "require_same_model",
]

Shape = tuple[int, ...]
FLOATING_POINT = ("BF16", "F16", "F32", "F64")
"""Types that weights are read from; those of one byte and of whole numbers need scales that stand in other tensors."""
QUANTISED_FIX = "start from the checkpoint that was quantised, or convert this one to bf16"
SIZES = ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size")


def require_fitting(folder: Path, wanted: Iterable[tuple[str, Shape]]) -> None:
    """Return when the checkpoint can fill a model of these tensors.

    Raises:
        CheckpointError: a tensor is missing, has another shape there or a type that no weights are read from; how many
            others do, is said as well.
    """
    saved = saved_tensors(folder)
    is_tied = bool(read_config(folder).get("tie_word_embeddings", True))
    error = first_of(
        error for name, shape in wanted if (error := _difference(folder, name, shape, saved, is_tied=is_tied))
    )
    if error is not None:
        raise error


def first_of(errors: Iterable[CheckpointError]) -> CheckpointError | None:
    """The first of many errors, which says how many others there are; ``None`` where there are none."""
    found = list(errors)
    if not found:
        return None
    others = f"; {len(found) - 1} other tensors do not fit either" if len(found) > 1 else ""
    return CheckpointError(f"{found[0].message}{others}", code=found[0].code, fix=found[0].fix)


def require_same_model(folder: Path, config: Mapping[str, object]) -> None:
    """Return when the config.json beside the weights speaks of the same model; for models whose tensors none can list.

    A folder without a config.json is not judged: ranks compare every tensor when they read it.

    Raises:
        CheckpointError: it is of another family, or of another size.
    """
    saved, own = read_config(folder), dict(config)
    if not saved:
        return
    families, own_families = _model_types(saved), _model_types(own)
    if families and own_families and not families & own_families:
        raise _other_model(folder, "model_type", " or ".join(sorted(families)), " or ".join(sorted(own_families)))
    for name in SIZES:
        held, wanted = _text_config(saved).get(name), _text_config(own).get(name)
        if held is not None and wanted is not None and held != wanted:
            raise _other_model(folder, name, held, wanted)


def _text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """The language model's part of a config that wraps one."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _model_types(config: Mapping[str, object]) -> frozenset[str]:
    """Names of the family: the wrapper's and the language model's."""
    named = (config.get("model_type"), _text_config(config).get("model_type"))
    return frozenset(str(name).removesuffix("_text") for name in named if name)


def _other_model(folder: Path, name: str, saved: object, wanted: object) -> CheckpointError:
    return CheckpointError(
        f"{folder} holds weights of a model with {name} {saved}, and the model to train has {wanted}",
        code="pretrained-tensor",
        fix="start from a checkpoint of the same model",
    )


def missing_tensor(folder: Path, name: str) -> CheckpointError:
    """A checkpoint that lacks a tensor of the model; one that was quantised may have it in parts."""
    quantised = read_config(folder).get("quantization_config")
    if isinstance(quantised, Mapping):
        return CheckpointError(
            f"{folder} holds no tensor {name}: its weights are quantised ({quantised.get('quant_method')!s:.40})",
            code="pretrained-tensor",
            fix=QUANTISED_FIX,
        )
    return CheckpointError(
        f"{folder} holds no tensor {name}", code="pretrained-tensor", fix="start from a checkpoint of the same model"
    )


def other_shape(folder: Path, name: str, *, saved: Shape, wanted: Shape) -> CheckpointError:
    """A checkpoint whose tensor is larger or smaller than the model's."""
    return CheckpointError(
        f"{name} is {saved} in {folder} and {wanted} in the model",
        code="pretrained-tensor",
        fix="use the config.json of that checkpoint",
    )


def other_dtype(folder: Path, name: str, dtype: str) -> CheckpointError | None:
    """A checkpoint whose tensor has a type that no weights are read from; ``None`` where weights are."""
    if dtype in FLOATING_POINT:
        return None
    return CheckpointError(
        f"{name} is {dtype} in {folder}, and weights are read as {', '.join(FLOATING_POINT)}",
        code="pretrained-tensor",
        fix=QUANTISED_FIX,
    )


def not_convertible(folder: Path, name: str, reason: str) -> CheckpointError:
    """A checkpoint with some tensors that make one of the model, and not all of them."""
    return CheckpointError(
        f"{name} cannot be made of what {folder} holds: {' '.join(reason.split())}",
        code="pretrained-tensor",
        fix="start from a checkpoint of the same model",
    )


def not_finite(path: Path, name: str) -> CheckpointError:
    """A checkpoint with a tensor that nothing can be trained from: every loss would be no number."""
    return CheckpointError(
        f"{name} in {path} holds values that are not finite",
        code="pretrained-not-finite",
        fix="copy that file again if there is a good copy, or start from other weights",
    )


def _difference(
    folder: Path, name: str, shape: Shape, saved: Mapping[str, SavedTensor], *, is_tied: bool
) -> CheckpointError | None:
    pieces = pieces_of(name, shape, has=saved.__contains__, is_tied=is_tied)
    if not pieces:
        return missing_tensor(folder, name)
    for piece in pieces:
        wanted = _piece_shape(piece, name, shape)
        if piece.name not in saved:
            return missing_tensor(folder, piece.name)
        found = saved[piece.name]
        if found.shape != wanted:
            return other_shape(folder, piece.name, saved=found.shape, wanted=wanted)
        if error := other_dtype(folder, piece.name, found.dtype):
            return error
    return None


def _piece_shape(piece: Piece, name: str, shape: Shape) -> Shape:
    """Shape of a tensor in the checkpoint: the model's tensor, or an expert's part of a stack."""
    if not piece.is_stacked:
        return shape
    return (shape[1] // 2, shape[2]) if name.endswith(STACKED_GATE_UP) else shape[1:]
