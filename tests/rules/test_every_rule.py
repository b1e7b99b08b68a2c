"""One broken plan for every rule, with the sentence and the fix a user reads."""

from dataclasses import replace

import pytest

from habits.source_tree import ROOT
from rules.further_cases import FURTHER_CASES
from rules.samples import llama_8b, llama_30b, make_plan, mixtral, named, narrow, pcie_only, refusal, with_peaks
from shapes import cluster, dense_layer
from shapes import model as sample_model
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.model import Weight
from shardwise.plan import Plan
from shardwise.rules import RANGE_RULES, RULES, apply_changes, find_refusals


def gpt2() -> object:
    layer = dense_layer(hidden_size=768, intermediate_size=3072, heads=12, kv_heads=12, is_gated=False)
    spec = named(sample_model(layer, num_layers=12, hidden_size=768, vocab_size=50257, tied=True), "gpt2", "gpt2")
    positions = Weight(name="wpe.weight", shape=(1024, 768), split="replicated", role="embedding")
    return replace(spec, max_position_embeddings=1024, embedding_weights=(*spec.embedding_weights, positions))


def encoder_decoder() -> object:
    spec = llama_8b()
    layer = replace(spec.layers[0], cross_attention=spec.layers[0].mixer)
    return replace(spec, layers=(layer,) * 32, name="t5-like")


def made_by(vendor: str, name: str) -> object:
    machine = cluster(1)
    return replace(machine, node=replace(machine.node, gpu=replace(machine.gpu, vendor=vendor, name=name)))


VOLTA = with_peaks(cluster(1), ("fp16", 125.0))
INTERLEAVED = Layout(pp=4, vpp=2, schedule="interleaved")

