"""The catalogue's page: its TOML blocks are clusters, and its Python lines print what they say."""

import doctest
import re
from pathlib import Path

import pytest

from shardwise.catalog import read_cluster

PAGE = Path(__file__).parents[2] / "docs" / "catalog.md"
TOML_BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
NAMED_CLUSTERS = re.findall(
    r"`([^`]+)`", PAGE.read_text(encoding="utf-8").partition("| text | meaning |")[2].partition("\n\n")[0]
)


def test_the_python_lines_of_the_page_print_what_they_say():
    results = doctest.testfile(str(PAGE), module_relative=False)
    assert results.attempted >= 7
    assert results.failed == 0


@pytest.mark.parametrize(("block", "num_gpus"), list(zip(TOML_BLOCKS, [24, 16, 16], strict=True)))
def test_the_toml_blocks_of_the_page_are_clusters(tmp_path, block, num_gpus):
    path = tmp_path / "cluster.toml"
    path.write_text(block, encoding="utf-8")
    assert read_cluster(path).num_gpus == num_gpus


def test_the_texts_of_the_page_are_clusters():
    assert len(NAMED_CLUSTERS) >= 10
    for text in NAMED_CLUSTERS:
        assert read_cluster(text).num_gpus >= 1


def test_a_plain_toml_file_with_every_documented_field_is_read():
    example = (PAGE.parents[1] / "examples" / "cluster.toml").read_text(encoding="utf-8")
    assert re.search(r"^usd_per_gpu_hour = ", example, flags=re.MULTILINE)
