"""What blocks of transformers' families keep for backward, beside what the inventory says, in one step on the CPU."""

import pytest
import torch
from torch.distributed import HashStore, destroy_process_group, init_process_group

from shardwise.plan_file import read_plan
from shardwise.step.block_memory import block_memory
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.train.build import build_model
from shardwise.train.mesh import make_mesh
from train.models import make_job

SEQ_LEN, HIDDEN, HEADS = 64, 128, 2
UNIT = 2 * SEQ_LEN * HIDDEN * 2
"""Bytes of one tensor of all tokens as wide as the hidden state."""
PLAIN = {"hidden_size": HIDDEN, "intermediate_size": 4 * HIDDEN, "num_hidden_layers": 1, "num_attention_heads": HEADS}
GROUPED = {**PLAIN, "num_key_value_heads": HEADS, "vocab_size": 256, "pad_token_id": 0}
GPT = {"n_embd": HIDDEN, "n_layer": 1, "n_head": HEADS, "vocab_size": 256, "resid_pdrop": 0, "attn_pdrop": 0}
FAMILIES = {
    "gpt2": {"model_type": "gpt2", **GPT, "embd_pdrop": 0},
    "gpt_neox": {"model_type": "gpt_neox", **PLAIN, "vocab_size": 256, "rotary_pct": 1.0},
    "qwen2": {"model_type": "qwen2", **GROUPED},
    "phi3": {"model_type": "phi3", **GROUPED},
    "olmo2": {"model_type": "olmo2", **GROUPED},
    "glm4": {"model_type": "glm4", **GROUPED, "head_dim": 64, "partial_rotary_factor": 1.0},
    "cohere": {"model_type": "cohere", **GROUPED},
    "starcoder2": {"model_type": "starcoder2", **GROUPED, "residual_dropout": 0, "embedding_dropout": 0},
    "granite": {"model_type": "granite", **GROUPED},
}


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


def kept_bytes(model, *, recompute, is_compiled):
    """Bytes of the storages that the block keeps, without weights and the tables that all blocks are given."""
    job = make_job(
        model=model,
        seq_len=SEQ_LEN,
        micro_batch_size=2,
        precision="bf16-mixed",
        recompute=recompute,
        compile=is_compiled,
    )
    built = build_model(job, make_mesh(job.layout, device_type="cpu"), device=torch.device("cpu"))
    decoder = built.decoders[0]
    block = list(decoder.blocks())[-1]
    forward, kept = block.forward, {}
    own = {storage(part).data_ptr() for part in [*decoder.parameters(), *decoder.buffers()]}

    def keep(tensor):
        if storage(tensor).data_ptr() not in own:
            kept[storage(tensor).data_ptr()] = storage(tensor).nbytes()
        return tensor

    def run(*arguments, **named):
        given = [*arguments[1:], *named.values(), *(named.get("position_embeddings") or ())]
        own.update(storage(tensor).data_ptr() for tensor in given if isinstance(tensor, torch.Tensor))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            return forward(*arguments, **named)

    block.forward = run
    ids = torch.randint(2, 256, (2, SEQ_LEN))
    built.chunks[0](ids, ids).backward()
    return sum(kept.values())


def storage(tensor):
    whole = tensor.to_local() if isinstance(tensor, torch.distributed.tensor.DTensor) else tensor
    return whole.untyped_storage()


def predicted(model, *, recompute, is_compiled):
    recipe = {"seq_len": SEQ_LEN, "micro_batch_size": 2, "precision": "bf16-mixed"}
    plan = read_plan(
        {
            "model": model,
            "cluster": "1xh200-sxm",
            "recipe": {**recipe, "compile": is_compiled, "recompute": recompute},
            "layout": {},
        }
    )
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    return block_memory(plan.model.layers[-1], StageContext(plan=plan, stage=stage).block_context)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_compiled_block_keeps_what_the_inventory_says(family):
    model = FAMILIES[family]
    kept = kept_bytes(model, recompute="none", is_compiled=True)
    assert kept == pytest.approx(predicted(model, recompute="none", is_compiled=True).whole, abs=0.1 * UNIT)


@pytest.mark.parametrize("family", ["phi3", "olmo2", "qwen2", "gpt2", "starcoder2"])
def test_selective_recomputation_keeps_whole_products(family):
    """Also those with a bias."""
    model = FAMILIES[family]
    kept = kept_bytes(model, recompute="selective", is_compiled=True)
    found = predicted(model, recompute="selective", is_compiled=True).kept_selectively
    assert kept == pytest.approx(found, abs=0.1 * UNIT)


@pytest.mark.parametrize("family", ["gpt2", "starcoder2", "granite"])
def test_an_eager_block_keeps_what_the_inventory_says(family):
    model = FAMILIES[family]
    kept = kept_bytes(model, recompute="none", is_compiled=False)
    assert kept == pytest.approx(predicted(model, recompute="none", is_compiled=False).whole, abs=0.1 * UNIT)
