"""The JSON answer of ``plan`` below 40 kB: what repeats, or is asked for least, is left out first."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from shardwise.render.json_text import json_text, rows_text

MAX_ANSWER_BYTES = 40_000
KEPT: Mapping[str, str] = {
    "schema": "",
    "fits": "",
    "memory": "capacity_bytes needed_bytes spare_bytes peak_allocated_bytes device_used_bytes low_fraction"
    " high_fraction",
    "time": "step_s step_low_s step_high_s attention_kernel",
    "throughput": "tokens_per_s tokens_per_s_per_gpu mfu_fraction",
    "cost": "tokens gpu_hours days low_days high_days usd low_usd high_usd goodput_fraction",
}
"""What a short prediction has, and of each part which keys; ``predict`` has the rest for the plan beside it."""
DROP = -1
STEPS = (
    *(("pareto", 0), ("plans", 1), ("clusters", 0), ("recommended", 0)),
    ("pareto", DROP),
    *(("plans", 0), ("closest", 0), ("missed", 0)),
    *(("rejected", DROP), ("plans", DROP), ("clusters", DROP)),
)
"""What is done in turn: predictions are shortened from a row on, or rows dropped from the end. The best plan keeps its
whole prediction longest; the first row is never dropped, nor a recommended one."""
SAYS = "predictions are short, and rows may be missing; --full writes everything"

Document: TypeAlias = dict[str, Any]


def answer_text(document: Document, *, is_full: bool) -> str:
    """The answer as indented JSON, or as short as it has to be for 40 kB; ``left_out`` then counts what is missing."""
    if is_full:
        return json_text(document)
    text = ""
    for shorter in _ever_shorter(document):
        text = rows_text(shorter)
        if len(text.encode()) < MAX_ANSWER_BYTES:
            break
    return text


def _ever_shorter(document: Document) -> Iterator[Document]:
    """The answer whole, then with ever more short predictions, then with ever fewer rows."""
    yield document
    now = dict(document)
    for key, first in STEPS:
        if not now.get(key):
            continue
        if first != DROP:
            now = {**now, key: _short(now[key], first), "left_out": {"because": SAYS, **now.get("left_out", {})}}
            yield now
            continue
        while (place := _last_dropped(now[key])) is not None:
            kept = [*now[key][:place], *now[key][place + 1 :]]
            gone = {**now.get("left_out", {"because": SAYS}), key: len(document[key]) - len(kept)}
            now = {**now, key: kept, "left_out": gone}
            yield now


def _short(value: Any, first: int) -> Any:
    """A row, or a list of rows from ``first`` on, with short predictions."""
    if isinstance(value, list):
        return [row if place < first else _short(row, 0) for place, row in enumerate(value)]
    row = {key: part for key, part in value.items() if key != "differences_s"}
    if isinstance(row.get("best"), dict):
        row["best"] = _short(row["best"], 0)
    if "prediction" in row:
        row["prediction"] = _short_prediction(row["prediction"])
    return row


def _short_prediction(prediction: Document) -> Document:
    return {
        name: {key: prediction[name][key] for key in keys.split()} if keys else prediction[name]
        for name, keys in KEPT.items()
        if name in prediction
    }


def _last_dropped(rows: list[Document]) -> int | None:
    """The last row that may go."""
    return next((place for place in range(len(rows) - 1, 0, -1) if not rows[place].get("is_recommended")), None)
