"""The records of a run as TensorBoard's events."""

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from shardwise.train.failure.full_disk import writing
from shardwise.train.metrics import StepRecord, points_of


class Board:
    """Writes a point of every curve for every step."""

    def __init__(self, folder: Path, *, last_step: int) -> None:
        self.folder = folder
        with writing(folder):
            self.writer = SummaryWriter(log_dir=str(folder), purge_step=last_step + 1 if last_step else None)

    def add(self, record: StepRecord) -> None:
        """Write the points of one more step."""
        for curve, value in points_of(record).items():
            with writing(self.folder):
                self.writer.add_scalar(curve, value, record.step)

    def close(self) -> None:
        """Write what is pending; no more steps come."""
        with writing(self.folder):
            self.writer.close()


def open_board(folder: Path, *, last_step: int) -> Board:
    """A board in a folder, which the launcher has found to be possible.

    Args:
        folder: where events are written, beside those of earlier lives of the run.
        last_step: that the run goes on from; TensorBoard then shows no points of abandoned steps behind it.
    """
    return Board(folder, last_step=last_step)
