"""How the weights of a family begin, what of them decays and what its loss is: ours beside transformers' own.

Each probe returns ``None`` where all is equal, and otherwise what differs first.
"""

from typing import Any

import torch
from torch import Tensor, nn

from shardwise.train.family_initialise import fill_as_family
from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.units import units_of

CPU = torch.device("cpu")
SIGMAS = 6.0
KOLMOGOROV = 3.0
"""Two samples of one distribution lie further apart than this times ``sqrt(1/n + 1/m)`` once in 30 million times."""
RELATIVE = 2e-5
FEW = 1e-3
"""Share of a tensor's numbers that are equal in two draws by chance."""
ENOUGH = 30
"""Numbers that show a spread."""


def built(fields: dict[str, Any]) -> TransformersDecoder:
    """Our model of a family on the meta device."""
    return TransformersDecoder(fields, attention="eager")


def started(fields: dict[str, Any], *, seed: int, by_unit: bool = True) -> TransformersDecoder:
    """Our model with its initial values, filled unit by unit as ranks do it, or at once."""
    decoder = built(fields)
    decoder.fill_buffers(CPU)
    for unit in units_of(decoder) if by_unit else ():
        fill_as_family(decoder.untouched[0], unit.module, prefix=unit.name, device=CPU, seed=seed)
    fill_as_family(decoder.untouched[0], decoder, device=CPU, seed=seed)
    return decoder


def from_config(fields: dict[str, Any], *, seed: int) -> Any:
    """transformers' own model of a family, with its own initial values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    options = dict(fields)
    torch.manual_seed(seed)
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}


def start_differs(fields: dict[str, Any]) -> str | None:
    """Whether our initial values are not those of ``from_config``: equal where a seed has no say, alike elsewhere."""
    first, second = (tensors(from_config(fields, seed=seed)) for seed in (0, 1))
    ours = tensors(started(fields, seed=0))
    if ours.keys() != first.keys():
        return f"other names: {sorted(ours.keys() ^ first.keys())[:3]}"
    return next(filter(None, (unlike(name, ours[name], first[name], second[name]) for name in first)), None)


def unlike(name: str, ours: Tensor, first: Tensor, second: Tensor) -> str | None:
    """What tells a tensor from two that were drawn with different seeds."""
    if ours.shape != first.shape or ours.dtype != first.dtype:
        return f"{name} is {tuple(ours.shape)} {ours.dtype}, not {tuple(first.shape)} {first.dtype}"
    is_fixed = (first == second) | (first.isnan() & second.isnan())
    if is_fixed.float().mean() < FEW:
        is_fixed = torch.zeros_like(is_fixed)  # of millions of draws a few are equal
    if not torch.equal(ours[is_fixed].nan_to_num(), first[is_fixed].nan_to_num()):
        return f"{name} begins with other constants"
    drawn, theirs = ours[~is_fixed].double(), torch.cat([first[~is_fixed], second[~is_fixed]]).double()
    how = unlike_draws(drawn, theirs) if drawn.numel() > 1 else None
    return how and f"{name} has {how}"


def unlike_draws(drawn: Tensor, theirs: Tensor) -> str | None:
    """What tells two samples apart: mean, spread, or the shape of their distributions (Kolmogorov and Smirnov)."""
    n, m = drawn.numel(), theirs.numel()
    error = (1 / n + 1 / m) ** 0.5
    spread, tails = theirs.std(), ((theirs - theirs.mean()) / theirs.std()).pow(4).mean()
    if (drawn.mean() - theirs.mean()).abs() > SIGMAS * spread * error:
        return f"mean {drawn.mean():.4g}, not {theirs.mean():.4g}"
    if n >= ENOUGH and (drawn.var() / theirs.var() - 1).abs() > SIGMAS * (tails - 1) ** 0.5 * error:
        return f"standard deviation {drawn.std():.4g}, not {spread:.4g}"
    places = torch.cat([drawn, theirs]).sort().values
    shares = [torch.searchsorted(part.sort().values, places, right=True) / part.numel() for part in (drawn, theirs)]
    is_other = (shares[0] - shares[1]).abs().max() > KOLMOGOROV * error
    return "another distribution" if is_other else None


def seed_differs(fields: dict[str, Any]) -> str | None:
    """Whether values depend on the order in which units are filled, or not on the seed where the family's do."""
    ours, again, other = (
        tensors(started(fields, seed=seed, by_unit=by_unit)) for seed, by_unit in ((0, True), (0, False), (1, True))
    )
    changed = [name for name in ours if not torch.equal(ours[name].nan_to_num(), again[name].nan_to_num())]
    if changed:
        return f"{changed[0]} depends on what is filled before"
    drawn = {name for name in ours if not torch.equal(ours[name].nan_to_num(), other[name].nan_to_num())}
    return None if drawn else "no value depends on the seed"


def loss_differs(fields: dict[str, Any], *, num_tokens: int = 12) -> str | None:
    """Whether our summed loss or a gradient of it is not that of the class's own logits, in training and without."""
    decoder, theirs = started(fields, seed=0), from_config(fields, seed=1)
    values = tensors(decoder)
    with torch.no_grad():
        for name, tensor in (*theirs.named_parameters(), *theirs.named_buffers()):
            tensor.copy_(values[name])
    torch.manual_seed(2)
    num_ids = min(128, int(theirs.config.get_text_config().vocab_size))
    tokens = torch.randint(3, num_ids, (2, num_tokens + 1))
    ids, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    for is_training in (False, True):
        torch.manual_seed(3)
        loss = decoder.train(is_training)(ids, labels)
        torch.manual_seed(3)
        logits = theirs.train(is_training)(input_ids=ids, use_cache=False).logits
        expected = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
        if not torch.allclose(loss, expected, rtol=RELATIVE):
            return f"the loss is {loss.item():.6f}, not {expected.item():.6f}"
    loss.backward()
    expected.backward()
    return gradient_differs(decoder, theirs)


def gradient_differs(ours: nn.Module, theirs: nn.Module) -> str | None:
    """The first parameter whose gradients are not equal, measured by the largest gradient of all."""
    wanted = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    largest = max(float(gradient.abs().max()) for gradient in wanted.values() if gradient is not None)
    for name, parameter in ours.named_parameters():
        mine, their = (torch.zeros(()) if part is None else part for part in (parameter.grad, wanted[name]))
        if (mine - their).abs().max() > 10 * RELATIVE * largest:
            return f"the gradient of {name} is off by {float((mine - their).abs().max()):.3g} of {largest:.3g}"
    return None
