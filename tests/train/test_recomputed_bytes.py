"""What full recomputation keeps of a compiled block: its input, whatever precision and adapters it computes with."""

import pytest
import torch
from torch.distributed import HashStore, destroy_process_group, init_process_group

from shardwise.train import recompute
from shardwise.train.build import build_model
from shardwise.train.mesh import make_mesh
from train.models import LLAMA, make_job

CPU = torch.device("cpu")
SEQ_LEN, HIDDEN, WIDTH = 64, 128, 352
MODEL = {**LLAMA, "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": 1}
TWO = {**MODEL, "num_hidden_layers": 2}
INPUT_BYTES = 2 * SEQ_LEN * HIDDEN * 2
SHARED_BYTES = 2 * SEQ_LEN * (HIDDEN // LLAMA["num_attention_heads"]) * 4 + 5056
"""Cosines and sines, which all blocks share, and a generator's state."""
ADAPTERS = {
    "none": {},
    "lora": {"adapter": "lora", "lora_rank": 4, "lora_targets": "all-linear"},
    "qlora": {"adapter": "qlora", "lora_rank": 4, "lora_targets": "all-linear"},
}
PRECISIONS = ("bf16-mixed", "fp8-mixed")
FAST = (("bf16-mixed", "qlora"), ("lora", "full"))
ANOTHER_PRECISION = ("fp8-mixed", "none")
"""Looked at by ``make runs``. The others of a kind take as long and are looked at by ``make slow``."""


def in_turn(firsts, seconds):
    """Every combination; those that are not fast are marked."""
    pairs = [(first, second) for first in firsts for second in seconds]
    marks = [pytest.mark.runs if pair == ANOTHER_PRECISION else pytest.mark.slow for pair in pairs]
    return [pair if pair in FAST else pytest.param(*pair, marks=mark) for pair, mark in zip(pairs, marks, strict=True)]


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
    """In one process, with the compiler's choice of what to keep and without making kernels of it."""
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    compile_fully = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda part, **how: compile_fully(part, backend="aot_eager_decomp_partition", **how)
    )
    torch._dynamo.reset()
    yield
    destroy_process_group()


class Watched:
    """Runs one step, and sees what the last block keeps and the gradients that come of it."""

    def __init__(self, *, adapter: str, model: dict = MODEL, **recipe) -> None:
        job = make_job(model=model, seq_len=SEQ_LEN, micro_batch_size=2, **ADAPTERS[adapter], **recipe)
        built = build_model(job, make_mesh(job.layout, device_type="cpu"), device=CPU)
        self.decoder, self.kept = built.decoders[0], {}
        generator = torch.Generator().manual_seed(1)
        for name, parameter in self.decoder.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(local(parameter), std=0.1, generator=generator)
        block = list(self.decoder.blocks())[-1]
        block.forward = self.watched(block.forward)
        ids = torch.randint(0, 256, (2, SEQ_LEN), generator=generator)
        built.chunks[0](ids, ids).backward()

    def watched(self, forward):
        def run(*arguments, **named):
            parts = [*self.decoder.parameters(), *self.decoder.buffers()]
            own = {local(part).untyped_storage().data_ptr() for part in parts}

            def keep(tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in own:
                    self.kept[storage.data_ptr()] = storage.nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                return forward(*arguments, **named)

        return run

    @property
    def num_bytes(self) -> int:
        return sum(self.kept.values())

    @property
    def gradients(self) -> dict[str, torch.Tensor]:
        trained = {name: part for name, part in self.decoder.named_parameters() if part.requires_grad}
        assert all(part.grad is not None for part in trained.values()), "a trained parameter has no gradient"
        return {name: local(part.grad).float() for name, part in trained.items()}


def local(tensor):
    return tensor.to_local() if isinstance(tensor, torch.distributed.tensor.DTensor) else tensor.detach()


def require_same_gradients(some: Watched, expected: Watched, *, relative: float) -> None:
    for name, gradient in expected.gradients.items():
        assert (some.gradients[name] - gradient).norm() < relative * gradient.norm(), name


@pytest.mark.parametrize(("precision", "adapter"), in_turn(PRECISIONS, ADAPTERS))
def test_full_recomputation_keeps_the_input(precision, adapter):
    full = Watched(precision=precision, adapter=adapter, recompute="full", compile=True)
    assert INPUT_BYTES <= full.num_bytes <= INPUT_BYTES + SHARED_BYTES


@pytest.mark.parametrize(("adapter", "way"), in_turn(("lora", "qlora"), ("selective", "full")))
def test_recomputed_blocks_train_every_adapter_as_others_do(adapter, way):
    """Compiled to recompute, they once left out what stands beside down_proj: a block of either kind is here."""
    given = {"precision": "bf16-mixed", "adapter": adapter, "model": TWO}
    some = Watched(**given, recompute=way, recompute_layers=1, compile=True)
    require_same_gradients(some, Watched(**given, recompute="none", compile=False), relative=0.05)


@pytest.mark.runs
def test_no_dense_matrix_of_4_bits_is_kept_without_recomputation():
    """Forward and backward make the same matrix, which a compiler would notice and keep."""
    adapters = ("lora", "qlora")
    kept = {name: Watched(precision="bf16-mixed", adapter=name, recompute="none", compile=True) for name in adapters}
    assert kept["qlora"].num_bytes == pytest.approx(kept["lora"].num_bytes, rel=0.05)


def test_a_compiler_that_is_told_to_keep_products_keeps_more(monkeypatch):
    """So the first test finds a policy that keeps what it should not."""
    monkeypatch.setattr(recompute, "_keep_nothing", lambda operation, _given: operation in recompute.PRODUCTS)
    full = Watched(precision="bf16-mixed", adapter="qlora", recompute="full", compile=True)
    assert full.num_bytes > 2 * INPUT_BYTES