WIDE_NODE = replace(cluster(8), num_nodes=1, node=replace(cluster(8).node, gpus_per_node=16))
BROKEN: dict[str, tuple[Plan, str, str]] = {
    "layout-degree-range": (
        make_plan(num_gpus=1, layout=Layout(tp=0, zero_stage=5)),
        "zero_stage=5 is outside 0 to 3, tp=0 is outside 1 to 1048576",
        "set zero_stage=3 and tp=1",
    ),
    "layout-world-size": (
        make_plan(num_gpus=64, layout=Layout(dp_shard=2, tp=8)),
        "dp_shard=2 with tp=8 places 16 GPUs, but the cluster has 64",
        "set dp_shard=8",
    ),
    "layout-tp-crosses-nodes": (
        make_plan(llama_8b(), engine="megatron", num_gpus=16, layout=Layout(tp=16)),
        "tp=16 exceeds the 8 GPUs of a node: every layer waits for the network four times",
        "set tp=8 and dp_shard=2",
    ),
    "layout-tp-over-pcie": (
        make_plan(machine=pcie_only(8), layout=Layout(tp=8)),
        "tp=8 all-reduces every layer over PCIe at 63 GB/s: test-node has no faster link for them",
        "set tp=1 and dp_shard=8",
    ),
    "layout-heads-over-tp": (
        make_plan(llama_30b(), layout=Layout(tp=8)),
        "tp=8 does not divide the 52 attention heads of llama-30b (52 % 8 = 4)",
        "set tp=4 and dp_shard=2",
    ),
    "layout-kv-heads-over-tp": (
        make_plan(machine=WIDE_NODE, engine="torchtitan", layout=Layout(tp=16)),
        "tp=16 does not divide the 8 key-value heads of llama-3.1-8b, and torchtitan does not replicate them",
        "set tp=8 and dp_shard=2",
    ),
    "layout-kv-heads-replicated": (
        make_plan(machine=WIDE_NODE, engine="megatron", layout=Layout(tp=16)),
        "tp=16 exceeds the 8 key-value heads of llama-3.1-8b: each is held 2 times, with its weights, gradients and "
        "optimizer states",
        "set tp=8 and dp_shard=2",
    ),
    "layout-ffn-over-tp": (
        make_plan(narrow(11007), layout=Layout(tp=4)),
        "tp=4 does not divide the feed-forward or mixer width 11007 of narrow",
        "set tp=1 and dp_shard=4",
    ),
    "layout-hidden-over-tp": (
        make_plan(replace(narrow(11008), hidden_size=4098), layout=Layout(tp=4)),
        "tp=4 does not divide the hidden size 4098 of narrow",
        "set tp=2 and dp_shard=2",
    ),
    "layout-vocab-over-tp": (
        make_plan(gpt2(), seq_len=1024, layout=Layout(tp=4)),
        "tp=4 does not divide the vocabulary of 50257: the table is cut unevenly by DTensor and padded to 50688 rows "
        "by Megatron",
        "set tp=1 and dp_shard=4",
    ),
    "engine-async-tensor-parallel": (
        make_plan(engine="accelerate", layout=Layout(tp=2, async_tensor_parallel=True, sequence_parallel=True)),
        "async_tensor_parallel is not offered by accelerate, only by native, torchtitan and megatron",
        "set async_tensor_parallel=false",
    ),
    "layout-async-tensor-parallel": (
        make_plan(engine="megatron", layout=Layout(tp=2, zero_stage=1, async_tensor_parallel=True)),
        "async_tensor_parallel cuts gathers and reduce-scatters into pieces, but tp=2 lacks sequence_parallel",
        "set sequence_parallel=true",
    ),
    "engine-async-without-compile": (
        make_plan(compile=False, layout=Layout(tp=2, sequence_parallel=True, async_tensor_parallel=True)),
        "async_tensor_parallel is a pass of torch.compile, but compile is off",
        "set compile=true",
    ),
    "engine-overlap-grad-reduce": (
        make_plan(layout=Layout(dp_shard=2), overlap_grad_reduce=False),
        "overlap_grad_reduce=false, but torch's data parallelism, which native uses, always overlaps",
        "set overlap_grad_reduce=null",
    ),
    "engine-broadcast-weights": (
        make_plan(layout=Layout(dp_shard=2), broadcast_weights=True),
        "broadcast_weights=true, but how native returns updated weights is no choice",
        "set broadcast_weights=null",
    ),
    "engine-defer-grad-reduce": (
        make_plan(engine="megatron", layout=Layout(dp_shard=2, zero_stage=1, defer_grad_reduce=False)),
        "defer_grad_reduce=false, but Megatron reduces whole gradients in the last micro-batch",
        "set defer_grad_reduce=null",
    ),
    "layout-reshard-size": (
        make_plan(layout=Layout(dp_shard=8, reshard_size=3)),
        "reshard_size=3 is no group between 1 and the 8 ranks that divide the parameters",
        "set reshard_size=4",
    ),
    "engine-prefetch-units": (
        make_plan(engine="torchtitan", layout=Layout(dp_shard=8, prefetch_units=2)),
        "prefetch_units=2 asks FSDP2 to gather not one unit ahead, but torchtitan with zero_stage=3 does not",
        "set prefetch_units=1",
    ),
    "engine-spread-vocabulary": (
        make_plan(layout=Layout(dp_shard=5, spread_vocabulary=True)),
        "spread_vocabulary: dp_shard=5 does not divide 128256 rows evenly",
        "set spread_vocabulary=null",
    ),
    "engine-exchange-gradients": (
        make_plan(engine="torchtitan", layout=Layout(dp_shard=2, exchange_gradients=True)),
        "exchange_gradients: only the native engine does so, and without adapters, not torchtitan",
        "set exchange_gradients=null",
    ),
    "recipe-packing-with-eager-attention": (
        make_plan(mean_document_len=512, attention="eager", layout=Layout(dp_shard=8)),
        "mean_document_len=512 with eager attention: every score of the packed sequence is computed and then masked",
        "set attention=flash",
    ),
    "layout-sequence-over-cp": (
        make_plan(seq_len=4100, layout=Layout(cp=4)),
        "cp=4 cuts a sequence into 8 equal pieces, but 4100 % 8 = 4",
        "set seq_len=4096",
    ),
    "layout-sequence-over-tp": (
        make_plan(seq_len=4098, layout=Layout(tp=4, sequence_parallel=True)),
        "sequence_parallel divides a sequence over cp=1 times tp=4 ranks, but 4098 % 4 = 2",
        "set seq_len=4096",
    ),
    "layout-heads-over-cp": (
        make_plan(engine="deepspeed", seq_len=4095, layout=Layout(cp=3, zero_stage=2)),
        "cp=3 exchanges whole heads on deepspeed (Ulysses), but each of tp=1 ranks holds 32 attention heads and the "
        "model has 8 key-value heads",
        "set cp=1 and dp_shard=3",
    ),
    "recipe-eager-attention-with-cp": (
        make_plan(attention="eager", layout=Layout(cp=2)),
        "cp=2 exchanges key-value blocks inside a fused kernel, but attention is eager",
        "set attention=flash",
    ),
    "recipe-position-table": (
        make_plan(gpt2(), seq_len=2048),
        "seq_len=2048 exceeds the 1024 learned positions of gpt2",
        "set seq_len=1024",
    ),
    "recipe-beyond-trained-positions": (
        make_plan(seq_len=131072),
        "seq_len=131072 is beyond the 8192 positions the config of llama-3.1-8b states",
        "set seq_len=8192",
    ),
    "layout-layers-over-pp": (
        make_plan(llama_8b(num_layers=5), layout=Layout(pp=8)),
        "pp=8 with 1 chunk(s) a stage makes 8 chunks, but llama-3.1-8b has 5 layers",
        "set pp=4 and dp_shard=2",
    ),
    "layout-stage-layers": (
        make_plan(layout=Layout(pp=4, stage_layers=(8, 8, 8, 7))),
        "stage_layers sums to 31 layers, but llama-3.1-8b has 32",
        "set stage_layers=null",
    ),
    "layout-vpp-needs-interleaving": (
        make_plan(layout=Layout(pp=4, vpp=2)),
        "vpp=2 chunks a stage need an interleaved schedule, but schedule is 1f1b",
        "set schedule=interleaved",
    ),
    "layout-vpp-without-pipeline": (
        make_plan(layout=Layout(vpp=2)),
        "vpp=2 cuts pipeline stages into chunks, but pp=1 is no pipeline",
        "set vpp=1",
    ),
    "layout-interleaving-needs-vpp": (
        make_plan(layout=Layout(pp=4, schedule="interleaved")),
        "schedule interleaved runs at least two chunks on every stage, but vpp=1",
        "set vpp=2",
    ),
    "layout-uneven-stages": (
        make_plan(llama_8b(num_layers=30), layout=Layout(pp=4)),
        "30 layers over 4 pipeline chunks leave 30 % 4 = 2, so stages hold 7,8,8,7; a tool that divides and drops the "
        "rest would train 28 layers",
        "set stage_layers=[7,8,8,7]",
    ),
    "engine-megatron-stage-layers-over-vpp": (
        make_plan(engine="megatron", layout=replace(INTERLEAVED, zero_stage=1, stage_layers=(7, 8, 8, 9))),
        "a stage of 7 layers is not a multiple of vpp=2: Megatron's first- and last-stage flags cannot express it, "
        "only --pipeline-model-parallel-layout can",
        "set stage_layers=[8,8,8,8]",
    ),
    "layout-pipeline-over-encoder-decoder": (
        make_plan(encoder_decoder(), layout=Layout(pp=2)),
        "pp=2 cuts an encoder-decoder model: every decoder stage of t5-like also needs the encoder's output",
        "set pp=1 and dp_shard=2",
    ),
    "engine-torchtitan-tied-embeddings": (
        make_plan(llama_8b(tied=True), engine="torchtitan", layout=Layout(pp=2)),
        "pp=2 puts the token table and the head of llama-3.1-8b on different stages, but they are one weight of "
        "525336576 parameters",
        "set pp=1 and dp_shard=2",
    ),
    "layout-tied-embeddings-over-pp": (
        make_plan(llama_8b(tied=True), layout=Layout(pp=2)),
        "pp=2 puts the token table and the head of llama-3.1-8b on different stages, but they are one weight of "
        "525336576 parameters",
        "set pp=1 and dp_shard=2",
    ),
    "layout-experts-without-moe": (
        make_plan(layout=Layout(dp_shard=8, ep=4)),
        "ep=4 divides routed experts, but llama-3.1-8b has none",
        "set ep=1",
    ),
    "layout-experts-over-ep": (
        make_plan(mixtral(), layout=Layout(dp_shard=16, ep=16)),
        "ep=16 does not divide the 8 experts of mixtral-8x7b (8 % 16 = 8)",
        "set ep=8",
    ),
    "layout-ep-borrows-data-ranks": (
        make_plan(mixtral(), layout=Layout(dp_shard=2, pp=4, ep=8)),
        "ep=8 borrows its ranks from tp=1 * cp=1 * dp_shard=2 = 2, which it must divide",
        "set ep=2",
    ),
    "layout-expert-width-over-expert-tp": (
        make_plan(mixtral(), engine="megatron", layout=Layout(dp_shard=6, expert_tp=3, zero_stage=1)),
        "expert_tp=3 does not divide the expert width 14336 of mixtral-8x7b",
        "set expert_tp=2",
    ),
    "engine-expert-exchange": (
        make_plan(mixtral(), layout=Layout(dp_shard=8, ep=8, expert_exchange="deepep")),
        "expert_exchange=deepep is not offered by native, only by megatron and torchtitan",
        "set expert_exchange=alltoall",
    ),
    "engine-expert-tp": (
        make_plan(mixtral(), layout=Layout(dp_shard=2, tp=2, ep=2, expert_tp=2)),
        "expert_tp=2 with tp=2 and ep=2: native divides experts over ep alone, each of them whole",
        "set expert_tp=1",
    ),
    "engine-megatron-experts-need-sequence-parallel": (
        make_plan(mixtral(), engine="megatron", layout=Layout(tp=2, zero_stage=1)),
        "tp=2 on a mixture-of-experts model without sequence_parallel, which Megatron refuses to train",
        "set sequence_parallel=true",
    ),
    "engine-deepspeed-experts-under-zero3": (
        make_plan(mixtral(), engine="deepspeed", layout=Layout(tp=2, ep=2, zero_stage=3)),
        "ep=2 with zero_stage=3, tp=2 and cp=1: under ZeRO-3 DeepSpeed divides experts only where tp and cp are 1",
        "set zero_stage=2",
    ),
    "recipe-batch-arithmetic": (
        make_plan(layout=Layout(dp_shard=7), micro_batch_size=2, global_batch_size=256),
        "global_batch_size=256 is not a multiple of micro_batch_size=2 times 7 data-parallel ranks (256 % 14 = 4)",
        "set global_batch_size=252",
    ),
    "engine-torch-microbatches": (
        make_plan(layout=Layout(pp=4, schedule="dualpipev"), compile=False),
        "4 micro-batches are fewer than the 8 stages of schedule dualpipev with pp=4, which torch refuses",
        "set global_batch_size=8",
    ),
    "layout-interleaving-multiple": (
        make_plan(engine="megatron", layout=replace(INTERLEAVED, zero_stage=1), global_batch_size=10),
        "schedule interleaved needs a multiple of pp=4 micro-batches, but 10 % 4 = 2",
        "set num_microbatches_per_round=5",
    ),
    "layout-microbatches-below-stages": (
        make_plan(engine="deepspeed", layout=Layout(pp=4, zero_stage=1), global_batch_size=2),
        "2 micro-batch(es) cannot fill pp=4 stages: with one chunk a stage 60.0 % of the step would be idle",
        "set global_batch_size=4",
    ),
    "recipe-fp8-hardware": (
        make_plan(machine=VOLTA, precision="fp8-mixed"),
        "precision fp8-mixed, but test (Volta) has no fp8 matrix unit",
        "set precision=fp16-mixed",
    ),
    "recipe-bf16-hardware": (
        make_plan(machine=VOLTA),
        "precision bf16-mixed, but test (Volta) has no bf16 matrix unit",
        "set precision=fp16-mixed",
    ),
    "recipe-fp16-hardware": (
        make_plan(machine=with_peaks(cluster(1), ("bf16", 275.0)), precision="fp16-mixed"),
        "precision fp16-mixed, but the catalogue knows no fp16 matrix peak of test (Volta)",
        "set precision=bf16-mixed",
    ),
    "recipe-fp16-family": (
        make_plan(named(llama_8b(), "gemma", "gemma2"), precision="fp16-mixed"),
        "precision fp16-mixed with gemma2: its activations exceed 65504, the largest finite fp16 number, so the loss "
        "becomes NaN whatever the loss scale",
        "set precision=bf16-mixed",
    ),
    "engine-zero-stage": (
        make_plan(engine="torchtitan", layout=Layout(dp_shard=8, zero_stage=1)),
        "zero_stage=1 over dp_shard=8 is not offered by torchtitan, which has 3",
        "set zero_stage=3",
    ),
    "engine-deepspeed-zero-with-pipeline": (
        make_plan(engine="deepspeed", layout=Layout(dp_shard=2, pp=2, zero_stage=2)),
        "zero_stage=2 with pp=2: DeepSpeed's pipeline accumulates whole gradients over many backward passes, and "
        "dividing them would mean reducing after every micro-batch",
        "set zero_stage=1, or engine=native, which runs FSDP2 inside pipeline stages",
    ),
    "engine-megatron-fsdp-tied-embeddings": (
        make_plan(llama_8b(tied=True), engine="megatron", layout=Layout(dp_shard=2)),
        "zero_stage=3 with tied embeddings: Megatron's FSDP2 path asserts untied ones, and untying llama-3.1-8b would "
        "add 525336576 parameters",
        "set zero_stage=1, or untie the embeddings (tie_word_embeddings=false in the model config), which makes "
        "another model",
    ),
    "engine-megatron-fsdp-with-pipeline": (
        make_plan(engine="megatron", layout=Layout(dp_shard=2, pp=2)),
        "zero_stage=3 with pp=2: Megatron's FSDP2 path refuses it, only Megatron-FSDP takes it",
        "set zero_stage=1",
    ),
    "engine-accelerate-replicas": (
        make_plan(engine="accelerate", layout=Layout(dp_replicate=4, tp=2, zero_stage=0)),
        "tp=2 and cp=1 with dp_replicate=4 and dp_shard=1: accelerate combines them with sharded data parallelism only",
        "set dp_replicate=1 and dp_shard=4",
    ),
    "engine-offload": (
        make_plan(engine="torchtitan", layout=Layout(dp_shard=8), offload="optimizer"),
        "offload optimizer is not offered by torchtitan, which has parameters",
        "set offload=parameters",
    ),
    "engine-native-nvme": (
        make_plan(layout=Layout(dp_shard=8), offload="nvme"),
        "offload nvme is planned here and exported to DeepSpeed, but not run by the native engine",
        "set engine=deepspeed",
    ),
    "engine-offload-zero-stage": (
        make_plan(engine="deepspeed", layout=Layout(dp_shard=8, zero_stage=2), offload="parameters"),
        "offload parameters needs zero_stage=3 or more on deepspeed, but zero_stage=2 would ignore it",
        "set zero_stage=3",
    ),
    "recipe-lora-targets": (
        make_plan(read_model("t5-large"), adapter="lora", seq_len=512),
        "lora_targets=attention names no matrix of t5-large, so nothing would train",
        "set lora_targets=all-linear",
    ),
    "engine-adapter": (
        make_plan(engine="torchtitan", layout=Layout(dp_shard=8), adapter="qlora"),
        "adapter qlora is not offered by torchtitan, which has no 4-bit base weights",
        "set adapter=lora",
    ),
    "engine-fsdp1-mixed-requires-grad": (
        make_plan(engine="fsdp1", layout=Layout(dp_shard=8), adapter="lora"),
        "adapter lora on fsdp1 flattens frozen and trainable weights together: with use_orig_params=False torch raises "
        "'Must flatten tensors with uniform requires_grad'",
        "set engine=native, or keep fsdp1 with use_orig_params=True, or wrap the trainable leaf modules separately",
    ),
    "engine-fsdp1-integer-storage": (
        make_plan(engine="fsdp1", layout=Layout(dp_shard=8), adapter="qlora", precision="fp16-mixed"),
        "adapter qlora on fsdp1: 4-bit weights stored as uint8 raise 'Cannot flatten integer dtype tensors'; their "
        "storage must be the compute dtype (fp16)",
        "set engine=native, or keep fsdp1 with bnb_4bit_quant_storage equal to the compute dtype; int8 is not "
        "supported",
    ),
    "engine-fsdp1-flat-shards": (
        make_plan(engine="fsdp1", layout=Layout(dp_shard=8), optimizer="adafactor"),
        "optimizer adafactor works on whole matrices, but fsdp1 leaves it one-dimensional shards",
        "set engine=native",
    ),
    "engine-fsdp1-muon": (
        make_plan(engine="fsdp1", layout=Layout(dp_shard=8), optimizer="muon"),
        "optimizer muon works on whole matrices, but fsdp1 leaves it one-dimensional shards",
        "set engine=native",
    ),
    "engine-accelerate-no-pipeline": (
        make_plan(engine="accelerate", layout=Layout(pp=2)),
        "pp=2, but accelerate has no pipeline parallelism for training",
        "set pp=1 and dp_shard=2",
    ),
    "engine-fsdp1-no-pipeline": (
        make_plan(engine="fsdp1", layout=Layout(pp=2)),
        "pp=2, but fsdp1 has no pipeline parallelism for training",
        "set pp=1 and dp_shard=2",
    ),
    "engine-axes": (
        make_plan(engine="fsdp1", layout=Layout(tp=2, dp_shard=4)),
        "tp=2, but fsdp1 has data parallelism only",
        "set engine=native",
    ),
    "engine-schedule": (
        make_plan(engine="deepspeed", layout=Layout(pp=4, zero_stage=1, schedule="zbv")),
        "schedule zbv is not offered by deepspeed, which has 1f1b",
        "set schedule=1f1b",
    ),
    "engine-accelerator": (
        make_plan(machine=made_by("Google", "TPU v5p"), engine="deepspeed"),
        "deepspeed runs on no TPU v5p: it drives no accelerator of Google; torch_xla's FSDP and JAX's MaxText do",
        "set engine=accelerate",
    ),
    "engine-accelerate-xla": (
        make_plan(machine=made_by("Google", "TPU v5p"), engine="accelerate", layout=Layout(cp=2, dp_shard=4)),
        "tp=1, cp=2 and dp_replicate=1 divide work on TPU v5p, where Accelerate has torch_xla's FSDP over all chips "
        "and nothing else",
        "set cp=1 and dp_shard=8",
    ),
    "engine-forked-schedule": (
        make_plan(engine="megatron", layout=Layout(pp=4, zero_stage=1, schedule="zb-h1")),
        "schedule zb-h1 is not in megatron's main branch but in the fork sail-sg/zero-bubble-pipeline-parallelism",
        "set schedule=1f1b",
    ),
    "engine-optimizer": (
        make_plan(engine="torchtitan", layout=Layout(dp_shard=8), optimizer="adafactor"),
        "optimizer adafactor is not offered by torchtitan, which has adamw, muon",
        "set optimizer=adamw",
    ),
    "engine-precision": (
        make_plan(engine="torchtitan", layout=Layout(dp_shard=8), precision="fp16-mixed"),
        "precision fp16-mixed is not offered by torchtitan, which has bf16, bf16-mixed, fp32, fp8-mixed",
        "set precision=bf16-mixed",
    ),
    "engine-torch-zero-bubble-compile": (
        make_plan(layout=Layout(pp=4, schedule="zbv")),
        "schedule zbv splits backward in two, which torch refuses for compiled modules",
        "set compile=false",
    ),
    "recipe-recompute-layers": (
        make_plan(recompute="full", recompute_layers=33),
        "recompute_layers=33 exceeds the 32 layers of llama-3.1-8b",
        "set recompute_layers=null",
    ),
    "recipe-recompute-layers-idle": (
        make_plan(recompute_layers=4),
        "recompute_layers=4 changes nothing with recompute=none",
        "set recompute=full",
    ),
    **FURTHER_CASES,
    "recipe-lora-idle": (
        make_plan(lora_rank=8),
        "lora_rank=8 changes nothing with adapter=none: every weight is trained",
        "set adapter=lora",
    ),
    "recipe-routing-idle": (
        make_plan(routing_imbalance_ratio=1.5),
        "routing_imbalance_ratio=1.5 is about routed experts, and llama-3.1-8b has none",
        "set routing_imbalance_ratio=null",
    ),
}


