"""The tables of the sources as records, one per published row, before anything is interpreted."""

from functools import lru_cache
from pathlib import Path
from typing import Literal

from shardwise.validate.rows import Cells, MeasurementRow, family_of_id, rows_in

__all__ = ["TABLES", "MeasurementRow", "Table", "read_rows"]

TABLES = Path(__file__).parent / "tables"
Table = Literal["memory", "runs", "throughput", "readings", "recipes"]

RUN_FAMILIES = {
    "pytorch/torchtitan": "RUNTITAN",
    "mosaicml/llm-foundry": "RUNMPT",
    "Lightning-AI/litgpt": "RUNLITGPT",
    "foundation-model-stack/fms-acceleration": "RUNFMS",
    "AnswerDotAI/fsdp_qlora": "RUNQLORA",
    "pytorch/torchtune": "RUNTUNE",
    "NVIDIA-NeMo/Megatron-Bridge": "RUNBRIDGE",
    "MooreThreads/SimuMax": "RUNSIMU",
}
"""Family of a ``runs.csv`` row by the repository that published it; its ids say nothing about the source."""


@lru_cache
def read_rows(table: Table) -> tuple[MeasurementRow, ...]:
    """All rows of one table, in file order."""
    text = (TABLES / f"{table}.csv").read_text(encoding="utf-8")
    return rows_in(text, family_of=_family_of_run if table == "runs" else family_of_id)


def _family_of_run(cells: Cells) -> str:
    return RUN_FAMILIES.get(cells["source"].split("@")[0].split(":")[0], "RUNS")
