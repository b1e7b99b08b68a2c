"""Two small models and the job that trains one of them."""

import json
import tempfile
from functools import cache

from shardwise.layout import Layout
from shardwise.recipe import Recipe
from shardwise.train.job import Job, OptimizerSpec, Tuning

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.02,
    "rope_theta": 10000.0,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2}
GLOBAL_BATCH_SIZE = 8
NUM_STEPS = 4
"""The first step shows a wrong gradient, the second a wrong update; the next two show moments that lag and copies that
are not refreshed. DDP makes its buckets anew in the second. Later steps compute the same from other numbers."""
PLAIN = {"spread_vocabulary": False, "exchange_gradients": False}
"""Units gathered and reduced by FSDP2 alone, unless a test asks for our own ways."""


def micro_batch_size_of(layout: Layout) -> int:
    """What leaves two micro-batches, a first and a last, and twice as many in a pipeline of two stages."""
    return max(1, GLOBAL_BATCH_SIZE // ((4 if layout.pp > 1 else 2) * layout.data_parallel_size))


@cache
def run_folders() -> tempfile.TemporaryDirectory[str]:
    """The folder that holds those of this process's jobs, and goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="shardwise-runs-")


def make_job(
    *, layout=None, model=LLAMA, chunk_layers=(), tuning=None, num_steps=NUM_STEPS, implementation="auto", **recipe
) -> Job:
    layout = Layout(**{**PLAIN, **(layout or {})})
    choices = {
        "seq_len": 32,
        "micro_batch_size": micro_batch_size_of(layout),
        "precision": "fp32",
        "compile": False,
        **recipe,
    }
    chosen = Recipe(global_batch_size=GLOBAL_BATCH_SIZE, **choices)
    return Job(
        layout=layout,
        recipe=chosen,
        num_microbatches=GLOBAL_BATCH_SIZE // (chosen.micro_batch_size * layout.data_parallel_size),
        model_config_json=json.dumps(model),
        run_folder=tempfile.mkdtemp(dir=run_folders().name),
        num_steps=num_steps,
        chunk_layers=tuple(chunk_layers),
        implementation=implementation,
        device="cpu",
        optimizer=OptimizerSpec(learning_rate=1e-3),
        tuning=tuning or Tuning(),
    )


GEMMA = {**LLAMA, "model_type": "gemma", "head_dim": 8, "num_hidden_layers": 2, "tie_word_embeddings": True}
"""A family that our decoder does not know: scaled embeddings, norms around one, tied tables."""
