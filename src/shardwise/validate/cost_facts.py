"""What sources say of their bills beyond ``cost.csv``: models, lengths of sequences, rates, how exact a figure is."""

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from shardwise.families import read_model
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict.model_flop import model_flop_per_token
from shardwise.units import Flop


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A figure with the ends that its source leaves open; an exact figure has equal ends."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The middle of the range."""
        return (self.low + self.high) / 2


def span(text: str) -> Span | None:
    """A cell such as ``38-43``, ``1.5e13-1.6e13`` or ``380``; ``None`` when it is empty.

    >>> span("38-43")
    Span(low=38.0, high=43.0)
    """
    ends = [float(part) for part in text.replace("/", "-").split("-") if part]
    return Span(low=min(ends), high=max(ends)) if ends else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostFacts:
    """One row of ``cost_facts.csv``; empty where a source says nothing more."""

    model: str = ""
    """The model's name in the catalogue."""
    seq_len: int = 0
    tokens: Span | None = None
    """Training tokens; ``15T+`` reaches up to the next digit, ``~22T`` half a unit of the last digit to either side."""
    tokens_per_s_per_gpu: Span | None = None
    """The rate that the source prints of its run, with half a unit of its last digit."""
    setup: str = ""
    """How the run was set up where its source says so: fields of a plan by their path, as ``layout.tp=4``."""
    printed: Span | None = None
    """The bill's own figure with half a unit of its last digit, or the range that an ``at most`` leaves."""
    members: tuple[str, ...] = ()
    """Bills whose sum this one is."""
    goodput_fraction: float | None = None
    """1 where only steps were counted, not what lay between them."""
    power_w: float | None = None
    """Power of one accelerator, as the source multiplies it."""
    facility_overhead_ratio: float = 1.0
    """Power usage effectiveness, as the source multiplies it."""
    gap: str = ""
    """Work of the run that no cost can say, such as distillation; empty where there is none."""
    fitted: str = ""
    """The constants of the prediction that were taken from this run; empty where there are none."""
    note: str = ""

    @property
    def flop_per_token(self) -> Flop | None:
        """FLOP per token by the convention of our MFU; ``None`` without a model or a sequence length."""
        if not self.model or not self.seq_len:
            return None
        return model_flop_per_token(read_model(self.model), seq_len=self.seq_len)

    @property
    def plan(self) -> Plan | None:
        """The plan that repeats the run; ``None`` where its set-up is not stated."""
        if not self.setup:
            return None
        fields: dict[str, Any] = {"model": self.model, "recipe": {"seq_len": self.seq_len}, "layout": {}}
        for word in self.setup.split():
            path, _, value = word.partition("=")
            section, _, name = path.rpartition(".")
            (fields[section] if section else fields)[name] = _value(value)
        return read_plan(fields)


def _value(text: str) -> str | int | bool | list[str]:
    """A value of a set-up: whether, how many, a name, or several names."""
    if "," in text:
        return text.split(",")
    return text == "true" if text in ("true", "false") else int(text) if text.isdigit() else text


@lru_cache
def cost_facts() -> dict[str, CostFacts]:
    """All rows of ``catalog/measurements/cost_facts.csv`` by the id of the bill."""
    text = files("shardwise.catalog").joinpath("measurements", "cost_facts.csv").read_text(encoding="utf-8")
    return {cells["id"]: _facts(cells) for cells in csv.DictReader(text.splitlines())}


def _facts(cells: dict[str, str]) -> CostFacts:
    return CostFacts(
        model=cells["model"],
        seq_len=int(cells["seq_len"] or 0),
        tokens=span(cells["tokens"]),
        tokens_per_s_per_gpu=span(cells["tokens_per_s_per_gpu"]),
        setup=cells["setup"],
        printed=span(cells["printed"]),
        members=tuple(cells["members"].split()),
        goodput_fraction=float(cells["goodput"]) if cells["goodput"] else None,
        power_w=float(cells["power_w"]) if cells["power_w"] else None,
        facility_overhead_ratio=float(cells["pue"] or 1),
        gap=cells["gap"],
        fitted=cells["fitted"],
        note=cells["note"],
    )
