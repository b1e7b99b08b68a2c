"""The adapters of a run in the format of peft, so that ``PeftModel.from_pretrained`` loads them."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint.reading import PlainReader, load_states
from shardwise.train.pretrained.companions import Companions
from shardwise.train.pretrained.export import unfinished_export

__all__ = ["AdapterSettings", "adapter_tensors", "export_adapter"]

PREFIX = "base_model.model."
"""The prefix that peft puts before the names of the model it wraps."""
WEIGHTS_FILE, CONFIG_FILE, CARD_FILE = "adapter_model.safetensors", "adapter_config.json", "README.md"
MODEL_STATE = "model."


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """The settings of adapters, apart from their weights; the fields of peft's ``LoraConfig``."""

    rank: int
    scale_ratio: float
    """Factor on the product of an adapter's two matrices: alpha over rank, or over its root."""
    is_rank_stabilised: bool = False
    """Whether alpha is divided by the root of the rank (rsLoRA)."""
    dropout_fraction: float
    target_names: tuple[str, ...]
    """Last parts of the names of the matrices that have adapters."""
    base_model: str | None = None
    """Folder of the model that the adapters belong to; ``None`` where its weights were random."""
    base_digest: str | None = None
    """Digest of the base model's weights, as ``weights_digest`` of the job."""
    begins_with: tuple[tuple[str, str], ...] = ()
    """Sources of the run's weights, adapters and tokens, in words."""


def export_adapter(
    checkpoint: Path, folder: Path, settings: AdapterSettings, *, companions: Companions | None = None
) -> Path:
    """Write the adapters in a checkpoint so that peft loads them.

    Needs no process group, whatever layout the checkpoint was written under.

    Args:
        checkpoint: a complete checkpoint of a run that trained adapters.
        folder: does not exist yet.
        settings: what the adapters are.
        companions: where the tokenizer and the settings of generation lie that go along.

    Returns:
        The file with the weights.
    """
    if folder.exists():
        raise CheckpointError(f"{folder} exists already", code="output-exists", fix="choose another folder")
    named = {f"{PREFIX}{name}": value for name, value in adapter_tensors(checkpoint).items()}
    text = json.dumps(_peft_config(settings), indent=2) + "\n"
    with unfinished_export(folder, needed_bytes=sum(value.nbytes for value in named.values())) as unfinished:
        save_file(named, unfinished / WEIGHTS_FILE, metadata={"format": "pt"})
        (unfinished / CONFIG_FILE).write_text(text, encoding="utf-8")
        (unfinished / CARD_FILE).write_text(_card(settings), encoding="utf-8")
        if companions is not None:
            companions.copy_to(unfinished)
    return folder / WEIGHTS_FILE


def adapter_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The factors that a checkpoint of adapters holds, by the names of their parameters."""
    reader = PlainReader(checkpoint)
    metadata = reader.read_metadata().state_dict_metadata
    values = {
        key: torch.empty(found.size, dtype=found.properties.dtype)
        for key, found in metadata.items()
        if key.startswith(MODEL_STATE) and isinstance(found, TensorStorageMetadata)
    }
    load_states(values, reader)
    return {key.removeprefix(MODEL_STATE): value for key, value in sorted(values.items())}


def _peft_config(settings: AdapterSettings) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": settings.base_model,
        "r": settings.rank,
        "lora_alpha": settings.scale_ratio * settings.rank ** (0.5 if settings.is_rank_stabilised else 1),
        "use_rslora": settings.is_rank_stabilised,
        "lora_dropout": settings.dropout_fraction,
        "target_modules": list(settings.target_names),
        "bias": "none",
        "inference_mode": True,
    }


def _card(settings: AdapterSettings) -> str:
    """The model card: which weights the adapters fit, and what they were trained on, for whoever finds the folder."""
    fields = {"library_name": "peft", **({"base_model": settings.base_model} if settings.base_model else {})}
    head = "\n".join(f"{name}: {json.dumps(value)}" for name, value in fields.items())
    rows = "\n".join(f"- {name}: {said}" for name, said in settings.begins_with)
    fits = (
        f"They fit the weights in `{settings.base_model}` (digest {settings.base_digest or 'unknown'})."
        if settings.base_model
        else "They were trained beside random weights and fit no model that was trained: merged into one, they harm it."
    )
    return (
        f"---\n{head}\n---\n\n# LoRA adapters of rank {settings.rank}\n\n{fits} Their training began with:\n\n{rows}\n"
    )
