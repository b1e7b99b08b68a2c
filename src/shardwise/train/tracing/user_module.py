"""A user's own module, named ``package:factory``."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from torch import nn

from shardwise.errors import ShardwiseError
from shardwise.train.foreign import ForeignModule

ModuleFactory = Callable[[], ForeignModule]


class ModuleError(ShardwiseError):
    """A module that cannot be traced."""


def module_factory(text: str) -> ModuleFactory:
    """What makes the module that ``package:factory`` names.

    Raises:
        ModuleError: there is no such package or function.
    """
    package, _, name = text.partition(":")
    if not package or not name:
        raise ModuleError(
            f"'{text}' names no factory",
            code="trace-module",
            fix="write --module package.module:function",
        )
    found = getattr(_imported(package), name, None)
    if not callable(found):
        raise ModuleError(
            f"the module {package} has no function '{name}'",
            code="trace-module",
            fix=f"name a function or class of {package} that takes no arguments and returns a torch.nn.Module",
        )
    return lambda: _made(found, text)


def _imported(package: str) -> object:
    """The package, looked for where the command was typed as Python itself would."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(package)
    except Exception as error:
        raise ModuleError(
            f"importing {package} fails: {_words(error)}",
            code="trace-module",
            fix=f"make `python -c 'import {package}'` work in this folder first",
        ) from error


def _made(factory: Callable[[], object], text: str) -> ForeignModule:
    try:
        module = factory()
    except Exception as error:
        raise ModuleError(
            f"{text} raises {_words(error)}",
            code="trace-module",
            fix="give a factory that needs no arguments, no files and no GPU",
        ) from error
    if not isinstance(module, nn.Module):
        raise ModuleError(
            f"{text} returns {type(module).__name__}, not a torch.nn.Module",
            code="trace-module",
            fix="return the module itself",
        )
    return ForeignModule(module)


def _words(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
