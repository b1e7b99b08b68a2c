"""The nearest size of a cluster that answers: doublings, then the interval between the last two halved."""

import pytest

from shardwise.catalog import read_cluster
from shardwise.search.nearest_size import nearest_size


@pytest.mark.parametrize(("least", "found"), [(16, 16), (40, 40), (64, 64), (65, None)])
def test_a_size_is_looked_for_up_to_the_largest_multiple_itself(least, found):
    """Of 8 GPUs in servers of 8, up to eight times as many."""
    looked = []

    def answer(cluster):
        looked.append(cluster.num_gpus)
        return cluster.num_gpus if cluster.num_gpus >= least else None

    assert nearest_size(read_cluster("8xh100-sxm"), answer=answer, max_factor=8) == found
    assert max(looked) <= 64
