"""Published utilisations recomputed from published rates, each by its source's own way of counting FLOP.

A check of the rows themselves, with no prediction in it: a row whose utilisation does not follow from its rate has a
figure, a shape or a batch that is not what it says.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.published.rows import MeasurementRow, read_rows

from shardwise.course.formulas.flop_counts import (
    korthikanti_flop_per_step,
    korthikanti_selective_flop_per_step,
    llm_foundry_flop_per_token,
    palm_flop_per_token,
    recompute_flop_ratio,
    torchtitan_flop_per_token,
)
from shardwise.formulas.flop_counts import six_n_flop_per_token
from shardwise.units import TERA, Flop
from shardwise.validate.records import UnusedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedUtilisation:
    """One published MFU or HFU beside what follows from the row's own rate."""

    id: str
    family: str
    kind: str
    """``MFU`` or ``HFU``."""
    convention: str
    published_fraction: float
    recomputed_fraction: float

    @property
    def difference_fraction(self) -> float:
        """Recomputed minus published: 0.003 is 0.3 points."""
        return self.recomputed_fraction - self.published_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How a source counts the FLOP of one token."""

    convention: str
    peak_tflop_per_s: float
    """Used when the row does not print the peak its source divides by."""
    model: Callable[[MeasurementRow], Flop]
    hardware: Callable[[MeasurementRow], Flop] | None = None


def _foundry(row: MeasurementRow) -> Flop:
    return llm_foundry_flop_per_token(
        num_params=_number(row, "n_params"),
        num_hidden_layers=_count(row, "n_layers"),
        hidden_size=_count(row, "d_model"),
        seq_len=_count(row, "seq_len"),
    )


def _foundry_hardware(row: MeasurementRow) -> Flop:
    recomputes = row.text("recompute").startswith("full")
    return _foundry(row) * (recompute_flop_ratio() if recomputes else 1.0)


def _palm(row: MeasurementRow) -> Flop:
    heads = _count(row, "n_heads")
    return palm_flop_per_token(
        num_params=_number(row, "n_params"),
        num_hidden_layers=_count(row, "n_layers"),
        num_attention_heads=heads,
        head_dim=HEAD_DIMS.get(row.text("model"), _count(row, "d_model") // heads),
        seq_len=_count(row, "seq_len"),
    )


def _torchtitan(row: MeasurementRow) -> Flop:
    heads = _count(row, "n_heads")
    return torchtitan_flop_per_token(
        num_params=_number(row, "n_params"),
        num_input_embedding_params=_count(row, "vocab") * _count(row, "d_model"),
        num_hidden_layers=_count(row, "n_layers"),
        num_attention_heads=heads,
        qk_plus_v_dim=2 * (_count(row, "d_model") // heads),
        seq_len=_count(row, "seq_len"),
    )


HEAD_DIMS = {"PaLM 540B": 256}
"""Head sizes that are not the width over the heads (arXiv:2204.02311, section 2)."""


def _six_n(row: MeasurementRow) -> Flop:
    return six_n_flop_per_token(num_params=_number(row, "n_params"))


def _korthikanti(row: MeasurementRow) -> Flop:
    sequences, seq_len = _count(row, "global_batch"), _count(row, "seq_len")
    flop = korthikanti_flop_per_step(
        global_batch_size=sequences,
        seq_len=seq_len,
        num_hidden_layers=_count(row, "n_layers"),
        hidden_size=_count(row, "d_model"),
        vocab_size=_count(row, "vocab"),
    )
    return flop / (sequences * seq_len)


def _korthikanti_hardware(row: MeasurementRow) -> Flop:
    sequences, seq_len = _count(row, "global_batch"), _count(row, "seq_len")
    flop = korthikanti_selective_flop_per_step(
        global_batch_size=sequences,
        seq_len=seq_len,
        num_hidden_layers=_count(row, "n_layers"),
        hidden_size=_count(row, "d_model"),
        vocab_size=_count(row, "vocab"),
    )
    return flop / (sequences * seq_len)


COUNTINGS: dict[str, Counting] = {
    "LLMF": Counting(
        convention="3 (2 N + 4 L h s); HFU 4/3 of it where blocks are recomputed",
        peak_tflop_per_s=312,
        model=_foundry,
        hardware=_foundry_hardware,
    ),
    "KORTH": Counting(
        convention="72 B L s h^2 (1 + s/6h + V/12Lh); HFU with s/3h",
        peak_tflop_per_s=312,
        model=_korthikanti,
        hardware=_korthikanti_hardware,
    ),
    "MEGASC": Counting(
        convention="72 B L s h^2 (1 + s/6h + V/12Lh), which reproduces the Megatron-LM rows; not stated by the source",
        peak_tflop_per_s=312,
        model=_korthikanti,
    ),
    "TTPERF": Counting(
        convention="6 N + 12 L a d s with the embedding in N, which reproduces the printed figures of 2024-08",
        peak_tflop_per_s=312,
        model=_palm,
    ),
    "MTNLG": Counting(convention="6 N, PaLM's reading of the 2,240-GPU run", peak_tflop_per_s=312, model=_six_n),
    "NEM15": Counting(
        convention="6 (N - input embedding) + 12 L a d s, which reproduces the printed figures",
        peak_tflop_per_s=989,
        model=_torchtitan,
    ),
    "MISC": Counting(convention="6 N + 12 L a d s (PaLM)", peak_tflop_per_s=275, model=_palm),
}
"""Families that print a utilisation beside a rate, with the count that their figures follow."""

NOT_RECOMPUTED: dict[str, str] = {
    "FA2": "only TFLOP/s printed beside it",
    "HFBLOG": "convention and peak not stated",
    "LLAMA3": "only TFLOP/s printed beside it",
    "MBMOE": "only TFLOP/s printed beside it, rounded with a tilde",
    "MEGASC530": "no rate printed",
    "MEGASCABL": "no rate printed",
    "MLM21": "only TFLOP/s printed beside it",
    "MLMH100": "only TFLOP/s printed beside it",
    "MLMJAN21": "only TFLOP/s printed beside it",
    "PALMT3": "no rate printed",
    "TINY": "printed as a whole percent; convention not stated",
}
"""Families whose utilisations cannot be recomputed, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationCheck:
    """Every published utilisation: recomputed ones, and those that cannot be."""

    utilisations: tuple[PublishedUtilisation, ...]
    unused: tuple[UnusedRow, ...]


