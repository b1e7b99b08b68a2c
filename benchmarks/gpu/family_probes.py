"""What one block of each public model family saves for backward, tensor by tensor (Hugging Face modules, one GPU).

``python3 benchmarks/gpu/family_probes.py --out families.jsonl``; ``--tiny`` without a GPU.
"""

import argparse
import json
import traceback
from contextlib import nullcontext
from pathlib import Path

import torch
from memory_meter import allocated_bytes, clean
from memory_probes import SavedTensors
from memory_runs import environment
from torch import nn

COMMON = {"num_hidden_layers": 3, "vocab_size": 1024, "use_cache": False, "tie_word_embeddings": False}
WIDE = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16}
GROUPED = {**WIDE, "num_key_value_heads": 4, "head_dim": 128}
EXPERTS = {**GROUPED, "num_experts_per_tok": 2}

FAMILIES: dict[str, dict[str, object]] = {
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "mistral": {**GROUPED, "sliding_window": None},
    "gemma2": GROUPED,
    "gemma3_text": {**GROUPED, "layer_types": ["full_attention"] * 3},
    "phi3": {**GROUPED, "pad_token_id": 0},
    "olmo2": GROUPED,
    "granite": GROUPED,
    "gpt2": {"n_embd": 2048, "n_head": 16, "n_layer": 3, "n_positions": 4096},
    "gpt_neox": {**WIDE, "intermediate_size": 8192},
    "opt": {"hidden_size": 2048, "ffn_dim": 8192, "num_attention_heads": 16, "word_embed_proj_dim": 2048,
            "max_position_embeddings": 4096},
    "bloom": {"hidden_size": 2048, "n_head": 16, "n_layer": 3},
    "falcon": {"hidden_size": 2048, "num_attention_heads": 16, "num_kv_heads": 1, "multi_query": True,
               "new_decoder_architecture": False, "alibi": False},
    "mixtral": {**EXPERTS, "num_local_experts": 8, "intermediate_size": 3584},
    "qwen3_moe": {**EXPERTS, "num_experts": 16, "moe_intermediate_size": 1024, "mlp_only_layers": []},
    "deepseek_v3": {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
                    "num_key_value_heads": 16, "moe_intermediate_size": 1024, "n_routed_experts": 16,
                    "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 0, "n_group": 1,
                    "topk_group": 1},
    "gpt_oss": {**EXPERTS, "num_local_experts": 8, "intermediate_size": 2048},
}  # fmt: skip


class SecondBlock:
    """Watches the second block's forward: what autograd saves inside it and what it leaves allocated."""

    def __init__(self, block: nn.Module, device: torch.device) -> None:
        self._block, self._device = block, device
        self.saved = SavedTensors(list(block.parameters()))
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.saved.pack, lambda tensor: tensor)
        self._before = 0
        self.left_bytes = 0
        self._handles = (block.register_forward_pre_hook(self._enter), block.register_forward_hook(self._leave))

    def _enter(self, *_: object) -> None:
        self._before = allocated_bytes(self._device)
        self._hooks.__enter__()

    def _leave(self, *_: object) -> None:
        self._hooks.__exit__(None, None, None)
        self.left_bytes = allocated_bytes(self._device) - self._before

    def stop(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()


def _blocks_of(model: nn.Module) -> nn.ModuleList:
    return next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == 3)


def probe(family: str, precision: str, device: torch.device, tiny: bool) -> dict[str, object]:
    """One family in one precision."""
    from transformers import AutoConfig, AutoModelForCausalLM

    clean(device)
    config = AutoConfig.for_model(family, **(COMMON | FAMILIES[family]))
    config._attn_implementation = "eager" if family in ("gpt_oss", "bloom") else "sdpa"
    num_tokens = 32 if tiny else 3072
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.train()
    if precision == "bf16":
        model.to(torch.bfloat16)
    tokens = torch.randint(1024, (1, num_tokens), device=device)
    autocast = torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16-mixed" else nullcontext()
    with autocast:
        model(tokens).logits.float().sum().backward()
    model.zero_grad(set_to_none=True)
    block = _blocks_of(model)[1]
    watch = SecondBlock(block, device)
    with autocast:
        out = model(tokens).logits
    watch.stop()
    end_bytes = allocated_bytes(device)
    groups = watch.saved.as_groups()
    num_params = sum(p.numel() for p in block.parameters())
    del out
    return {
        "family": family, "precision": precision, "config": config.to_diff_dict(), "num_tokens": num_tokens,
        "attention": config._attn_implementation, "block_params": num_params,
        "saved_bytes": sum(g["bytes"] * g["count"] for g in groups), "left_allocated_bytes": watch.left_bytes,
        "left_per_token_and_hidden": round(watch.left_bytes / num_tokens / config.hidden_size, 3),
        "end_allocated_bytes": end_bytes, "saved": groups,
    }  # fmt: skip


def main() -> None:
    """Every family in bf16 and under autocast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    with Path(args.out).open("a") as file:
        for family in FAMILIES:
            for precision in ("bf16", "bf16-mixed"):
                line: dict[str, object] = {
                    "schema": "shardwise.gpu-memory-probe/1", "name": f"family-{family}-{precision}",
                }  # fmt: skip
                try:
                    line["result"] = probe(family, precision, device, args.tiny)
                except Exception as error:  # noqa: BLE001  (recorded; the other families go on)
                    line["error"] = "".join(traceback.format_exception(error)[-2:])[-800:]
                    print(f"{family} {precision}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                line["environment"] = environment(device)
                file.write(json.dumps(line, default=str) + "\n")
                file.flush()
    print("families done", flush=True)


if __name__ == "__main__":
    main()
