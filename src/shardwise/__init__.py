"""Shardwise: plan a distributed training run, know why it fits, run it, and compare prediction with truth.

``import shardwise as sw`` gives the questions of the command line as functions: ``sw.plan``, ``sw.predict``,
``sw.explain``, ``sw.cost``, ``sw.judge``, ``sw.load_plan``. Nothing is imported before a name is used.
"""

import sys
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # type checkers take it for true, and importing typing costs more than all the rest here
if TYPE_CHECKING:
    from shardwise.ask.answers import Answer as Answer
    from shardwise.ask.costs import cost as cost
    from shardwise.ask.judging import judge as judge
    from shardwise.ask.plans import save_plan as save_plan
    from shardwise.ask.predicting import explain as explain
    from shardwise.ask.predicting import load_plan as load_plan
    from shardwise.ask.predicting import predict as predict
    from shardwise.ask.searching import plan as plan
    from shardwise.catalog import read_cluster as read_cluster
    from shardwise.errors import ShardwiseError as ShardwiseError
    from shardwise.families import read_model as read_model
    from shardwise.plan import Plan as Plan
    from shardwise.search import SearchBounds as SearchBounds

__all__ = [
    "Answer",
    "Plan",
    "SearchBounds",
    "ShardwiseError",
    "cost",
    "explain",
    "judge",
    "load_plan",
    "plan",
    "predict",
    "read_cluster",
    "read_model",
    "save_plan",
]
__version__ = "0.1.0"


class Lazy:
    """A name of the package that is imported when it is used.

    It stays what it is when Python imports a folder of the same name, such as ``shardwise.predict``, and would bind it.
    """

    def __init__(self, module: str) -> None:
        self.module = module

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, package: ModuleType | None, owner: type) -> object:
        return self if package is None else getattr(import_module(self.module), self.name)

    def __set__(self, package: ModuleType, value: object) -> None:
        """Leave the name alone: the import system binds every folder it imports to its package."""


class FrontDoor(ModuleType):
    """This package: the names of ``__all__`` are its functions and classes."""

    Answer = Lazy("shardwise.ask.answers")
    Plan = Lazy("shardwise.plan")
    SearchBounds = Lazy("shardwise.search")
    ShardwiseError = Lazy("shardwise.errors")
    cost = Lazy("shardwise.ask.costs")
    explain = Lazy("shardwise.ask.predicting")
    judge = Lazy("shardwise.ask.judging")
    load_plan = Lazy("shardwise.ask.predicting")
    plan = Lazy("shardwise.ask.searching")
    predict = Lazy("shardwise.ask.predicting")
    read_cluster = Lazy("shardwise.catalog")
    read_model = Lazy("shardwise.families")
    save_plan = Lazy("shardwise.ask.plans")

    def __dir__(self) -> list[str]:
        """The public names, for completion."""
        return [*__all__, "__version__"]


sys.modules[__name__].__class__ = FrontDoor
