"""Catalogue sections as tables, and one entry with everything that is known about it."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass

from rich.table import Table
from rich.text import Text

from shardwise.catalog import Link
from shardwise.cluster import Dtype, Gpu, Node, Price
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.units import (
    format_bytes_per_s,
    format_flop_per_s,
    format_gib,
    format_percent,
    format_seconds,
    format_usd,
)

UNKNOWN = "-"


def gpus_text(gpus: Sequence[Gpu], *, style: TextStyle = PLAIN) -> str:
    """Accelerators, one a line: memory as the framework sees it, dense peaks, one-way links."""
    table = _table("id", "GiB>", "memory GB/s>", "bf16>", "fp8>", "link GB/s>", "sure")
    for gpu in gpus:
        table.add_row(
            gpu.id,
            _number(format_gib(gpu.memory_bytes)),
            _rate(gpu.memory_bandwidth_bytes_per_s),
            _peak(gpu, "bf16"),
            _peak(gpu, "fp8"),
            _rate(gpu.scale_up_bandwidth_bytes_per_s),
            gpu.confidence,
        )
    return _page(table, "GiB as the framework reports it; bf16 and fp8 are dense TFLOP/s; links one way.", style)


def nodes_text(nodes: Sequence[Node], *, style: TextStyle = PLAIN) -> str:
    """Servers and instances, one a line."""
    table = _table("id", "GPUs", "in node>", "between>", "$/GPU-h>")
    for node in nodes:
        price = node.prices[0] if node.prices else None
        table.add_row(
            node.id,
            f"{node.gpus_per_node} x {node.gpu.id}",
            _rate(node.scale_up_bandwidth_bytes_per_s),
            f"{_rate(node.network.bandwidth_bytes_per_s)}{'?' if node.network.is_assumed else ''}",
            format_usd(price.usd_per_gpu_hour) if price else UNKNOWN,
        )
    note = "Links in GB/s, one way, per GPU; '?' marks a fabric that no source states and a modest one stands in for."
    return _page(table, note, style)


def networks_text(links: Sequence[Link], *, style: TextStyle = PLAIN) -> str:
    """Link types, one a line."""
    table = _table("id", "kind", "per", "GB/s>", "latency>", "reached>")
    for link in links:
        table.add_row(
            link.id,
            link.kind,
            link.scope,
            _rate(link.bandwidth_bytes_per_s),
            format_seconds(link.latency_s) if link.latency_s else UNKNOWN,
            format_percent(link.achieved_fraction) if link.achieved_fraction else UNKNOWN,
        )
    return _page(table, "GB/s one way; 'reached' is the measured share of the line rate.", style)


def prices_text(prices: Sequence[Price], *, style: TextStyle = PLAIN) -> str:
    """The price book, one row a line."""
    table = _table("GPU", "$/GPU-h>", "kind", "provider", "date")
    for price in prices:
        table.add_row(price.gpu_id, format_usd(price.usd_per_gpu_hour), price.kind, price.provider, price.date)
    return _page(table, "A price of your own wins: --price, or the price in the cluster file.", style)


def entry_text(title: str, record: object, *, style: TextStyle = PLAIN) -> str:
    """One record, a field a line, in base units."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column(overflow="fold")
    for name, value in _field_lines(record, prefix=""):
        lines.add_row(name, value)
    return page_text((Text(title, style="bold"), lines), style=style)


def _field_lines(record: object, *, prefix: str) -> Iterable[tuple[str, str]]:
    if not is_dataclass(record):
        yield prefix.rstrip("."), str(record)
        return
    for field in fields(record):
        value = getattr(record, field.name)
        name = f"{prefix}{field.name}"
        if isinstance(value, tuple):
            for index, item in enumerate(value):
                yield from _field_lines(item, prefix=f"{name}[{index}].")
        elif is_dataclass(value):
            yield from _field_lines(value, prefix=f"{name}.")
        elif value not in ("", None):
            yield name, f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _table(*headings: str) -> Table:
    """A table; a heading that ends in ``>`` is set flush right."""
    table = plain_table()
    for index, heading in enumerate(headings):
        table.add_column(
            heading.removesuffix(">"),
            justify="right" if heading.endswith(">") else "left",
            no_wrap=index <= 1 or heading.endswith(">"),
            overflow="fold",
        )
    return table


def _page(table: Table, note: str, style: TextStyle) -> str:
    return page_text((table, Text(), Text(note)), style=style)


def _number(text: str) -> str:
    return text.partition(" ")[0]


def _rate(rate_bytes_per_s: float) -> str:
    return _number(format_bytes_per_s(rate_bytes_per_s)) if rate_bytes_per_s else UNKNOWN


def _peak(gpu: Gpu, dtype: Dtype) -> str:
    rate = gpu.peak_flop_per_s(dtype)
    return _number(format_flop_per_s(rate)) if rate else UNKNOWN
