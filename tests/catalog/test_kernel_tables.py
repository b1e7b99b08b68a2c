"""Every line of the kernel tables is a whole reading with a source and a date."""

import csv
import re
from importlib.resources import files

import pytest

from shardwise.catalog.kernels import has_kernel_table, load_products

PARTS = ("a100-pcie-80", "b200-sxm", "h100-sxm")
COLUMNS = ["kind", "name", "dtype", "groups", "m", "n", "k", "time_us", "flop", "num_bytes", "source", "date"]


def lines(part):
    text = files("shardwise.catalog").joinpath("kernels", f"{part}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.parametrize("part", PARTS)
def test_every_line_has_a_time_a_source_and_a_date(part):
    for line in lines(part):
        assert list(line) == COLUMNS
        assert float(line["time_us"]) > 0
        assert line["source"]
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", line["date"])


@pytest.mark.parametrize("part", PARTS)
def test_flop_are_those_of_the_shape(part):
    for line in lines(part):
        if line["kind"] in ("gemm", "grouped"):
            size = int(line["m"]) * int(line["n"]) * int(line["k"]) * int(line["groups"])
            assert int(float(line["flop"])) == 2 * size


@pytest.mark.parametrize(("part", "num_products"), [("a100-pcie-80", 195), ("b200-sxm", 492), ("h100-sxm", 3446)])
def test_all_products_are_read(part, num_products):
    assert len(load_products(part)) == num_products


def test_a_part_without_a_table_has_no_products():
    assert load_products("tpu-v5p") == ()
    assert not has_kernel_table("tpu-v5p")
