"""What is asked of columns is asked once for every combination of their values."""

import numpy as np

from shardwise.search.tables import Combined, Table


def test_columns_combined_first_answer_as_all_of_them_together():
    asked = []
    table = Table(lambda key: asked.append(key) or (float(100 * key[0] + 10 * key[1] + key[2]),))
    tp, pp, stage = np.asarray([1, 2, 1, 2, 1]), np.asarray([3, 3, 3, 5, 3]), np.asarray([7, 7, 8, 7, 7])
    together = table.look_up([tp, pp, stage])
    assert together[:, 0].tolist() == [137.0, 237.0, 138.0, 257.0, 137.0]
    assert asked == [(1, 3, 7), (1, 3, 8), (2, 3, 7), (2, 5, 7)]
    combined = Combined.of([tp, pp, stage])
    assert combined.keys == asked
    assert table.of(combined).tolist() == together.tolist()
    assert len(asked) == 4
