"""The records of a run as TensorBoard's events."""

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from shardwise.train.failure.full_disk import writing
from shardwise.train.metrics import StepRecord

CURVES = {
    "loss": "train/loss",
    "gradient_norm": "train/gradient_norm",
    "learning_rate": "train/learning_rate",
    "loss_scale_ratio": "train/loss_scale_ratio",
    "num_skipped_steps": "train/num_skipped_steps",
    "validation_loss": "validation/loss",
    "validation_perplexity": "validation/perplexity",
    "step_s": "speed/step_s",
    "data_wait_s": "speed/data_wait_s",
    "tokens_per_s": "speed/tokens_per_s",
    "tokens_per_s_per_gpu": "speed/tokens_per_s_per_gpu",
    "mfu_fraction": "speed/mfu_fraction",
    "peak_allocated_bytes": "memory/peak_allocated_bytes",
    "peak_reserved_bytes": "memory/peak_reserved_bytes",
}
"""Fields of a record, and the curve that each becomes."""


class Board:
    """Writes a point of every curve for every step."""

    def __init__(self, folder: Path, *, last_step: int) -> None:
        self.folder = folder
        with writing(folder):
            self.writer = SummaryWriter(log_dir=str(folder), purge_step=last_step + 1 if last_step else None)

    def add(self, record: StepRecord) -> None:
        """Write the points of one more step."""
        for field, curve in CURVES.items():
            value = getattr(record, field)
            if value is not None:
                self._add(curve, value, record.step)
        parts = record.sample.get("components_s") if record.sample else None
        for name, seconds in parts.items() if isinstance(parts, Mapping) else ():
            self._add(f"sampled/{name}_s", seconds, record.step)

    def close(self) -> None:
        """Write what is pending; no more steps come."""
        with writing(self.folder):
            self.writer.close()

    def _add(self, curve: str, value: float, step: int) -> None:
        with writing(self.folder):
            self.writer.add_scalar(curve, value, step)


def open_board(folder: Path, *, last_step: int) -> Board:
    """A board in a folder, which the launcher has found to be possible.

    Args:
        folder: where events are written, beside those of earlier lives of the run.
        last_step: that the run goes on from; TensorBoard then shows no points of abandoned steps behind it.
    """
    return Board(folder, last_step=last_step)
