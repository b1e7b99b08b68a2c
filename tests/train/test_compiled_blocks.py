"""What a compiled block keeps for backward."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import HashStore, destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

from shardwise.train.build import compile_blocks

TOKENS, HIDDEN, WIDTH = 512, 1024, 4096


class GatedBlock(nn.Module):
    """Norm, gate, up and down: 48 MiB of weights, which DDP's buckets of 25 MiB divide."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN)
        self.gate = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.up = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, HIDDEN, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        normed = self.norm(inputs)
        return inputs + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Wrapped(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, inputs):
        return self.block(inputs)


@pytest.fixture
def one_rank():
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    destroy_process_group()


@pytest.fixture
def partitioned(monkeypatch):
    """The compiler's choice of what to keep, without making kernels of it."""
    compile_fully = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda part, **how: compile_fully(part, backend="aot_eager_decomp_partition", **how)
    )
    torch._dynamo.reset()


def saved_bytes(model, inputs):
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    saved = {}

    def keep(tensor):
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(inputs)
    return sum(saved.values())


def test_a_compiled_block_keeps_its_input_and_what_products_made_under_ddp_too(one_rank, partitioned):
    block = GatedBlock()
    compile_blocks([block])
    model = DistributedDataParallel(Wrapped(block), gradient_as_bucket_view=True)
    kept = saved_bytes(model, torch.randn(TOKENS, HIDDEN, requires_grad=True))
    inputs_and_products = 4 * TOKENS * (HIDDEN + 2 * WIDTH)
    statistics = 4 * TOKENS
    assert kept == pytest.approx(inputs_and_products, abs=2 * statistics)
