"""YAML for plan files: the safe subset without aliases, tags or duplicate keys. Imported only when a plan is YAML."""

import re
from typing import NoReturn

import yaml

from shardwise.errors import PlanError
from shardwise.plan_file.duplicates import refuse_duplicate


class _PlanLoader(yaml.SafeLoader):
    """A safe loader that refuses what a plan never needs and an attacker does."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node; an alias, which can make a few bytes expand to gigabytes, is refused."""
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            raise PlanError(
                f"line {line} refers back to an anchor, which a plan does not need",
                code="plan-alias",
                fix="write the value out",
            )
        return super().compose_node(parent, index)


def _construct_mapping(loader: _PlanLoader, node: yaml.MappingNode) -> dict[str, object]:
    """The mapping, with text keys and none of them twice."""
    found: dict[str, object] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise PlanError(
                f"line {line} has the key {str(key)[:40]}, which is not text",
                code="plan-syntax",
                fix="write the names of plan fields as keys",
            )
        if key in found:
            refuse_duplicate(key, name=f"line {line}")
        found[key] = loader.construct_object(value_node, deep=True)
    return found


def _construct_int(loader: _PlanLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    bases = {"0o": 8, "0x": 16}
    return int(text[2:], bases[text[:2]]) if text[:2] in bases else int(text)


_PlanLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_PlanLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_PlanLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _starts in (
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", list("tTfFyYnNoO")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    # The core schema of YAML 1.2.2, section 10.3.2: YAML 1.1 reads 1:30 as 90 and 010 as 8. Its yes and no stay, as no
    # field of a plan takes one of these for a word.
    _PlanLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _starts)


def load_yaml(text: str, *, name: str) -> object:
    """The document as plain values.

    Raises:
        PlanError: it is not YAML, or not of the kind a plan needs.
    """
    try:
        tree: object = yaml.load(text, Loader=_PlanLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context or "syntax"
        if problem.startswith("but ") and error.context:
            problem = f"{error.context}, {problem}"
        _refuse(name, f"{problem}{where}")
    except yaml.YAMLError as error:
        _refuse(name, str(error).splitlines()[0])
    except ValueError as error:
        _refuse(name, str(error))
    return tree


def _refuse(name: str, problem: str) -> NoReturn:
    raise PlanError(
        f"{name} is not YAML: {problem}",
        code="plan-syntax",
        fix="mend that line, or save the plan as .json if it is JSON",
    ) from None
