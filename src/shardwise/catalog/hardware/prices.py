"""The price book: hourly prices with provider, date, kind and source, and the order in which they are offered."""

from functools import cache

from shardwise.catalog.hardware.gpus import confidence_of
from shardwise.catalog.hardware.tables import TableRow, read_table
from shardwise.cluster import Price

_KIND_ORDER = (
    "user",
    "specialist_median",
    "market_median",
    "on_demand",
    "market_low",
    "market_high",
    "reserved_block",
    "assumed",
    "spot",
)
_CONFIDENCE_ORDER = ("user", "high", "medium", "low")


@cache
def load_prices() -> tuple[Price, ...]:
    """Every hourly price of the book, in file order."""
    return tuple(_price(row) for row in read_table("prices"))


@cache
def prices_of(gpu_id: str, *, provider: str = "", sku: str = "") -> tuple[Price, ...]:
    """The prices of one accelerator, the sensible default first and spot last.

    An instance's own on-demand price comes before everything; then the median of the specialist clouds, the market
    median, on-demand rows from the surest and cheapest on, and last what cannot be had at any time.
    """

    def rank(price: Price) -> tuple[bool, int, int, float]:
        is_own = price.kind == "on_demand" and bool(sku) and (price.provider, price.sku) == (provider, sku)
        return (
            not is_own,
            _KIND_ORDER.index(price.kind),
            _CONFIDENCE_ORDER.index(price.confidence),
            price.usd_per_gpu_hour,
        )

    return tuple(sorted((price for price in load_prices() if price.gpu_id == gpu_id), key=rank))


def _price(row: TableRow) -> Price:
    return Price(
        usd_per_gpu_hour=row.number("usd_per_gpu_hour"),
        provider=row.text("provider"),
        kind=row.text("kind"),
        date=_date(row),
        source=row.sources(),
        gpu_id=row.text("accelerator_id"),
        sku=row.text("sku"),
        region=row.text("region"),
        confidence=confidence_of(row.text("confidence")),
        notes=row.text("notes"),
    )


def _date(row: TableRow) -> str:
    """The date with what it means: published on it, read on it (undated source), or known to be no older."""
    prefix = {"not_before": "not before ", "read": "undated, read "}.get(row.text("date_kind"), "")
    return prefix + row.text("date")
