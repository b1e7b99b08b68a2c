"""Functions of ours that are compiled, each where it is first needed."""

from collections.abc import Callable
from functools import cache
from typing import ParamSpec, TypeVar

import torch

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@cache
def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function compiled for fixed shapes; the same one for every caller.

    Not when a module is imported: asking for a compiler takes every process a second, and most compile none of these.
    """
    found: Callable[Parameters, Result] = torch.compile(function, dynamic=False)
    return found
