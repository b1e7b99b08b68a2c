"""The data files: known columns with their units, a source and a date in every row, joins, sums and plain text."""

import re
import statistics

import pytest

from catalog.tables import DATA, FACT_TABLES, row, rows, source_columns, source_keys

UNIT_SUFFIX = re.compile(
    r"_(gb|gib|mib|tb|gb_per_s|gbit_per_s|gb_per_s_per_gpu|gbit_per_s_per_node|tflop_per_s|w|us|usd|hours|fraction|rel_err|bytes)$"
    r"|^(usd_per_hour|usd_per_gpu_hour|bytes_(min|max|at_half_peak|at_90pct_peak))$"
)
TEXT_COLUMNS = {
    *(
        "id",
        "vendor",
        "name",
        "arch",
        "compute_capability",
        "form_factor",
        "memory_type",
        "scale_up",
        "family",
        "aliases",
    ),
    *(
        "torch_total_note",
        "provider",
        "accelerator_id",
        "node_id",
        "network_id",
        "network_description",
        "usual_node_id",
    ),
    *("usual_network_id", "kind", "generation", "link_scope", "latency_kind", "planning_latency_note", "achieved_what"),
    *(
        "sku",
        "region",
        "date",
        "date_kind",
        "confidence",
        "notes",
        "operation",
        "implementation",
        "interconnect",
        "dtype",
    ),
    *("pass", "metric", "unit", "variable", "group", "algorithm", "protocol", "scope", "nodes_class", "path", "commit"),
    *("category", "system", "who", "what", "source"),
}
PURE_NUMBER_COLUMNS = {
    *("devices_per_part", "torch_total_is_derived", "sm_count", "scale_up_generation", "pcie_generation", "pcie_lanes"),
    *(
        "usual_gpus_per_node",
        "usual_domain_gpus",
        "gpus_per_node",
        "scale_up_domain_gpus",
        "num_nics",
        "vcpus",
        "num_gpus",
    ),
    *("num_nodes", "m", "n", "k", "seq_len", "head_dim", "causal", "fraction_of_peak", "num_points", "x_min", "x_max"),
    *("x_half", "in_switch"),
}
PRICE_KINDS = {
    *(
        "specialist_median",
        "market_median",
        "on_demand",
        "market_low",
        "market_high",
        "reserved_block",
        "assumed",
        "spot",
    ),
}
VALUE_WITH_UNIT_COLUMN = {"value"}
DATE = re.compile(r"20\d\d(-\d\d(-\d\d)?)?")
TABLES_WITH_UNIT_COLUMN = {"achieved", "nccl_constants", "reliability"}


def unexplained_columns(columns, *, has_unit_column):
    known = TEXT_COLUMNS | PURE_NUMBER_COLUMNS | (VALUE_WITH_UNIT_COLUMN if has_unit_column else set())
    return [c for c in columns if c not in known and not UNIT_SUFFIX.search(c) and not c.startswith("source_")]


@pytest.mark.parametrize("table", FACT_TABLES)
def test_every_number_column_names_its_unit(table):
    assert unexplained_columns(rows(table)[0], has_unit_column=table in TABLES_WITH_UNIT_COLUMN) == []


def test_a_column_without_unit_is_found():
    assert unexplained_columns(["id", "bandwidth", "memory_gib"], has_unit_column=False) == ["bandwidth"]


@pytest.mark.parametrize("table", sorted(TABLES_WITH_UNIT_COLUMN))
def test_every_value_has_a_unit_beside_it(table):
    assert [line for line in rows(table) if not (line["value"] and line["unit"])] == []


@pytest.mark.parametrize("table", FACT_TABLES)
def test_every_row_has_a_source_that_is_listed_and_a_date(table):
    listed = {line["key"] for line in rows("sources")}
    for line in rows(table):
        assert source_keys(line), line
        assert source_keys(line) <= listed, line
        assert DATE.fullmatch(line["date"]), line
        assert line["confidence"] in ("high", "medium", "low"), line


def test_every_listed_source_is_used_and_dated():
    used = set().union(*(source_keys(line) for table in FACT_TABLES for line in rows(table)))
    for line in rows("sources"):
        assert line["key"] in used
        assert line["reference"]
        assert DATE.fullmatch(line["date"])
        assert line["date_kind"] in ("published", "snapshot", "read", "not_before")


@pytest.mark.parametrize("table", [*FACT_TABLES, "sources"])
def test_files_are_ascii_and_name_no_machine(table):
    text = (DATA / f"{table}.csv").read_bytes().decode("ascii")
    assert not re.search(r"/(home|root|work|tmp)/|index id", text)
    assert text.endswith("\n")
    assert "\r" not in text


@pytest.mark.parametrize("table", ["accelerators", "nodes", "networks", "sources"])
def test_ids_are_unique(table):
    ids = [line.get("id") or line["key"] for line in rows(table)]
    assert len(ids) == len(set(ids))


