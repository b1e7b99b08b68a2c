"""One message out of what the ranks of a failed run wrote: the cause, not its echoes, and what to type next."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.measure.own_lines import lineage_lines
from shardwise.plan import Plan
from shardwise.train.failure.flight_recorder import num_collectives
from shardwise.train.failure.full_disk import LIMIT_FIX, QUOTA_FIX, disk_full_error, free_bytes, no_room
from shardwise.train.failure.memory import memory_sentences
from shardwise.train.failure.record import (
    ROOM_BYTES,
    FailureKind,
    FailureRecord,
    RankRecord,
    failures_of,
    lost_ranks,
)
from shardwise.train.failure.threads import thread_sentences

__all__ = ["OutOfMemoryError", "TrainingError", "diagnose"]


class TrainingError(ShardwiseError):
    """A run that did not come to its end."""

    exit_code = 1


class OutOfMemoryError(TrainingError):
    """A run that did not fit: an answer, with exit code 3."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The records that a failed run left: failures, ranks that ended without one, and the plan."""

    folder: Path
    failures: tuple[FailureRecord, ...]
    lost: tuple[RankRecord, ...]
    """Ranks that ended without a word."""
    plan: Plan | None

    def first(self, *kinds: FailureKind) -> FailureRecord | None:
        """The earliest failure of one of these kinds."""
        return next((record for record in self.failures if record.kind in kinds), None)


def diagnose(folder: Path, *, plan: Plan | None = None, exit_code: int | None = None) -> ShardwiseError:
    """The error that says why the run in ``folder`` failed.

    Args:
        folder: the run folder.
        plan: what was running; an out-of-memory error is then set against its prediction.
        exit_code: of the launcher of the ranks, said when no rank left a reason.
    """
    evidence = Evidence(folder=folder, failures=failures_of(folder), lost=lost_ranks(folder), plan=plan)
    for explain in CAUSES:
        found = explain(evidence)
        if found is not None:
            return found
    return TrainingError(
        f"the run in {folder} ended with exit code {exit_code} and no rank said why",
        code="train-failed",
        fix=f"look at the logs in {folder}",
    )


def _out_of_memory(evidence: Evidence) -> ShardwiseError | None:
    record = evidence.first("out-of-memory")
    if record is None:
        return None
    said, fix = memory_sentences(record, plan=evidence.plan)
    return OutOfMemoryError(
        f"rank {record.rank} ran out of memory after step {record.step} ({record.phase}): {said}",
        code="train-out-of-memory",
        fix=fix,
    )


def _no_thread(evidence: Evidence) -> ShardwiseError | None:
    record = evidence.first("no-thread")
    if record is None:
        return None
    said, fix = thread_sentences(record.rank, record.message.removeprefix("RuntimeError: "))
    return TrainingError(said, code="train-threads", fix=fix)


def _loss(evidence: Evidence) -> ShardwiseError | None:
    record = evidence.first("loss")
    if record is None:
        return None
    code = record.code or "train-loss"
    return TrainingError(f"{record.message}{_last_good(evidence.folder)}", code=code, fix=record.fix)


def _disk_full(evidence: Evidence) -> ShardwiseError | None:
    record = evidence.first("disk-full")
    if record is None:
        return None
    why, fix = no_room(evidence.folder, OSError(record.message))
    where = "" if record.code else f"; {why}, in {evidence.folder}"
    return TrainingError(
        f"rank {record.rank} could not go on after step {record.step} ({record.phase}): {record.message}{where}",
        code="train-disk-full",
        fix=record.fix if record.code == "train-disk-full" or record.fix in (LIMIT_FIX, QUOTA_FIX) else fix,
    )


def _no_room_for_words(evidence: Evidence) -> ShardwiseError | None:
    """Ranks that ended without a word where there was no room for one."""
    if not evidence.lost or evidence.failures or free_bytes(evidence.folder) >= ROOM_BYTES:
        return None
    error = disk_full_error(evidence.folder)
    return TrainingError(error.message, code=error.code, fix=error.fix)


def _refused(evidence: Evidence) -> ShardwiseError | None:
    """The refusal of a rank, as it would be shown on the command line."""
    record = evidence.first("refused")
    if record is None:
        return None
    error = TrainingError(record.message, code=record.code, fix=record.fix)
    error.exit_code = record.exit_code
    return error


