"""YAML as plain values, without tags or duplicate keys, and in plan files without aliases.

It is imported only when a file is YAML.
"""

import re
from typing import NoReturn

import yaml

from shardwise.errors import PlanError
from shardwise.plan_file.duplicates import refuse_duplicate

MAX_REPEATED_VALUES = 5000
"""Values that all aliases of a document may repeat: no file of a training tool has as many."""
MERGE_TAG = "tag:yaml.org,2002:merge"


class _CoreLoader(yaml.SafeLoader):
    """A safe loader with the scalars of YAML 1.2, whose mappings have text keys and none of them twice."""

    is_of_another_tool = False


class _PlanLoader(_CoreLoader):
    """A loader that refuses what a plan never needs and an attacker does."""

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


class _SharingLoader(_CoreLoader):
    """A loader of what PyYAML reads: ``8_192``, any key, the last of two values, and aliases that repeat few values."""

    is_of_another_tool = True
    num_repeated = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node, after the values that an alias repeats were counted."""
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        waiting = [node] if is_alias else []
        while waiting:
            self.num_repeated += 1
            if self.num_repeated > MAX_REPEATED_VALUES:
                raise PlanError(
                    f"the aliases repeat more than {MAX_REPEATED_VALUES} values",
                    code="plan-alias",
                    fix="write out what the tool reads, and leave out the rest",
                )
            value = getattr(waiting.pop(), "value", ())
            for item in value if isinstance(value, list) else ():
                waiting += item if isinstance(item, tuple) else (item,)
        return node


def _construct_mapping(loader: _CoreLoader, node: yaml.MappingNode) -> dict[str, object]:
    """The mapping, with text keys and none of them twice; what ``<<`` merges stands behind its own values."""
    found: dict[str, object] = {}
    merged: list[yaml.Node] = []
    for key_node, value_node in node.value:
        if key_node.tag == MERGE_TAG:
            merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            continue
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, str) and loader.is_of_another_tool:
            key = str(key)
        if not isinstance(key, str):
            raise PlanError(
                f"line {line} has the key {str(key)[:40]}, which is not text",
                code="plan-syntax",
                fix="write the names of plan fields as keys",
            )
        if key in found and loader.is_of_another_tool:  # whose parser takes the last one
            found[f"{key} (given again on line {line})"] = found[key]
        elif key in found:
            refuse_duplicate(key, name=f"line {line}")
        found[key] = loader.construct_object(value_node, deep=True)
    for other in merged:
        if not isinstance(other, yaml.MappingNode):
            line = other.start_mark.line + 1
            raise PlanError(f"line {line} is no mapping to merge", code="plan-syntax", fix="mend that line")
        found = loader.construct_object(other, deep=True) | found
    return found


def _construct_int(loader: _CoreLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    bases = {"0o": 8, "0x": 16}
    return int(text[2:], bases[text[:2]]) if text[:2] in bases else int(text)


_CoreLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_CoreLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_CoreLoader.yaml_implicit_resolvers = {}
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
    _CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _starts)
_SharingLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[1-9][0-9_]*$"), list("-+123456789"))
_SharingLoader.add_implicit_resolver(MERGE_TAG, re.compile(r"^<<$"), ["<"])


def load_yaml(text: str, *, name: str, reads_aliases: bool = False) -> object:
    """The document as plain values; aliases are read where another tool's file may have them.

    Raises:
        PlanError: it is not YAML, or not of the kind a plan needs.
    """
    try:
        tree: object = yaml.load(text, Loader=_SharingLoader if reads_aliases else _PlanLoader)
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
