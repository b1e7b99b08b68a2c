"""Real checkpoints of tiny transformers models, loaded under several layouts and written back."""

import json

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint.checkpointer import CheckpointRequest, DistributedCheckpointer
from shardwise.train.checkpoint.folder import find_checkpoint
from shardwise.train.pretrained.companions import Companions
from shardwise.train.pretrained.export import ExportedModel, export_checkpoint
from shardwise.train.pretrained.load import load_pretrained
from train.ranks import run_ranks

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 101,
}
MODELS = {
    "llama": {},
    "tied": {"model_type": "llama", "tie_word_embeddings": True},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2},
}


def make(name, folder, **save):
    fields = {**SIZES, **MODELS[name]}
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type", name), **fields))
    model.save_pretrained(folder, **save)
    return model


def empty(folder):
    """The model of a folder on the meta device."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize("name", MODELS)
def test_one_process_loads_what_transformers_saved(tmp_path, name):
    saved = make(name, tmp_path)
    model = empty(tmp_path).to_empty(device="cpu")
    model.tie_weights()
    load_pretrained(model.named_parameters(), tmp_path)
    expected = dict(saved.named_parameters())
    for key, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[key]), key


def _sharded(rank, folder, tp):
    """FSDP2 over all ranks, or over pairs with every matrix divided by rows or columns inside a pair."""
    model = empty(folder)
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp_shard", "tp"))
    if tp > 1:
        for module in model.modules():
            for key, parameter in list(module.named_parameters(recurse=False)):
                if parameter.dim() >= 2:
                    dim = 1 if "down_proj" in key or getattr(module, "out_features", 0) == 32 else 0
                    divided = distribute_tensor(parameter, mesh["tp"], [Shard(dim)])
                    module.register_parameter(key, torch.nn.Parameter(divided))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh["dp_shard"])
    fully_shard(model, mesh=mesh["dp_shard"])
    model.to_empty(device="cpu")
    files = load_pretrained(model.named_parameters(), folder)
    own_bytes = sum(p.to_local().numel() * 4 for p in model.parameters() if isinstance(p, DTensor))
    return {key: whole(parameter).detach().numpy() for key, parameter in model.named_parameters()}, (
        files.bytes_read,
        own_bytes,
    )


@pytest.mark.parametrize(
    ("name", "world_size", "tp"), [("llama", 2, 1), ("mixtral", 2, 1), ("qwen3_moe", 4, 2), ("llama", 4, 2)]
)
def test_every_rank_reads_its_own_slices_and_nothing_else(tmp_path, name, world_size, tp):
    """The bytes a rank reads are those of its shards, whatever the layout, and together they are the whole model."""
    saved = {key: parameter.detach().numpy() for key, parameter in make(name, tmp_path).named_parameters()}
    answers = run_ranks(world_size, _sharded, tmp_path, tp)
    for values, (bytes_read, own_bytes) in answers:
        assert bytes_read == own_bytes
        assert all((values[key] == saved[key]).all() for key in saved)


def test_files_in_parts_and_other_types_are_read(tmp_path):
    saved = make("llama", tmp_path, max_shard_size="20KB").to(torch.bfloat16)
    saved.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    model = empty(tmp_path).to_empty(device="cpu").float()
    load_pretrained(model.named_parameters(), tmp_path)
    assert model.lm_head.weight.dtype == torch.float32
    assert torch.equal(model.lm_head.weight, saved.lm_head.weight.float())


def test_a_checkpoint_of_the_bare_base_model_is_read(tmp_path):
    saved = make("llama", tmp_path)
    saved.model.save_pretrained(tmp_path / "base")
    model = empty(tmp_path).to_empty(device="cpu")
    body = [pair for pair in model.named_parameters() if pair[0].startswith("model.")]
    load_pretrained(body, tmp_path / "base")
    assert torch.equal(model.model.embed_tokens.weight, saved.model.embed_tokens.weight)


def test_what_does_not_match_is_refused(tmp_path):
    make("llama", tmp_path)
    with pytest.raises(CheckpointError, match=r"holds no tensor model\.extra\.weight"):
        load_pretrained([("model.extra.weight", torch.empty(3))], tmp_path)
    with pytest.raises(CheckpointError, match=r"model.norm.weight is \(32,\) in .* and \(33,\) in the model"):
        load_pretrained([("model.norm.weight", torch.empty(33))], tmp_path)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(CheckpointError, match="holds no safetensors files"):
        load_pretrained([], tmp_path / "nothing")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number_is_named_with_its_tensor_and_file(tmp_path, value):
    """One value of a type that is narrower than the model's, in the second of several files."""
    saved = make("llama", tmp_path).to(torch.bfloat16)
    with torch.no_grad():
        saved.model.layers[1].mlp.up_proj.weight[47, 31] = value
    saved.save_pretrained(tmp_path, max_shard_size="20KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(CheckpointError) as raised:
        load_pretrained(empty(tmp_path).to_empty(device="cpu").named_parameters(), tmp_path)
    assert raised.value.code == "pretrained-not-finite"
    assert raised.value.message == f"{name} in {tmp_path / index['weight_map'][name]} holds values that are not finite"


class _Weights:
    def __init__(self, model):
        self.model = model

    def state_dict(self):
        return get_model_state_dict(self.model)

    def load_state_dict(self, state):
        raise NotImplementedError


def _save(rank, source, folder):
    model = empty(source)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    model.to_empty(device="cpu")
    model.tie_weights()
    load_pretrained(model.named_parameters(), source)
    checkpointer = DistributedCheckpointer(CheckpointRequest(folder=folder))
    checkpointer.finish(1, {"model": _Weights(model)})


@pytest.mark.parametrize("name", MODELS)
def test_what_is_exported_from_pretrained_loads(tmp_path, name):
    saved = make(name, tmp_path / "source")
    run_ranks(2, _save, tmp_path / "source", tmp_path / "run")
    config = json.loads((tmp_path / "source" / "config.json").read_text(encoding="utf-8"))
    config["architectures"] = ["SomebodyElsesForCausalLM"]
    (tmp_path / "source" / "tokenizer.json").write_text("{}", encoding="utf-8")
    files = export_checkpoint(
        find_checkpoint(tmp_path / "run").path,
        tmp_path / "out",
        ExportedModel(config=config, dtype="float32"),
        companions=Companions(weights=tmp_path / "source"),
        max_file_bytes=60_000,
    )
    assert len(files) > 1
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    expected = dict(saved.named_parameters())
    assert all(torch.equal(parameter, expected[key]) for key, parameter in loaded.named_parameters())
    original, written = _tensor_names(tmp_path / "source"), _tensor_names(tmp_path / "out")
    assert written == original
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    shown = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert shown["architectures"] == [type(saved).__name__]


def _tensor_names(folder):
    return sorted(name for path in folder.glob("*.safetensors") for name in load_file(path))


def test_an_export_is_bfloat16_unless_asked_otherwise_and_never_overwrites(tmp_path):
    make("llama", tmp_path / "source")
    run_ranks(1, _save, tmp_path / "source", tmp_path / "run")
    config = json.loads((tmp_path / "source" / "config.json").read_text(encoding="utf-8"))
    checkpoint = find_checkpoint(tmp_path / "run").path
    (file,) = export_checkpoint(checkpoint, tmp_path / "out", ExportedModel(config=config))
    assert {tensor.dtype for tensor in load_file(file).values()} == {torch.bfloat16}
    assert AutoConfig.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    with pytest.raises(CheckpointError, match="exists already"):
        export_checkpoint(checkpoint, tmp_path / "out", ExportedModel(config=config))