def test_recalled_facts_are_never_marked_high_alone():
    """A row whose only source is a recollection is low, or medium where it is a definition (a line rate)."""
    for table in FACT_TABLES:
        for line in rows(table):
            if source_keys(line) == {"RECALL"}:
                assert line["confidence"] in ("low", "medium"), line


def test_joins_hold():
    gpus, nodes, networks = ({line["id"] for line in rows(name)} for name in ("accelerators", "nodes", "networks"))
    assert {line["node_id"] for line in rows("collective_sweeps")} <= nodes
    for table in ("nodes", "prices", "achieved", "collective_sweeps", "comm_fits", "kernel_fits", "cost_facts"):
        assert {line["accelerator_id"] for line in rows(table)} <= gpus | {""}
    assert {line["usual_node_id"] for line in rows("accelerators")} <= nodes | {""}
    assert {line["network_id"] for line in rows("nodes")} <= networks | {""}
    assert {line["usual_network_id"] for line in rows("accelerators")} <= networks | {""}


def test_every_part_has_a_usual_server_or_says_how_many_go_into_one():
    for line in rows("accelerators"):
        if line["usual_node_id"]:
            assert row("nodes", line["usual_node_id"])["accelerator_id"] == line["id"]
        else:
            assert int(line["usual_gpus_per_node"]) >= 1
            assert int(line["usual_domain_gpus"]) >= 1
            assert line["usual_network_id"]


def test_nics_add_up_to_the_rate_of_the_node_and_of_the_gpu():
    for line in rows("nodes"):
        if line["num_nics"] and line["id"] != "dgx-spark":
            total = int(line["num_nics"]) * float(line["nic_gbit_per_s"])
            assert total == float(line["network_gbit_per_s_per_node"]), line["id"]
            per_gpu = total / 8 / int(line["gpus_per_node"])
            assert per_gpu == pytest.approx(float(line["network_gb_per_s_per_gpu"]), abs=0.001), line["id"]


def test_usable_memory_is_below_what_the_driver_shows():
    for line in rows("accelerators"):
        if line["memory_visible_mib"] and line["torch_total_gib"]:
            ratio = float(line["torch_total_gib"]) * 1024 / int(line["memory_visible_mib"])
            assert 0.94 < ratio <= 1.0, line["id"]


def test_every_part_has_a_usable_memory_and_derived_ones_say_how():
    for line in rows("accelerators"):
        assert float(line["torch_total_gib"]) > 0
        if line["torch_total_is_derived"] == "1":
            assert line["torch_total_note"], line["id"]


def test_every_figure_of_a_part_names_its_source():
    columns = {
        "source_memory": "memory_bandwidth_gb_per_s",
        "source_compute": "bf16_tflop_per_s",
        "source_sm_l2": "sm_count",
        "source_power": "tdp_w",
        "source_link": "scale_up_gb_per_s",
        "source_torch_total": "torch_total_gib",
    }
    for line in rows("accelerators"):
        for source, figure in columns.items():
            assert line[source] or not line[figure], (line["id"], figure)


def test_price_kinds_are_known_and_prices_agree_per_gpu_and_per_hour():
    for line in rows("prices"):
        assert line["kind"] in PRICE_KINDS
        assert line["date_kind"] in ("published", "read", "not_before", "snapshot")
        per_gpu = float(line["usd_per_hour"]) / int(line["num_gpus"])
        assert per_gpu == pytest.approx(float(line["usd_per_gpu_hour"]), abs=6e-5), line


def test_specialist_medians_are_the_medians_of_the_rows_they_list():
    medians = [line for line in rows("prices") if line["kind"] == "specialist_median"]
    assert len(medians) >= 18
    on_demand = [line for line in rows("prices") if line["kind"] == "on_demand" and line["confidence"] != "low"]
    for line in medians:
        listed = re.findall(r"([A-Z][\w.]+) ([\d.]+)", line["notes"].partition(": ")[2])
        for provider, price in listed:
            assert any(
                other["provider"] == provider
                and other["accelerator_id"] == line["accelerator_id"]
                and other["usd_per_gpu_hour"] == price
                for other in on_demand
            ), (line["accelerator_id"], provider, price)
        assert float(line["usd_per_gpu_hour"]) == pytest.approx(statistics.median(float(p) for _, p in listed))


def test_no_fraction_of_a_peak_is_above_one():
    for line in rows("achieved"):
        assert not line["fraction_of_peak"] or 0 < float(line["fraction_of_peak"]) <= 1
    for line in rows("networks"):
        assert not line["achieved_fraction"] or 0 < float(line["achieved_fraction"]) <= 1


def test_the_schema_checks_see_source_columns():
    assert source_columns({"id": "", "source_memory": "", "source": ""}) == ["source_memory", "source"]