def _exception(evidence: Evidence) -> ShardwiseError | None:
    record = evidence.first("exception")
    if record is None:
        return None
    return TrainingError(
        f"rank {record.rank} failed after step {record.step} ({record.phase}): {record.message}",
        code="train-failed",
        fix=f"read the traceback in the log of rank {record.rank} in {evidence.folder}",
    )


def _died(evidence: Evidence) -> ShardwiseError | None:
    # Ranks of this machine notice a death within seconds and stop; they wait in vain only for one that still exists.
    if not evidence.lost or evidence.first("hang") is not None:
        return None
    record = evidence.lost[0]
    step = max((failure.step for failure in evidence.failures), default=0)
    more = f", and so did {len(evidence.lost) - 1} more" if len(evidence.lost) > 1 else ""
    return TrainingError(
        f"rank {record.rank} (process {record.pid} on {record.host}) died without a word{more}, when the others had "
        f"done {step} steps: it was killed from outside, by a person, or by a host that ran out of memory",
        code="train-rank-died",
        fix="see whether the host had memory left (dmesg, or the log of the job scheduler), then resume the run",
    )


def _hang(evidence: Evidence) -> ShardwiseError | None:
    record = evidence.first("hang")
    if record is None:
        return None
    late = None if evidence.lost else _late_rank(evidence)
    who = f"rank {late.rank} did not come (it was {late.phase}); " if late is not None else ""
    if evidence.lost:
        silent = evidence.lost[0]
        who = f"rank {silent.rank} (process {silent.pid} on {silent.host}) stood still and said nothing; "
    where = (late or record).stack_file or f"the logs in {evidence.folder}"
    recorder = f"; the last collectives are in {record.flight_recorder_file}" if record.flight_recorder_file else ""
    return TrainingError(
        f"the ranks waited for each other in vain after step {(late or record).step}: {who}rank {record.rank} gave up: "
        f"{record.message}{recorder}",
        code="train-hang",
        fix=f"see in {where} where that rank stood; torchfrtrace compares the collectives of all ranks",
    )


def _echo(evidence: Evidence) -> ShardwiseError | None:
    """The error when this machine has only echoes, because a rank of another machine failed first."""
    record = evidence.first("peer-lost", "stopped")
    if record is None:
        return None
    return TrainingError(
        f"rank {record.rank} lost its connection to another rank after step {record.step}: {record.message}",
        code="train-rank-died",
        fix="look at the logs of the ranks on the other machines, then resume the run",
    )


CAUSES: tuple[Callable[[Evidence], ShardwiseError | None], ...] = (
    _out_of_memory,
    _no_thread,
    _loss,
    _disk_full,
    _refused,
    _exception,
    _no_room_for_words,
    _died,
    _hang,
    _echo,
)
"""Causes before echoes: a rank that dies makes others time out and lose their connections, never the reverse."""


def _late_rank(evidence: Evidence) -> FailureRecord | None:
    """The rank that had called the fewest collectives, by the flight recorders; by steps where there are none."""
    counts = {record.rank: _recorded(record) for record in evidence.failures}
    known = {rank: count for rank, count in counts.items() if count is not None}
    if len(known) == len(evidence.failures) and len(set(known.values())) > 1:
        rank = min(known, key=lambda rank: (known[rank], rank))
        return next(record for record in evidence.failures if record.rank == rank)
    waiting = evidence.first("hang")
    late = [record for record in evidence.failures if record.kind == "stopped" and record.phase != "finished"]
    return min(late, key=lambda record: (record.step, record.rank)) if waiting is not None and late else None


def _recorded(record: FailureRecord) -> int | None:
    return num_collectives(Path(record.flight_recorder_file)) if record.flight_recorder_file else None


def _last_good(folder: Path) -> str:
    """The last step whose loss and gradient norm were numbers, from the metrics."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return ""
    lines = lineage_lines(path.read_text(encoding="utf-8", errors="replace"))
    good = [line for line in lines if _are_numbers(line.get("step"), line.get("loss"), line.get("gradient_norm", 0.0))]
    if not good:
        return ""
    norm = f" and its gradient norm {good[-1]['gradient_norm']:.4g}" if "gradient_norm" in good[-1] else ""
    return f"; at step {good[-1]['step']} the loss was {good[-1]['loss']:.4g}{norm}"


def _are_numbers(*values: object) -> bool:
    return all(isinstance(value, int | float) and abs(value) < math.inf for value in values)
