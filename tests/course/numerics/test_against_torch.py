"""One device against torch: the losses and gradients of transformers' Llama, and torch's AdamW."""

import numpy as np
import pytest

from course.numerics.reenacted import some_batches
from shapes import plan
from shardwise.course.numerics.adamw import AdamW, no_moments, update
from shardwise.course.numerics.arrays import TABLES, relative_error
from shardwise.course.numerics.reenact import one_device
from shardwise.course.numerics.tiny_model import initial_weights, tiny_model
from shardwise.layout import Layout

torch = pytest.importorskip("torch")
F = torch.nn.functional


def as_tensor(weights):
    return {key: torch.tensor(array, requires_grad=True) for key, array in weights.items()}


def norm(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def attention(x, weight, heads, kv_heads):
    batch, length, _ = x.shape

    def split(name, count):
        return (x @ weight(f"self_attn.{name}.weight").T).view(batch, length, count, -1).transpose(1, 2)

    q, k, v = split("q_proj", heads), split("k_proj", kv_heads), split("v_proj", kv_heads)
    half = q.shape[-1] // 2
    angle = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)

    def turned(y):
        return y * cos + torch.cat([-y[..., half:], y[..., :half]], -1) * sin

    out = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).reshape(batch, length, -1) @ weight("self_attn.o_proj.weight").T


def dense(x, weight):
    return (F.silu(x @ weight("mlp.gate_proj.weight").T) * (x @ weight("mlp.up_proj.weight").T)) @ weight(
        "mlp.down_proj.weight"
    ).T


def experts(x, weight, per_token):
    """Every expert for every token, and only the chosen ones count."""
    probabilities = F.softmax(x @ weight("mlp.gate.weight").T, -1)
    top, chosen = probabilities.topk(per_token, -1)
    shares = torch.zeros_like(probabilities).scatter(-1, chosen, top / top.sum(-1, keepdim=True))
    gate, up, down = (weight(f"mlp.experts.{name}_proj") for name in ("gate", "up", "down"))
    hidden = F.silu(torch.einsum("bsd,xfd->bsxf", x, gate)) * torch.einsum("bsd,xfd->bsxf", x, up)
    return torch.einsum("bsxf,xdf,bsx->bsd", hidden, down, shares)


def torch_loss(spec, weights, batch):
    tables = {name: array for (number, name), array in weights.items() if number == TABLES}
    x = tables["model.embed_tokens.weight"][torch.tensor(batch.tokens_BS)]
    shape = spec.attention
    for number in range(spec.num_hidden_layers):

        def weight(name, number=number):
            return weights[number, name]

        normed = norm(x, weight("input_layernorm.weight"))
        x = x + attention(normed, weight, shape.num_attention_heads, shape.num_key_value_heads)
        normed = norm(x, weight("post_attention_layernorm.weight"))
        x = x + (experts(normed, weight, spec.moe.num_experts_per_tok) if spec.moe else dense(normed, weight))
    logits = norm(x, tables["model.norm.weight"]) @ tables["lm_head.weight"].T
    return F.cross_entropy(logits.flatten(0, 1), torch.tensor(batch.labels_BS).flatten(), ignore_index=-100)


@pytest.mark.parametrize("num_experts", [0, 4])
def test_one_device_is_what_autograd_computes(num_experts):
    spec = tiny_model(num_experts=num_experts, num_attention_heads=6, num_key_value_heads=3, hidden_size=24)
    weights = initial_weights(spec)
    (batch,) = some_batches(spec, 3, 11, 1)
    found = one_device(plan(spec, layout=Layout(), seq_len=11), weights, [batch])
    tensors = as_tensor(weights)
    loss = torch_loss(spec, tensors, batch)
    loss.backward()
    assert found.losses[0] == pytest.approx(loss.item(), rel=1e-14)
    for key, tensor in tensors.items():
        assert relative_error(found.gradients[key], tensor.grad.numpy()) < 1e-12, key


def test_llama_is_what_transformers_computes():
    transformers = pytest.importorskip("transformers")
    spec = tiny_model()
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=32,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).double()
    weights = initial_weights(spec)
    names = {key: key[1] if key[0] == TABLES else f"model.layers.{key[0]}.{key[1]}" for key in weights}
    model.load_state_dict({names[key]: torch.tensor(array) for key, array in weights.items()})
    (batch,) = some_batches(spec, 2, 13, 1)
    logits = model(torch.tensor(batch.tokens_BS)).logits
    loss = F.cross_entropy(logits.flatten(0, 1), torch.tensor(batch.labels_BS).flatten())
    loss.backward()
    found = one_device(plan(spec, layout=Layout(), seq_len=13), weights, [batch])
    # transformers normalises in fp32 whatever the type of its weights, hence not 1e-12.
    assert found.losses[0] == pytest.approx(loss.item(), rel=1e-6)
    parameters = dict(model.named_parameters())
    for key, gradient in found.gradients.items():
        assert relative_error(gradient, parameters[names[key]].grad.numpy()) < 1e-5, key


def test_the_optimizer_is_torch_adamw():
    random = np.random.default_rng(0)
    weights, settings = random.standard_normal(7), AdamW()
    parameter = torch.nn.Parameter(torch.tensor(weights))
    optimizer = torch.optim.AdamW([parameter], lr=1e-2, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1)
    moments = no_moments(weights)
    for _ in range(3):
        gradient = random.standard_normal(7)
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        weights = update(weights, gradient, moments, settings)
    assert relative_error(weights, parameter.detach().numpy()) < 1e-14
