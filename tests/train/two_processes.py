"""A Llama of no round size on two CPU cores, divided in every way that two processes can."""

from pathlib import Path

from shardwise.plan_file import read_plan

TWO_CORES = str(Path(__file__).parents[2] / "examples" / "two-cores.toml")
MODEL = {
    "model_type": "llama",
    "hidden_size": 320,
    "intermediate_size": 896,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "vocab_size": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
LAYOUTS = {
    "ddp": {"dp_shard": 2, "zero_stage": 0},
    "zero 1": {"dp_shard": 2, "zero_stage": 1},
    "fsdp": {"dp_shard": 2},
    "tp": {"dp_shard": 1, "tp": 2},
    "pp": {"dp_shard": 1, "pp": 2},
    "cp": {"dp_shard": 1, "cp": 2},
}


def plan_of_two(layout, *, num_layers, cluster=TWO_CORES, **recipe):
    """Eight sequences a step, two at a time, in fp32 unless ``recipe`` says otherwise."""
    choices = {"micro_batch_size": 2, "global_batch_size": 8, "precision": "fp32", "compile": False, **recipe}
    model = {**MODEL, "num_hidden_layers": num_layers}
    return read_plan({"model": model, "cluster": cluster, "layout": LAYOUTS[layout], "recipe": choices})
