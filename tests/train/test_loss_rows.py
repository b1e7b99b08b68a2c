"""Loss over a vocabulary whose size is no multiple of what products want."""

import pytest
import torch

from shardwise.train.loss import IGNORED_LABEL, LossSettings, summed_token_loss


@pytest.mark.parametrize("rows", [101, 104])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_rows_of_zeros_below_the_head_change_neither_loss_nor_gradients(rows, is_compiled, monkeypatch):
    if is_compiled:
        monkeypatch.setattr("shardwise.train.loss.compiled", lambda function: function)
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(37, 16, generator=generator, requires_grad=True)
    weight = torch.randn(rows, 16, generator=generator, requires_grad=True)
    labels = torch.randint(0, rows, (37,), generator=generator)
    labels[::5] = IGNORED_LABEL
    settings = LossSettings(num_chunks=3, is_compiled=is_compiled)
    loss = summed_token_loss(hidden, weight, labels, settings=settings)
    found = torch.autograd.grad(loss, (hidden, weight))
    plain = torch.nn.functional.cross_entropy(hidden @ weight.t(), labels, reduction="sum", ignore_index=IGNORED_LABEL)
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)
    for one, other in zip(found, torch.autograd.grad(plain, (hidden, weight)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
