"""Logs of torchtitan say the run that printed them: lines as 0.2.2 and main of 2026-08 print them."""

from shardwise.exchange.documents import parse_documents
from shardwise.exchange.reading import read_parsed

LINES_0_2_2 = """\x1b[34m[titan] 2026-01-05 10:00:00,000 - root - INFO - Starting job: Llama 3 8B training
[rank0]:[titan] 2026-01-05 10:00:01,000 - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]
[rank0]:[titan] 2026-01-05 10:00:02,000 - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters
[rank0]:[titan] 2026-01-05 10:00:02,500 - root - INFO - Applied selective activation checkpointing to the model
[rank0]:[titan] 2026-01-05 10:00:03,000 - root - INFO - Compiling each TransformerBlock with torch.compile
[rank0]:[titan] 2026-01-05 10:00:04,000 - root - INFO - Trainer is initialized with local batch size 2, global \
batch size 16, gradient accumulation steps 2, sequence length 8192, total steps 1000 (warmup 200)
[rank0]:[titan] 2026-01-05 10:00:05,000 - root - INFO - Training starts at step 1
[rank0]:step:  1  loss: 12.27  grad_norm: 4.0  memory: 40.00GiB(50.00%)  tps: 5,000  tflops: 280.00  mfu: 28.31%
"""
LINES_OF_MAIN = """[titan] INFO - Building device mesh with parallelism: \
pp=1, dp_replicate=2, dp_shard=4, cp=1, tp=1, ep=1
[titan] INFO - Model qwen3 8B size: 8,190,735,360 total parameters
[titan] INFO - Applied FullAC activation checkpointing to the model
[titan] INFO - Trainer is initialized with 16384 tokens per DP rank, 262144 tokens per train step, gradient \
accumulation steps 2, maximum context length 8192, total steps 1000 (warmup 200)
[titan] INFO - Training starts at step 1
"""


def reading_of(text):
    return read_parsed(parse_documents(text, name="train.log"))


def test_the_lines_of_a_start_say_the_run():
    reading = reading_of(LINES_0_2_2)
    names = ("model", "world_size", "dp_shard", "tp", "micro_batch_size", "global_batch_size", "num_microbatches")
    assert [reading.value(name) for name in names] == ["llama3 8B", 8, 4, 2, 2, 16, 2]
    assert [reading.value(name) for name in ("seq_len", "recompute", "compile")] == [8192, "selective", True]
    assert reading.not_understood == ()


def test_main_counts_tokens_and_names_recomputation_by_its_class():
    reading = reading_of(LINES_OF_MAIN)
    names = ("model", "world_size", "dp_replicate", "dp_shard", "micro_batch_size", "global_batch_size", "recompute")
    assert [reading.value(name) for name in names] == ["qwen3 8B", 8, 2, 4, 2, 32, "full"]
    assert reading.read_as[0].version == "main of 2026-08-21 (b5bcd76c)"


def test_a_printed_config_says_more_than_the_lines():
    config = """Running with configs: {
  "training": {"local_batch_size": 1, "seq_len": 4096, "mixed_precision_param": "bfloat16"},
  "optimizer": {"name": "AdamW"}, "activation_checkpoint": {"mode": "full"},
  "parallelism": {"data_parallel_shard_degree": -1, "tensor_parallel_degree": 4}}
"""
    reading = reading_of(f"[titan] INFO - {config}[titan] INFO - Training starts at step 1\n")
    names = ("tp", "micro_batch_size", "seq_len", "recompute", "optimizer")
    assert [reading.value(name) for name in names] == [4, 1, 4096, "full", "adamw"]


def test_a_run_without_a_line_about_recomputation_recomputes_nothing():
    without = LINES_0_2_2.replace("Applied selective activation checkpointing to the model", "")
    assert reading_of(without).value("recompute") == "none"
