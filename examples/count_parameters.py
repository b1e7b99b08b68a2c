"""Exact parameter counts from a real config.json: every weight by name and shape, no estimate."""

from shardwise.families import read_model

model = read_model("llama-3.1-70b/config.json")
print(f"total      {model.num_params:>15,}")
print(f"embedding  {model.num_embedding_params:>15,}")

layer = model.layers[0]
print(f"one block  {layer.num_params:>15,}")
for weight in layer.weights:
    print(f"  {weight.name:36} {weight.shape!s:>15} {weight.split}")

for name in ("gpt2", "mixtral-8x7b", "deepseek-v3-671b", "qwen3-30b-a3b"):
    moe = read_model(name)
    print(f"{name:18} {moe.num_params:>15,} total {moe.num_active_params:>15,} active")
