"""What comes back from the host is what went there."""

import torch
from torch import nn

from shardwise.train.activation_offload import offload_activations


class Transposes(torch.autograd.Function):
    """Saves a transposed tensor, as compiled code does with keys and values."""

    @staticmethod
    def forward(ctx, inputs):
        ctx.save_for_backward((2 * inputs).transpose(1, 2))
        return inputs.sum()

    @staticmethod
    def backward(ctx, gradient):
        (saved,) = ctx.saved_tensors
        SEEN.append((tuple(saved.shape), saved.stride(), saved[0, 1, 0].item()))
        return gradient * saved.transpose(1, 2)


SEEN = []


class Block(nn.Module):
    def forward(self, inputs):
        return Transposes.apply(inputs)


def test_a_tensor_comes_back_with_its_strides():
    """A compiler asserts the strides that it made code for."""
    block = Block()
    offload_activations([block])
    inputs = torch.arange(24.0).view(2, 3, 4).requires_grad_()
    block(inputs).backward()
    assert SEEN == [((2, 4, 3), (12, 1, 4), 2.0)]
    assert torch.equal(inputs.grad, 2 * inputs.detach())
