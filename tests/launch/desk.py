"""What real runs start from, and the losses they leave."""

import json

LIMIT_S = 900
"""How long a test waits for what takes seconds on a quiet machine: it ends tests that would hang, and times nothing."""
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}


def lay_out(folder):
    """A model, a text, and plans for one process and for two."""
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    lines = [
        json.dumps({"text": f"document {number}: " + "the quick brown fox. " * (number % 7)}) for number in range(99)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for size in (1, 2):
        plan = {
            "model": "config.json",
            "cluster": {"gpu": "h100-sxm", "gpus_per_node": size, "num_nodes": 1},
            "recipe": {"seq_len": 32, "global_batch_size": 4, "precision": "fp32", "compile": False},
            "layout": {"dp_shard": size},
        }
        (folder / f"plan{size}.json").write_text(json.dumps(plan), encoding="utf-8")
    return folder


def losses(run):
    return {
        line["step"]: line["loss"]
        for line in map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    }
