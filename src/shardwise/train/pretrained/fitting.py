"""Whether a Hugging Face checkpoint holds what a model wants, by name and shape: headers are read and no weight."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from shardwise.errors import CheckpointError
from shardwise.train.pretrained.files import read_config, saved_shapes
from shardwise.train.pretrained.names import STACKED_GATE_UP, Piece, pieces_of

__all__ = ["missing_tensor", "other_shape", "require_fitting"]

Shape = tuple[int, ...]


def require_fitting(folder: Path, wanted: Iterable[tuple[str, Shape]]) -> None:
    """Return when the checkpoint can fill a model of these tensors.

    Raises:
        CheckpointError: a tensor is missing or has another shape there; how many others do, is said as well.
    """
    saved = saved_shapes(folder)
    is_tied = bool(read_config(folder).get("tie_word_embeddings", True))
    found = [error for name, shape in wanted if (error := _difference(folder, name, shape, saved, is_tied=is_tied))]
    if not found:
        return
    others = f"; {len(found) - 1} other tensors do not fit either" if len(found) > 1 else ""
    raise CheckpointError(f"{found[0].message}{others}", code=found[0].code, fix=found[0].fix)


def missing_tensor(folder: Path, name: str) -> CheckpointError:
    """A checkpoint that lacks a tensor of the model."""
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


def _difference(
    folder: Path, name: str, shape: Shape, saved: Mapping[str, Shape], *, is_tied: bool
) -> CheckpointError | None:
    pieces = pieces_of(name, shape, has=saved.__contains__, is_tied=is_tied)
    if not pieces:
        return missing_tensor(folder, name)
    for piece in pieces:
        wanted = _piece_shape(piece, name, shape)
        if piece.name not in saved:
            return missing_tensor(folder, piece.name)
        if saved[piece.name] != wanted:
            return other_shape(folder, piece.name, saved=saved[piece.name], wanted=wanted)
    return None


def _piece_shape(piece: Piece, name: str, shape: Shape) -> Shape:
    """Of a tensor of the checkpoint: the model's, or an expert's part of a stack."""
    if not piece.is_stacked:
        return shape
    return (shape[1] // 2, shape[2]) if name.endswith(STACKED_GATE_UP) else shape[1:]
