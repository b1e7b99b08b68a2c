"""Triton kernels of the gate and of the loss against plain torch: in Triton's interpreter, and on a GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

HAS_TRITON = importlib.util.find_spec("triton") is not None
NEEDS_TRITON = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed: it comes with torch for CUDA alone")
IGNORED = -100


def gates(device):
    """Two tiles of a row and a part of a third, so that masks count."""
    generator = torch.Generator().manual_seed(5)
    sizes = ((3, 2 * 2100), (3,), (3, 2100))
    return [torch.randn(size, generator=generator).bfloat16().to(device) for size in sizes]


def check_gate(device):
    from shardwise.train.kernels import differentiate_gated, differentiate_weighted_gate

    gate_up, weights, arrived = gates(device)
    wide = [tensor.double().requires_grad_() for tensor in (gate_up, weights)]
    gate, up = wide[0].chunk(2, dim=-1)
    hidden = F.silu(gate) * up * wide[1].unsqueeze(1)
    expected = [*torch.autograd.grad(hidden, wide, arrived.double()), hidden.detach()]
    for one, other in zip(differentiate_weighted_gate(gate_up, weights, arrived), expected, strict=True):
        assert (one.double() - other).norm() <= 8e-3 * other.norm()
    own, other, given = (tensor.clone() for tensor in (*gate_up.chunk(2, dim=-1), arrived))
    parts = [own.double().requires_grad_(), other.double().requires_grad_()]
    activation = F.silu(parts[0]) * parts[1]
    wanted = [activation.detach(), *torch.autograd.grad(activation, parts, given.double())]
    differentiate_gated(own, other, given, activation=own)
    for one, right in zip((own, given, other), wanted, strict=True):
        assert (one.double() - right).norm() <= 8e-3 * right.norm()


def check_loss(device):
    """More columns than a tile, a label that is ignored, rows that stand apart."""
    from shardwise.train.kernels import differentiate_cross_entropy

    rows = torch.randn(3, 9100, generator=torch.Generator().manual_seed(6)).to(device)
    logits, labels = rows[:, :9001], torch.tensor([7, IGNORED, 9000], device=device)
    wide = logits.double().requires_grad_()
    losses = F.cross_entropy(wide, labels, reduction="none", ignore_index=IGNORED)
    (expected,) = torch.autograd.grad(losses.sum(), wide)
    untouched = rows[:, 9001:].clone()
    found = differentiate_cross_entropy(logits, labels, ignored_label=IGNORED)
    torch.testing.assert_close(found.double(), losses.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-7)
    assert torch.equal(rows[:, 9001:], untouched)


def check_adamw(device):
    """A whole weight and one in two halves, with gradients of either kind, against torch's arithmetic."""
    from shardwise.train.adamw import OnePassAdamW
    from shardwise.train.halved import halved, joined

    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(3, 100_003, generator=generator).to(device)
    gradients = [torch.randn(weight.shape, generator=generator).bfloat16().to(device) for _ in range(3)]
    expected = torch.nn.Parameter(weight.clone())
    plain = torch.optim.AdamW([expected], lr=1e-2, weight_decay=0.1)
    half, rest = halved(weight)
    parameters = torch.nn.Parameter(half.clone()), torch.nn.Parameter(weight.clone())
    own = [
        OnePassAdamW([{"params": [one], "weight_decay": 0.1}], lr=1e-2, betas=(0.9, 0.999), rest_of=lambda _, r=left: r)
        for one, left in zip(parameters, (rest, None), strict=True)
    ]
    for gradient in gradients:
        expected.grad = 0.5 * gradient.float()
        parameters[0].grad, parameters[1].grad = gradient.clone(), gradient.float()
        for optimizer in own:
            optimizer.begin(torch.tensor(0.5))
            optimizer.step()
        plain.step()
    assert torch.equal(own[0].state[parameters[0]]["step"], torch.tensor(3.0, device=device))
    torch.testing.assert_close(parameters[1].detach(), expected.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(joined(parameters[0].detach(), rest), expected.detach(), rtol=1e-6, atol=1e-6)
    assert torch.equal(parameters[0].detach(), joined(parameters[0].detach(), rest).bfloat16())


@NEEDS_TRITON
@pytest.mark.parametrize("check", ["check_gate", "check_loss"])
def test_a_kernel_computes_what_torch_does_in_the_interpreter(check):
    """In a process of its own: Triton reads its switch when it is imported."""
    here = str(Path(__file__).parent)
    source = f"import sys; sys.path.insert(0, {here!r}); import test_kernels; test_kernels.{check}('cpu')"
    variables = {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run([sys.executable, "-c", source], env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.gpu
@NEEDS_TRITON
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("check", [check_gate, check_loss, check_adamw])
def test_a_kernel_computes_what_torch_does_on_a_gpu(check):
    check("cuda")


def test_adamw_without_a_kernel_does_the_same():
    check_adamw("cpu")
