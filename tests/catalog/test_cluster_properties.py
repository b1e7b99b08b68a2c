"""Whatever is typed, a cluster is read or refused with a code and a fix; what is read is finite and reads back."""

import json
import math
from dataclasses import fields, is_dataclass, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwise.catalog import load_gpus, load_nodes, read_cluster
from shardwise.catalog.hardware.request import GPU_FIELDS, OVERRIDE_FIELDS
from shardwise.errors import ShardwiseError

GPU_IDS = [gpu.id for gpu in load_gpus()]
NODE_IDS = [node.id for node in load_nodes()]
WORDS = [
    "x",
    "×",
    "*",
    ":",
    "8",
    "64",
    "0",
    "-1",
    "1e9",
    "nan",
    "inf",
    "10**9",
    "H100",
    "A100",
    "MI300",
    "dgx",
    "nvidia",
]
MARKS = [".toml", ".json", "/", "\\", "{", "}", "gb", "80gb", "९", "ß", "İ", " ", "\x00", "\ud800"]
SNIPPETS = st.sampled_from([*GPU_IDS, *NODE_IDS, *WORDS, *MARKS])
TEXTS = st.one_of(st.text(max_size=60), st.lists(SNIPPETS, max_size=6).map("".join))
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(GPU_IDS)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=10), inner, max_size=3)),
    max_leaves=6,
)
KEYS = [
    *("node", "gpu", "network", "num_gpus", "num_nodes", "gpus_per_node", "name", "price_source", "price_date"),
    *(field.key for field in OVERRIDE_FIELDS),
]


def refusal_faults(error):
    """What a person would miss in this error."""
    return [name for name, text in (("message", error.message), ("fix", error.fix)) if not text.strip()] + [
        "code" for _ in range(not error.code.startswith("cluster-"))
    ]


def read_or_refuse(source):
    try:
        return read_cluster(source)
    except ShardwiseError as error:
        faults = refusal_faults(error)
    assert faults == []
    return None


def numbers_in(record):
    for field in fields(record):
        value = getattr(record, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if is_dataclass(item):
                yield from numbers_in(item)
            elif isinstance(item, int | float):
                yield item


def assert_sound(cluster):
    assert all(math.isfinite(number) and number >= 0 for number in numbers_in(cluster))
    assert 1 <= cluster.num_gpus <= 1_048_576
    assert cluster.gpu.memory_bytes > 0
    assert cluster.gpu.peaks
    assert cluster.node.network.bandwidth_bytes_per_s > 0
    assert cluster.node.scale_up_domain_gpus >= 1
    assert cluster.gpu.pcie_bandwidth_bytes_per_s > 0
    # A written cluster names the part that a looser name was taken for, so that only this is not said again.
    taken = tuple(assumption for assumption in cluster.assumptions if " is taken for " in assumption)
    again = read_cluster(json.loads(cluster.spec_json))
    assert replace(again, assumptions=(*taken, *again.assumptions)) == cluster


@given(TEXTS)
@example("1" * 5000 + "xh100-sxm")
@example("{" * 3000)
@example("a/b\x00.toml")
@example("x" * 5000 + ".toml")
@example("8xh100-sxm.toml")
@example("\ud800.toml")
@example("8xH100")
def test_any_text_is_read_or_refused(text):
    cluster = read_or_refuse(text)
    if cluster:
        assert_sound(cluster)


@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=5))
def test_any_mapping_is_read_or_refused(mapping):
    cluster = read_or_refuse(mapping)
    if cluster:
        assert_sound(cluster)


@given(
    st.sampled_from(GPU_IDS),
    st.dictionaries(st.sampled_from([field.key for field in GPU_FIELDS]), st.floats(), max_size=4),
    st.dictionaries(st.sampled_from([field.key for field in OVERRIDE_FIELDS]), st.floats(1, 64), max_size=4),
    st.integers(1, 64),
)
def test_any_changed_gpu_is_read_or_refused(based_on, gpu_fields, overrides, num_nodes):
    own = {"based_on": based_on} | gpu_fields
    cluster = read_or_refuse({"gpu": own, "num_nodes": num_nodes} | overrides)
    if cluster:
        assert_sound(cluster)


@given(ANYTHING)
def test_anything_else_is_refused(source):
    read_or_refuse(source)


@pytest.mark.parametrize("gpu_id", GPU_IDS)
def test_every_part_makes_clusters_of_one_and_of_many(gpu_id):
    one = read_cluster(gpu_id)
    assert one.num_gpus == 1
    assert_sound(one)
    full = read_cluster({"gpu": gpu_id, "num_nodes": 1})
    assert read_cluster(f"{full.num_gpus}x{gpu_id}") == read_cluster({"gpu": gpu_id, "num_gpus": full.num_gpus})
    assert_sound(full)
    if gpu_id != "cpu":
        assert_sound(read_cluster(f"{full.num_gpus * 3} x {gpu_id}"))


@pytest.mark.parametrize("node_id", NODE_IDS)
def test_every_server_makes_clusters_of_one_and_of_many(node_id):
    node = read_cluster(node_id).node
    assert node.id == node_id
    assert_sound(read_cluster(f"3x{node_id}"))


@given(st.sampled_from(GPU_IDS), st.integers(1, 4096))
def test_a_count_is_met_exactly_or_refused(gpu_id, count):
    cluster = read_or_refuse(f"{count}x{gpu_id}")
    assert cluster is None or cluster.num_gpus == count


@given(st.sampled_from(GPU_IDS), st.integers(1, 64), st.sampled_from(["x", " x ", "×", " * ", " "]), st.booleans())
def test_spelling_does_not_matter(gpu_id, count, separator, upper):
    name = gpu_id.upper() if upper else gpu_id
    spelled, plain = read_or_refuse(f"{count}{separator}{name}"), read_or_refuse(f"{count}x{gpu_id}")
    assert spelled == plain
