"""What decays and what Muon makes orthogonal, by the owner of a parameter; Trainer's names are the second road."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shardwise.layout import Layout
from shardwise.train.decoder.config import read_config
from shardwise.train.decoder.model import Decoder
from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.job import OptimizerSpec
from shardwise.train.optimizers import make_optimizer
from shardwise.train.parameter_kinds import kind_of
from shardwise.train.parameters import plain_name, trained_parameters
from train.family_starts import built
from train.models import make_job
from train.test_family_starts import ASKED, OWN
from train.tiny_families import tiny_fields

TEN = ("bamba", "bloom", "codegen", "dbrx", "falcon", "gpt2", "gpt_neo", "gpt_oss", "gptj", "mamba", "mpt", "rwkv")
MESH = SimpleNamespace(layout=Layout())
GPT_OSS_EXPERTS = ("router.weight", "experts.gate_up_proj", "experts.down_proj")
BY_NAME = ("relative_position_bias.linear", "norm_attn_norm.attn", "layernorm.mlp", "prelayernorm", "bias_values")
"""Names of matrices and tables that Trainer takes for norms and biases: of a block of DBRX with its norms, of a product
that computes a norm's gain, of a model."""


def entries(family):
    """What would be trained of a family, and its model."""
    decoder = built(tiny_fields(family))
    return trained_parameters((decoder,), MESH), decoder


def decay_apart_from_trainer(family):
    """Names that decay in one of the two alone, each with whether they do in ours."""
    from transformers import Trainer

    trained, decoder = entries(family)
    theirs = set(Trainer.get_decay_parameter_names(None, decoder.untouched[0]))
    return {entry.name: (entry.decays, entry.parameter) for entry in trained if entry.decays != (entry.name in theirs)}


def unexplained(family):
    """Names on which the two differ for no reason that docs/training.md gives."""
    found = []
    for name, (decays, parameter) in decay_apart_from_trainer(family).items():
        leaf = name.rpartition(".")[2]
        is_vector = parameter.numel() == max(parameter.shape)
        is_reason = any(part in name for part in BY_NAME) if decays else is_vector or leaf in ("A_log", "D", "scale")
        found += [] if is_reason else [name]
    return found


@pytest.mark.parametrize("family", TEN)
def test_decay_is_trainer_s_but_for_vectors_and_state_spaces(family):
    assert unexplained(family) == []


@pytest.mark.families
@pytest.mark.parametrize("family", ASKED)
def test_decay_of_every_family_is_trainer_s_but_for_what_is_written_down(family):
    assert unexplained(family) == []


@pytest.mark.parametrize("family", TEN)
def test_no_norm_no_bias_and_no_vector_decays(family):
    trained, decoder = entries(family)
    owners = dict(decoder.named_modules())
    for entry in trained:
        owner, leaf = owners[entry.name.rpartition(".")[0]], entry.name.rpartition(".")[2]
        if isinstance(owner, nn.LayerNorm) or "Norm" in type(owner).__name__ or leaf in ("bias", "A_log", "D", "sinks"):
            assert not entry.decays, entry.name
        if isinstance(owner, nn.Linear | nn.Embedding | nn.Conv1d) and leaf == "weight":
            assert entry.decays, entry.name


@pytest.mark.parametrize("family", OWN)
def test_of_our_own_decoder_matrices_and_the_table_decay(family):
    config = read_config({**tiny_fields(family), "use_sliding_window": False, "tie_word_embeddings": False})
    with torch.device("meta"):
        trained = trained_parameters((Decoder(config, layers=range(2)),), MESH)
    assert {entry.name for entry in trained if entry.decays} == {
        entry.name for entry in trained if entry.parameter.dim() > 1
    }
    others = {entry.name for entry in trained if entry.decays and not entry.is_block_matrix}
    assert others == {"model.embed_tokens.weight", "lm_head.weight"}


