"""Write the kernel tables of the catalogue from recorded sweeps: ``python benchmarks/kernel_tables.py [SIMUMAX]``.

``SIMUMAX`` is a folder with ``a100_pcie.json`` and ``b200_bf16_ceperm.json`` of MooreThreads/SimuMax (Apache-2.0,
``configs/system``), whose measured efficiencies are turned into times; without it those two tables stay as they are.
Our own come from ``benchmarks/results``, and from the rows of ``benchmarks/gpu_kernels.py`` that the table holds.
"""

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "src" / "shardwise" / "catalog" / "kernels"
RESULTS = ROOT / "benchmarks" / "results"
COLUMNS = ("kind", "name", "dtype", "groups", "m", "n", "k", "time_us", "flop", "num_bytes", "source", "date")
OWN_KERNELS = "benchmarks/gpu_kernels.py"
PASSES = {"TN": "forward", "NN": "dgrad", "NT": "wgrad", "fwd": "forward", "bwd_grad_act": "dgrad",
          "bwd_grad_w": "wgrad"}  # fmt: skip
SIMUMAX_DATE = "2026-05-11"
Row = tuple[object, ...]


def own_shape(name: str, tokens: int, out: int, inner: int) -> tuple[int, int, int]:
    """Rows, columns and inner length of the product itself."""
    return {"forward": (tokens, out, inner), "dgrad": (tokens, inner, out), "wgrad": (out, inner, tokens)}[name]


def product(kind: str, name: str, dtype: str, sizes: tuple[int, int, int, int], seconds: float) -> Row:
    """One line without its source."""
    groups, m, n, k = sizes
    return (kind, name, dtype, groups, m, n, k, f"{seconds * 1e6:.5g}", 2 * groups * m * n * k, 0)


def kept() -> Iterator[Row]:
    """The rows of ``benchmarks/gpu_kernels.py``."""
    for row in read(TABLES / "h100-sxm.csv"):
        if OWN_KERNELS in row["source"]:
            extra = {"dtype": row.get("dtype") or "bf16", "groups": row.get("groups") or 1}
            yield tuple({**row, **extra}[column] for column in COLUMNS)


def swept() -> Iterator[Row]:
    """The sweep of three layouts and of eight-bit forwards, and the small, grouped and tf32 products."""
    for name, date in (("2026-11-27-h100-gemm.csv", "2026-11-27"), ("2026-11-28-h100-products.csv", "2026-11-28")):
        for row in read(RESULTS / name):
            layout, skewed = row["layout"].removesuffix(" skewed"), row["layout"].endswith(" skewed")
            kind = row.get("kind") or "gemm"
            if kind == "cast" or layout not in ("forward", "dgrad", "wgrad") or skewed:
                continue
            m, n, k = (int(row[letter]) for letter in "mnk")
            seconds = float(row["time_s"]) if "time_s" in row else float(row["time_us"]) * 1e-6
            dtype = row["dtype"].replace("fp8-fast", "fp8 fast")
            sizes = (int(row.get("groups") or 1), *own_shape(layout, m, n, k))
            yield (*product(kind, layout, dtype, sizes, seconds), f"results/{name}", date)


def simumax(path: Path, peak_flop_per_s: float) -> Iterator[Row]:
    """Every product whose efficiency was measured by its exact shape."""
    operations = json.loads(path.read_text(encoding="utf-8"))["accelerator"]["op"]
    source = f"MooreThreads/SimuMax@4dcaae5 configs/system/{path.name} (Apache-2.0)"
    for key, fraction in operations["matmul"]["accurate_efficient_factor"].items():
        facts = dict(re.findall(r"(\w+)=([\w.]+)", key))
        if facts["layout"] == "NT" and facts["out_dtype"] != "fp32":
            continue
        shape = (int(facts["m"]), int(facts["n"]), int(facts["k"]))
        seconds = 2.0 * shape[0] * shape[1] * shape[2] / (fraction * peak_flop_per_s)
        yield (*product("gemm", PASSES[facts["layout"]], "bf16", (1, *shape), seconds), source, SIMUMAX_DATE)
    for key, fraction in operations["group_matmul"]["accurate_efficient_factor"].items():
        facts = dict(re.findall(r"(\w+)=([\w.]+)", key))
        if facts["main_grad_dtype"] != "fp32":
            continue
        name, groups = PASSES[facts["stage"]], int(facts["ng"])
        shape = own_shape(name, int(facts["M"]), int(facts["N"]), int(facts["K"]))
        seconds = 2.0 * groups * shape[0] * shape[1] * shape[2] / (fraction * peak_flop_per_s)
        yield (*product("grouped", name, "bf16", (groups, *shape), seconds), source, SIMUMAX_DATE)


def read(path: Path) -> Iterator[Mapping[str, str]]:
    """Lines of a CSV file by column."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def write(name: str, rows: Iterable[Row]) -> None:
    """One table of the catalogue."""
    found = list(rows)
    with (TABLES / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(found)
    print(f"{name}: {len(found)} rows")


def main(folder: str | None) -> None:
    """Build every table whose sources are at hand."""
    write("h100-sxm.csv", [*kept(), *swept()])
    if folder:
        write("b200-sxm.csv", simumax(Path(folder) / "b200_bf16_ceperm.json", 2250e12))
        write("a100-pcie-80.csv", simumax(Path(folder) / "a100_pcie.json", 312e12))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
