"""Initial values of a model that transformers builds: what the class of its family gives, under seeds of our own.

A second copy of the model stays on the meta device as the class made it. Unit by unit its modules get room on the
device, the class fills them, and the values move to the trained model. What stands there in the place of a module (a
4-bit or 8-bit product, a frozen weight in bf16) is nothing that the class would know, and nothing it has to.

Each module draws from a stream of its own, whose seed follows from the run's and the module's name, so that every
layout starts from the same model.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shardwise.errors import ModelError
from shardwise.train.initialise import placed, seed_of
from shardwise.train.torch_private import FakeTensor
from shardwise.train.transformers_private import fill_with_its_own_values

__all__ = ["WrittenNumbers", "fill_as_family", "forget_numbers"]

META, CPU = torch.device("meta"), torch.device("cpu")


def fill_as_family(
    untouched: nn.Module,
    module: nn.Module,
    *,
    prefix: str = "",
    device: torch.device,
    seed: int = 0,
    has_buffers_alone: bool = False,
) -> None:
    """Give what is on the meta device its initial value; adapters, which no family has, stay as they are.

    A traced run has tensors without values, which it gets without asking the class.

    Args:
        untouched: the whole model as its class made it, on the meta device.
        module: the trained model or a unit of it; what was filled before is left alone.
        prefix: the module's name in the model.
        device: where the values go.
        seed: of the run.
        has_buffers_alone: leave parameters for later; no buffer depends on a seed.

    Raises:
        ModelError: the class of the family leaves a weight without a value.
    """
    known = {name for name, _ in _tensors(untouched.get_submodule(prefix), prefix)}
    names = [
        name
        for name, tensor in _tensors(module, prefix)
        if tensor.is_meta and name in known and not (has_buffers_alone and isinstance(tensor, nn.Parameter))
    ]
    # transformers fills what is tied too, and then ties it to its source: here it stays without room and takes nothing.
    names = [name for name in names if name not in untouched.all_tied_weights_keys]
    _move(untouched, names, device)
    if not any(isinstance(getattr(*_place(untouched, name)), FakeTensor) for name in names):
        _run_classes(untouched, prefix, names, device=device, seed=seed)
    _hand_over(untouched, module, prefix, names)
    _move(untouched, names, META)


class WrittenNumbers(TorchFunctionMode):
    """While it is entered, numbers that a constructor writes out stay numbers, also where tensors have none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function; the constants of ``torch.tensor`` on the CPU."""
        named = dict(kwargs or {})
        if func is torch.tensor:
            named.setdefault("device", CPU)
        return func(*args, **named)


def forget_numbers(module: nn.Module) -> None:
    """Put on the meta device what a constructor made elsewhere; tied parameters stay one."""
    made: dict[int, Tensor] = {}
    for name, tensor in list(_tensors(module, "")):
        owner, leaf = _place(module, name)
        if not tensor.is_meta and id(tensor) not in made:
            empty = torch.empty_like(tensor, device=META)
            is_parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_parameter else empty
        setattr(owner, leaf, made.get(id(tensor), tensor))


def _tensors(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers with their names in the whole model, tied ones under each of theirs."""
    start = f"{prefix}." if prefix else ""
    yield from ((start + name, tensor) for name, tensor in module.named_parameters(remove_duplicate=False))
    yield from ((start + name, tensor) for name, tensor in module.named_buffers(remove_duplicate=False))


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds a tensor, and the tensor's name in it."""
    owner, _, leaf = name.rpartition(".")
    return model.get_submodule(owner), leaf


def _move(model: nn.Module, names: list[str], device: torch.device) -> None:
    """Replace the named tensors by ones on the device: NaN where a constructor wrote no numbers."""
    for name in names:
        owner, leaf = _place(model, name)
        held: Tensor = getattr(owner, leaf)
        moved = torch.empty_like(held, device=device) if held.is_meta else held.detach().to(device, copy=True)
        if held.is_meta:
            moved = moved.fill_(torch.nan) if moved.is_floating_point() else moved.zero_()
        is_parameter = isinstance(held, nn.Parameter)
        setattr(owner, leaf, nn.Parameter(moved, requires_grad=held.requires_grad) if is_parameter else moved)


def _run_classes(model: nn.Module, prefix: str, names: list[str], *, device: torch.device, seed: int) -> None:
    """Let the classes fill the named tensors. What is on the meta device takes no value and draws nothing."""
    from transformers.initialization import guard_torch_init_functions  # noqa: PLC0415 - seconds of imports

    holders = {parent for name in names for parent in _parents(name)}
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), guard_torch_init_functions(), torch.random.fork_rng(devices):
        for name, module, author in _visits(model, prefix):
            if name in holders:
                first = [leaf for leaf, _ in module.named_parameters(recurse=False)][:1]
                own = ".".join(filter(None, [name, *first]))
                is_around = len(name) < len(prefix)
                torch.manual_seed(seed_of(seed, f"{own} for {prefix}" if is_around else own))
                fill_with_its_own_values(author, module)


def _parents(name: str) -> Iterator[str]:
    """The names of all modules around a tensor, the whole model's, which is empty, among them."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _visits(model: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module, Any]]:
    """Modules with their names and the models whose classes fill them, in transformers' order: inner ones first.

    First those of ``prefix``, then those around it, which in some families fill what lies deep inside. A model inside a
    model (transformers' innermost one around a module) has the say.
    """
    from transformers import PreTrainedModel  # noqa: PLC0415 - seconds of imports

    around: list[tuple[str, nn.Module, Any]] = []
    author: Any = model
    for name in [*_parents(prefix)][::-1]:
        module = model.get_submodule(name)
        author = module if isinstance(module, PreTrainedModel) else author
        around.append((name, module, author))
    yield from _inside(model.get_submodule(prefix), prefix, author)
    yield from reversed(around)


def _inside(module: nn.Module, name: str, author: Any) -> Iterator[tuple[str, nn.Module, Any]]:
    from transformers import PreTrainedModel  # noqa: PLC0415 - seconds of imports

    author = module if isinstance(module, PreTrainedModel) else author
    for child_name, child in module.named_children():
        yield from _inside(child, ".".join(filter(None, [name, child_name])), author)
    yield name, module, author


def _hand_over(untouched: nn.Module, module: nn.Module, prefix: str, names: list[str]) -> None:
    """Put the values into the trained model, in its dtypes; tied parameters stay one.

    Raises:
        ModelError: one of them is not there.
    """
    filled: dict[int, nn.Parameter] = {}
    for name in names:
        owner, leaf = _place(untouched, name)
        value: Tensor = getattr(owner, leaf)
        if value.is_floating_point() and not isinstance(value, FakeTensor) and bool(value.isnan().any()):
            raise ModelError(
                f"{type(untouched).__name__} of transformers gives {name} no initial value",
                code="train-model",
                fix="train a family whose class fills all of its weights",
            )
        owner, leaf = _place(module, name.removeprefix(f"{prefix}."))
        held: Tensor = getattr(owner, leaf)
        if isinstance(held, nn.Parameter):
            own = placed(value.detach().to(held.dtype), held)
            filled[id(held)] = nn.Parameter(own, requires_grad=held.requires_grad)
        else:
            setattr(owner, leaf, value.to(held.dtype))
    for part in module.modules():
        for leaf, parameter in list(part.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) in filled:
                setattr(part, leaf, filled[id(parameter)])
