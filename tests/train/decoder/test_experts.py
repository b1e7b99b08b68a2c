"""Routed experts against a loop over tokens, forward and backward, and what compiled blocks keep of them."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from shardwise.train.decoder.blocks import Block, Places
from shardwise.train.decoder.config import DecoderConfig, RopeConfig
from shardwise.train.decoder.experts import MoeFeedForward, find_route, spread_copies, sum_copies
from shardwise.train.decoder.gated import weighted_down
from shardwise.train.decoder.rotary import rotary_table
from shardwise.train.torch_private import compile_as_whole_blocks

HIDDEN, WIDTH, EXPERTS, CHOSEN, TOKENS = 32, 48, 8, 3, 40
CONFIG = DecoderConfig(
    model_type="qwen3_moe",
    hidden_size=HIDDEN,
    intermediate_size=WIDTH,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=64,
    rms_norm_eps_ratio=1e-6,
    initializer_ratio=0.02,
    rope=RopeConfig(),
    tie_word_embeddings=False,
    has_qkv_bias=False,
    has_output_bias=False,
    has_qk_norm=True,
    num_experts=EXPERTS,
    num_experts_per_tok=CHOSEN,
)


def filled(module, dtype):
    torch.manual_seed(7)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return module.to(dtype)


def token_by_token(moe, inputs):
    """Each token through its own experts, one after the other."""
    rows = []
    tokens = inputs.flatten(0, 1)
    for token, weights, experts in zip(tokens, *moe.gate(tokens), strict=True):
        answers = []
        for weight, expert in zip(weights, experts, strict=True):
            gate, up = F.linear(token, moe.experts.gate_up_proj[expert]).chunk(2)
            answers.append(weight.type_as(token) * F.linear(F.silu(gate) * up, moe.experts.down_proj[expert]))
        rows.append(torch.stack(answers).sum(0))
    return torch.stack(rows).view_as(inputs)


def results(function, parameters, inputs):
    given = inputs.clone().requires_grad_()
    out = function(given)
    factors = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * factors).sum(), [given, *parameters])]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_experts_give_each_token_what_a_loop_over_tokens_gives(dtype, tolerance):
    moe = filled(MoeFeedForward(CONFIG), dtype)
    inputs = torch.randn(2, TOKENS // 2, HIDDEN, dtype=dtype)
    found = results(moe, list(moe.parameters()), inputs)
    wanted = results(lambda x: token_by_token(moe, x), list(moe.parameters()), inputs)
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).float().norm() <= tolerance * other.float().norm()


def test_an_expert_without_tokens_has_a_gradient_of_zeros():
    moe = filled(MoeFeedForward(CONFIG), torch.bfloat16)
    with torch.no_grad():
        moe.gate.weight.fill_(-1.0)
        moe.gate.weight[:CHOSEN] = 1.0  # positive tokens go to the first experts
    moe(torch.rand(1, TOKENS, HIDDEN).bfloat16()).float().square().sum().backward()
    assert moe.experts.down_proj.grad[-1].abs().max() == 0
    assert moe.experts.down_proj.grad[0].abs().max() > 0


def test_rows_stand_by_expert_and_copies_come_back_to_their_token():
    experts = torch.tensor([[2, 0], [0, 2], [3, 0]])
    route = find_route(experts, 4)
    assert route.copies.tolist() == [1, 2, 5, 0, 3, 4]
    assert route.counts.tolist() == [3, 0, 2, 1]
    tokens = torch.tensor([[1.0], [10.0], [100.0]])
    assert spread_copies(tokens, route).flatten().tolist() == [1, 10, 100, 1, 10, 100]
    assert sum_copies(spread_copies(tokens, route), route).flatten().tolist() == [2, 20, 200]


def test_moving_rows_there_and_back_has_exact_gradients():
    route = find_route(torch.tensor([[2, 0], [0, 2], [3, 0]]), 4)
    tokens = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: spread_copies(x, route), tokens)
    assert torch.autograd.gradcheck(lambda x: sum_copies(x, route), rows)


def test_the_last_product_of_experts_has_the_gradients_that_autograd_finds():
    generator = torch.Generator().manual_seed(3)
    gate_up, weights, down = (
        torch.randn(size, generator=generator).bfloat16().requires_grad_() for size in ((20, 32), (20,), (3, 24, 16))
    )
    counts = [8, 0, 12]
    ends = torch.tensor(counts).cumsum(0).int()
    arrived = torch.randn(20, 24, generator=generator).bfloat16()
    found = torch.autograd.grad(weighted_down(gate_up, weights, down, ends), (gate_up, weights, down), arrived)
    wide = [tensor.detach().double().requires_grad_() for tensor in (gate_up, weights, down)]
    hidden = F.silu(wide[0][:, :16]) * wide[0][:, 16:] * wide[1].unsqueeze(1)
    plain = torch.cat([piece @ wide[2][e].t() for e, piece in enumerate(hidden.split(counts))])
    for one, other in zip(found, torch.autograd.grad(plain, wide, arrived.double()), strict=True):
        assert (one.double() - other).norm() <= 8e-3 * other.norm()


@pytest.fixture
def whole_block():
    """A block, what it is called with, and its forward compiled in one piece, without making kernels of it."""
    torch._dynamo.reset()
    compile_as_whole_blocks(saves_elementwise=False)
    block = filled(Block(CONFIG), torch.bfloat16)
    cosines, sines = rotary_table(CONFIG.rope, head_dim=CONFIG.head_dim, positions=torch.arange(TOKENS // 2))
    places = Places(cosines=cosines, sines=sines)
    compiled = torch.compile(block.forward, dynamic=False, fullgraph=True, backend="aot_eager_decomp_partition")
    return block, places, compiled


def test_a_block_with_experts_compiles_in_one_piece_to_the_same_numbers(whole_block):
    block, places, compiled = whole_block
    inputs = torch.randn(2, TOKENS // 2, HIDDEN, dtype=torch.bfloat16)
    expected = results(lambda x: block(x, places), list(block.parameters()), inputs)
    for one, other in zip(
        results(lambda x: compiled(x, places), list(block.parameters()), inputs), expected, strict=True
    ):
        assert (one - other).float().norm() <= 4e-3 * other.float().norm()


def test_a_compiled_block_keeps_of_its_experts_the_copies_and_gate_and_up(whole_block):
    _, places, compiled = whole_block
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        compiled(torch.randn(2, TOKENS // 2, HIDDEN, dtype=torch.bfloat16, requires_grad=True), places)
    rows = sorted(tuple(tensor.shape) for tensor in kept if tensor.dim() == 2 and tensor.size(0) == TOKENS * CHOSEN)
    assert rows == [(120, 32), (120, 96)]
