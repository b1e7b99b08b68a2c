"""Matrix products as they were timed on one part.

Columns of ``<part>.csv``: ``kind`` (gemm, grouped, attention, memory, optimizer, launch, sustained), ``name`` (the pass
of a product), ``dtype``, ``groups`` products in one kernel, the product's own ``m``, ``n`` and ``k``, ``time_us``,
``flop``, ``num_bytes``, ``source`` and ``date``. ``benchmarks/kernel_tables.py`` writes them.
"""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from shardwise.units import MICROSECOND, Seconds

_FOLDER = Path(__file__).parent

ProductPass = Literal["forward", "dgrad", "wgrad"]
PASS_OF_NAME: dict[str, ProductPass] = {name: name for name in get_args(ProductPass)}
PRODUCT_KINDS = ("gemm", "grouped")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductReading:
    """One timed product, or one kernel of several equal ones."""

    product_pass: ProductPass
    """``y = x W^T`` (forward), ``dx = dy W`` (dgrad) or ``dW = dy^T x`` (wgrad)."""
    dtype: str
    is_grouped: bool
    groups: int
    m: int
    n: int
    k: int
    duration_s: Seconds


def has_kernel_table(gpu_id: str) -> bool:
    """Whether kernels of the part itself were timed."""
    return (_FOLDER / f"{gpu_id}.csv").is_file()


@cache
def load_products(gpu_id: str) -> tuple[ProductReading, ...]:
    """Every timed product of a part, in file order; none where there is no table."""
    if not has_kernel_table(gpu_id):
        return ()
    with (_FOLDER / f"{gpu_id}.csv").open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        next(lines)
        return tuple(_reading(cells) for cells in lines if cells[0] in PRODUCT_KINDS)


def _reading(cells: list[str]) -> ProductReading:
    kind, name, dtype, groups, m, n, k, time_us, *_ = cells
    return ProductReading(
        product_pass=PASS_OF_NAME[name],
        dtype=dtype,
        is_grouped=kind == "grouped",
        groups=int(groups),
        m=int(m),
        n=int(n),
        k=int(k),
        duration_s=float(time_us) * MICROSECOND,
    )