@pytest.mark.parametrize(("rule", "case"), BROKEN.items(), ids=BROKEN)
def test_a_broken_rule_says_the_numbers_and_a_fix(rule, case):
    plan, message, fix = case
    found = refusal(plan, rule)
    assert (found.message, found.fix) == (message, fix)


@pytest.mark.parametrize(("rule", "case"), BROKEN.items(), ids=BROKEN)
def test_the_fix_keeps_the_rule(rule, case):
    plan = case[0]
    neighbour = apply_changes(plan, refusal(plan, rule).neighbour)
    assert rule not in {item.rule for item in find_refusals(neighbour)}


def test_every_rule_has_a_case_here():
    assert sorted(BROKEN) == sorted(rule.name for rule in (*RANGE_RULES, *RULES))


def test_rule_names_are_unique_kebab_case_and_say_what_they_are_about():
    names = [rule.name for rule in (*RANGE_RULES, *RULES)]
    assert len(set(names)) == len(names)
    assert all(name.split("-")[0] in ("layout", "recipe", "engine") for name in names)
    assert all(name == name.lower() and "_" not in name for name in names)


def test_every_rule_says_why_and_is_explained_in_the_error_page():
    assert all(rule.why.endswith(".") and rule.source for rule in (*RANGE_RULES, *RULES))
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert [rule.name for rule in (*RANGE_RULES, *RULES) if f"## {rule.name}\n" not in page] == []
