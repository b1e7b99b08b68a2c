"""Recomputing a block runs as many products again as predictions count."""

from collections.abc import Iterator

import pytest
import torch
from torch.distributed import HashStore, destroy_process_group, init_process_group

from shardwise.plan_file import read_plan
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operations import stage_operations
from shardwise.step.stage_context import StageContext
from shardwise.train.build import build_model
from shardwise.train.mesh import make_mesh
from shardwise.train.torch_private import TorchDispatchMode
from train.models import LLAMA, make_job

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    destroy_process_group()


class Products(TorchDispatchMode):
    """Counts products while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in PRODUCTS
        return func(*args, **(kwargs or {}))


def run_products(recompute: str) -> int:
    """Products of forward and backward of one step."""
    job = make_job(model=LLAMA, seq_len=16, precision="fp32", recompute=recompute, compile=False)
    built = build_model(job, make_mesh(job.layout, device_type="cpu"), device=torch.device("cpu"))
    ids = torch.randint(0, 256, (1, 16))
    with Products() as products:
        built.chunks[0](ids, ids).backward()
    return products.count


def predicted_again() -> int:
    """Products that the inventory says recomputation of all blocks runs again."""
    recipe = {"seq_len": 16, "recompute": "full", "precision": "fp32", "compile": False}
    plan = read_plan({"model": LLAMA, "cluster": "1xh100-sxm", "recipe": recipe, "layout": {}})
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    again = [one for one in stage_operations(StageContext(plan=plan, stage=stage)) if one.phase == "recompute"]
    return sum(one.count for one in again if one.kind == "matmul")


def test_recomputation_stops_before_the_last_product_of_a_block():
    again = run_products("full") - run_products("none")
    assert again == 6 * LLAMA["num_hidden_layers"] == predicted_again()
