"""Which matrix products a calibration times."""

import torch

from shardwise.train.calibrate.clock import Desk
from shardwise.train.calibrate.kernels import GRIDS, product_shapes


def flop_of(shape):
    m, n, k = shape
    return 2 * m * n * k


def test_products_of_the_grid_are_those_that_end_in_time():
    """On a CPU 256 x 2048 x 1024 are 1.07e9 FLOP and below the limit, 1024 x 1024 x 1024 are twice as many."""
    grid = GRIDS["cpu"]
    shapes = product_shapes(Desk(device=torch.device("cpu")))
    timed = [shape for shape in shapes if shape not in grid.tables]
    assert max(flop_of(shape) for shape in timed) <= grid.max_flop
    assert (256, 2048, 1024) in timed
    assert (1024, 1024, 1024) not in shapes
    assert set(grid.tables) <= set(shapes)
