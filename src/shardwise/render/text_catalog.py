"""Catalogue sections as tables, and one entry with everything that is known about it."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass

from rich.table import Table
from rich.text import Text

from shardwise.catalog import Link
from shardwise.cluster import Dtype, Gpu, Node, Price
from shardwise.families import ModelEntry
from shardwise.render.catalog_rows import CatalogEntry, CatalogRow, row_id, sections
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.units import (
    format_bytes_per_s,
    format_count,
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
    table = _table("id", "GPUs", "in node>", "between>", "$/GPU-h >")
    for node in nodes:
        price = node.prices[0] if node.prices else None
        table.add_row(
            node.id,
            f"{node.gpus_per_node} x {node.gpu.id}",
            _rate(node.scale_up_bandwidth_bytes_per_s),
            f"{_rate(node.network.bandwidth_bytes_per_s)}{'?' if node.network.is_assumed else ''}",
            f"{format_usd(price.usd_per_gpu_hour)}{_price_mark(node, price)}" if price else f"{UNKNOWN} ",
        )
    note = (
        "Links in GB/s, one way, per GPU; '?' marks a fabric that no source states and a modest one stands in for. "
        "Dollars are the instance's own list price; '*' marks the list price of another provider's instance with the "
        "GPU, '~' a market median for the GPU, and '#' any other kind: `shardwise catalog prices` has them all."
    )
    return _page(table, note, style)


def _price_mark(node: Node, price: Price) -> str:
    """Whose price it is, in one character: list prices and medians differ twofold and must not be compared."""
    if price.kind in ("specialist_median", "market_median"):
        return "~"
    if price.kind != "on_demand":
        return "#"
    return " " if (price.provider, price.sku) == (node.provider, node.name) else "*"


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


def models_text(models: Sequence[ModelEntry], *, style: TextStyle = PLAIN) -> str:
    """Models with a name, one a line."""
    table = _table("name", "parameters>", "exactly>", "family")
    for model in models:
        table.add_row(model.name, format_count(model.num_params), f"{model.num_params:,}", model.model_type)
    return _page(table, "Any config.json works as well, and so does a size such as 70B.", style)


def section_text(section: str, rows: Sequence[CatalogRow], *, style: TextStyle = PLAIN) -> str:
    """Rows of one section as its own table."""
    if section == "gpus":
        return gpus_text([row for row in rows if isinstance(row, Gpu)], style=style)
    if section == "nodes":
        return nodes_text([row for row in rows if isinstance(row, Node)], style=style)
    if section == "networks":
        return networks_text([row for row in rows if isinstance(row, Link)], style=style)
    if section == "prices":
        return prices_text([row for row in rows if isinstance(row, Price)], style=style)
    return models_text([row for row in rows if isinstance(row, ModelEntry)], style=style)


def sizes_text(*, style: TextStyle = PLAIN) -> str:
    """How many entries each section has, and how to see them."""
    table = _table("section", "entries>", "see them with")
    for section, rows in sections().items():
        table.add_row(section, str(len(rows)), f"shardwise catalog {section}")
    return _page(table, "`shardwise catalog show ID` prints one entry with its sources.", style)


def entry_text(entry: CatalogEntry, *, style: TextStyle = PLAIN) -> str:
    """One row, a field a line, in base units, and the references its source keys stand for."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column(overflow="fold")
    for record in (entry.row, entry.shape):
        for name, value in _field_lines(record, prefix="") if record is not None else ():
            lines.add_row(name, value)
    references = Table.grid(padding=(0, 2))
    references.add_column(style="bold")
    references.add_column(overflow="fold")
    for source in entry.references:
        references.add_row(source.key, f"{source.reference} ({source.date})")
    title = Text(f"{row_id(entry.row)}, from {entry.section}", style="bold")
    return page_text((title, lines, Text(), references), style=style)


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