@lru_cache
def published_utilisations() -> UtilisationCheck:
    """Every MFU and HFU of ``throughput.csv`` that stands beside a rate, recomputed by its source's convention."""
    found: list[PublishedUtilisation] = []
    left_out: list[UnusedRow] = []
    for row in read_rows("throughput"):
        if row.number("mfu_pct") is None and row.number("hfu_pct") is None:
            continue
        reason = _why_not(row)
        if reason:
            left_out.append(UnusedRow(id=row.id, family=row.family, reason=reason))
        else:
            found.extend(_recomputed(row, COUNTINGS[row.family]))
    return UtilisationCheck(utilisations=tuple(found), unused=tuple(left_out))


def _why_not(row: MeasurementRow) -> str:
    if row.family in NOT_RECOMPUTED:
        return NOT_RECOMPUTED[row.family]
    if row.family not in COUNTINGS:
        return "no convention known for this family"
    if _tokens_per_s(row) is None:
        return "no rate printed"
    if row.family == "MEGASC" and row.text("framework") != "Megatron-LM":
        return "parallel block with a sliding window whose width is not stated"
    return ""


def _recomputed(row: MeasurementRow, counting: Counting) -> Iterator[PublishedUtilisation]:
    peak = (row.number("peak_tflops_ref") or counting.peak_tflop_per_s) * TERA * _count(row, "n_gpus")
    rate = _tokens_per_s(row) or 0.0
    for kind, column, count in (("MFU", "mfu_pct", counting.model), ("HFU", "hfu_pct", counting.hardware)):
        printed = row.number(column)
        if printed is not None and count is not None:
            yield PublishedUtilisation(
                id=row.id,
                family=row.family,
                kind=kind,
                convention=counting.convention,
                published_fraction=printed / 100,
                recomputed_fraction=count(row) * rate / peak,
            )


def _tokens_per_s(row: MeasurementRow) -> float | None:
    """The rate of the whole job, from the most precise figure printed."""
    step_s, whole, each = (row.number(name) for name in ("step_time_s", "tokens_per_s", "tokens_per_s_per_gpu"))
    if whole:
        return whole
    if step_s:
        return _count(row, "global_batch") * _count(row, "seq_len") / step_s
    return each * _count(row, "n_gpus") if each else None


def _number(row: MeasurementRow, column: str) -> float:
    return row.number(column) or 0.0


def _count(row: MeasurementRow, column: str) -> int:
    return row.integer(column) or 0