def test_a_parameter_that_its_model_marks_does_not_decay(monkeypatch):
    from transformers.models.gpt2 import modeling_gpt2

    class Marked(modeling_gpt2.GPT2MLP):
        def __init__(self, *given):
            super().__init__(*given)
            self.c_fc.weight._no_weight_decay = True

    monkeypatch.setattr(modeling_gpt2, "GPT2MLP", Marked)
    trained, _ = entries("gpt2")
    kept = {entry.name for entry in trained if entry.name.endswith("c_fc.weight")}
    assert kept == {entry.name for entry in trained if entry.name in kept and not entry.decays}
    assert kept


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("gpt2", ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")),
        ("mamba", ("mixer.in_proj.weight", "mixer.x_proj.weight", "mixer.dt_proj.weight", "mixer.out_proj.weight")),
        ("gpt_oss", ("k_proj.weight", "q_proj.weight", "v_proj.weight", "o_proj.weight", *GPT_OSS_EXPERTS)),
        ("dbrx", ("attn.Wqkv.weight", "attn.out_proj.weight", "router.layer.weight")),
        ("zamba", None),
    ],
)
def test_muon_takes_the_matrices_of_blocks_and_stacks_of_experts_alone(family, names):
    trained, decoder = entries(family)
    owners = dict(decoder.named_modules())
    taken = [entry for entry in trained if entry.is_block_matrix]
    assert names is None or {name for name in names for e in taken if e.name.endswith(name)} == set(names)
    assert names is None or all(entry.name.endswith(names) for entry in taken)
    for entry in taken:
        owner = owners[entry.name.rpartition(".")[0]]
        assert not isinstance(owner, nn.Embedding | nn.Conv1d | nn.LayerNorm)
        assert entry.parameter.dim() == (3 if "Experts" in type(owner).__name__ else 2)
        assert min(entry.parameter.shape) > 1


def test_groups_of_the_optimizer_follow_the_kinds():
    trained, _ = entries("gpt2")
    with torch.no_grad():
        groups = make_optimizer(trained, make_job(optimizer="muon")).param_groups
    sizes = {(group["weight_decay"] > 0, group.get("is_orthogonal", False)): len(group["params"]) for group in groups}
    assert sizes == {(True, False): 2, (False, False): 34, (True, True): 16}
    assert OptimizerSpec().weight_decay_fraction > 0


@pytest.mark.parametrize(
    ("owner", "name", "shape", "kind"),
    [
        (nn.Linear(4, 1, device="meta"), "weight", (1, 4), "matrix"),
        (nn.Embedding(1, 4, device="meta"), "weight", (1, 4), "table"),
        (nn.LayerNorm(4, device="meta"), "weight", (3, 4), "scale"),
        (nn.GroupNorm(2, 4, device="meta"), "weight", (4,), "scale"),
        (nn.Conv1d(4, 4, 3, groups=4, device="meta"), "weight", (4, 1, 3), "kernel"),
        (nn.Module(), "time_mix", (1, 1, 4), "scale"),
        (nn.Module(), "A_log", (4, 4), "scale"),
        (nn.Module(), "gate_up_proj_bias", (4, 4), "scale"),
        (nn.Module(), "query", (4, 4, 4), "kernel"),
        (nn.Module(), "weight", (4, 4), "matrix"),
        (nn.Module(), "temperature", (), "scale"),
    ],
    ids=str,
)
def test_a_kind_follows_from_the_owner_and_the_shape(owner, name, shape, kind):
    assert kind_of(owner, name, torch.empty(shape, device="meta")) == kind


def test_wrappers_leave_names_but_no_part_that_ends_like_one_does():
    assert plain_name("module.model.layers.0._orig_mod.q.weight") == "model.layers.0.q.weight"
    assert plain_name("model.L_module.layers.0.weight") == "model.L_module.layers.0.weight"


def test_the_decoder_of_a_family_says_which_parameters_are_marked():
    assert TransformersDecoder(tiny_fields("gpt2"), attention="eager").undecayed == frozenset()
