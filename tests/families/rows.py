"""The test data of the families: published counts, and totals of made-up configs from another implementation."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class MadeUp:
    """A small config and its parameters as transformers 5.24.0 counts them on the meta device."""

    config: dict[str, object]
    num_params: int

    @property
    def label(self) -> str:
        """A short name for test reports."""
        return f"{self.config['model_type']}-{self.num_params}"


def published_rows() -> list[dict[str, str]]:
    """Rows of ``param_counts.csv``; every row carries where its config and count come from."""
    with (DATA / "param_counts.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def made_up() -> list[MadeUp]:
    """Rows of ``made_up_configs.jsonl``, as ``benchmarks/parameter_counts_against_transformers.py`` records them."""
    lines = (DATA / "made_up_configs.jsonl").read_text(encoding="utf-8").splitlines()
    return [MadeUp(row["config"], row["num_params"]) for row in map(json.loads, lines)]
