"""What to type: fixes in the command line's own spelling, and what other tools call an option or one of its values."""

import re
from collections.abc import Sequence

NEAR_RATIO = 0.75
"""Share of letters that a misspelling has in common with what was meant: ``megatorn`` has 0.88, ``bogus`` and ``gpus``
have 0.67."""
ASSIGNMENT = re.compile(r"\b([a-z_]+)=(true|false|null)\b")


def with_option_spelling(fix: str, words: list[str]) -> str:
    """The fix, and in brackets what to type for values that options spell otherwise.

    ``set compile=false`` is ``--no-compile``, and ``null`` means to leave an option out. Nothing is added when no word
    of the command line can be the option: plans in files are mended there.

    >>> with_option_spelling("set recompute_layers=null", ["predict", "8B", "8xh100", "--recompute-layers", "4"])
    'set recompute_layers=null (leave out --recompute-layers)'
    >>> with_option_spelling("set compile=false", ["predict", "8B", "8xh100"])
    'set compile=false (--no-compile)'
    >>> with_option_spelling("set compile=false", ["predict", "plan.json"])
    'set compile=false'
    """
    num_places = sum(not word.startswith("-") for word in words)
    has_options = any(word.startswith("--") and word != "--json" for word in words)
    if num_places < 3 and not has_options:
        return fix
    spelled = [_option(name, value, words) for name, value in ASSIGNMENT.findall(fix)]
    known = ", ".join(option for option in spelled if option)
    return f"{fix} ({known})" if known else fix


def _option(name: str, value: str, words: list[str]) -> str:
    option = name.replace("_", "-")
    if value != "null":
        return f"--{option}" if value == "true" else f"--no-{option}"
    was_given = any(word.partition("=")[0] == f"--{option}" for word in words)
    return f"leave out --{option}" if was_given else ""


def option_of_synonym(name: str) -> str:
    """The option of what another tool calls it; empty when nobody knows the name.

    >>> option_of_synonym("--tensor-model-parallel-size"), option_of_synonym("--tp-comm-overlap")
    ('--tp', '--async-tensor-parallel')
    >>> option_of_synonym("--moe-aux-loss-coeff")
    '--router-aux-loss-coef'
    """
    from shardwise.cli.routing_options import ROUTING_SYNONYMS
    from shardwise.fields import plan_fields
    from shardwise.layout import Layout
    from shardwise.recipe import Recipe

    if name in ROUTING_SYNONYMS:
        return ROUTING_SYNONYMS[name]
    asked = name.removeprefix("--").replace("-", "_").lower()
    fields = (*plan_fields(Recipe), *plan_fields(Layout))
    return next((field.option for field in fields if name.startswith("--") and asked in field.synonyms), "")


def option_of_value(name: str, message: str, options: Sequence[str]) -> str:
    """The option that takes a name as its value, with a rank that stands behind it; empty where none does.

    Other tools' switches of 16 and 8 bits keep fp32 master weights, which is what the mixed formats are.

    >>> option_of_value("--qlora", "unrecognized arguments: --qlora", ("--adapter",))
    '--adapter qlora'
    >>> option_of_value("--lora", "unrecognized arguments: --lora 16", ("--adapter", "--lora-rank"))
    '--adapter lora --lora-rank 16'
    >>> option_of_value("--fp8", "unrecognized arguments: --fp8", ("--precision",))
    '--precision fp8-mixed'
    """
    from shardwise.fields import plan_fields
    from shardwise.layout import Layout
    from shardwise.recipe import Recipe

    asked = name.removeprefix("--").lower()
    for field in (*plan_fields(Recipe), *plan_fields(Layout)):
        meant = next((choice for choice in (f"{asked}-mixed", asked) if choice in field.choices), "")
        if name.startswith("--") and meant and field.option in options:
            behind = re.search(rf"{re.escape(name)}[ =](\d+)\b", message)
            has_rank = behind is not None and f"{name}-rank" in options
            return f"{field.option} {meant}" + (f" {name}-rank {behind[1]}" if behind and has_rank else "")
    return ""


def near_option(name: str, options: Sequence[str]) -> str:
    """The option that a name is a misspelling or the beginning of; empty where none is near.

    >>> near_option("--zero", ("--zero-stage", "--gpus")), near_option("--bogus", ("--zero-stage", "--gpus"))
    ('--zero-stage', '')
    """
    if not name.startswith("--"):
        return ""
    bare = {option.removeprefix("--"): option for option in options if option.startswith("--")}
    return bare.get(_near(name.removeprefix("--").lower(), list(bare)), "")


def chosen_instead(message: str, choices: Sequence[str]) -> str:
    """The one choice that a refused value is the beginning or a misspelling of; empty where none is near.

    >>> chosen_instead("argument --precision: invalid choice: 'fp8'", ("bf16", "bf16-mixed", "fp8-mixed"))
    'fp8-mixed'
    >>> chosen_instead("argument --engine: invalid choice: 'megatorn'", ("native", "megatron"))
    'megatron'
    >>> chosen_instead("argument --schedule: 'inter' is not one of gpipe, interleaved", ())
    'interleaved'
    """
    refused = re.search(r"invalid choice: '([^']+)'", message)
    listed = re.search(r"'([^']+)' is not one of (.+)$", message)
    if refused:
        return _near(refused[1].lower(), choices)
    return _near(listed[1].lower(), listed[2].split(", ")) if listed else ""


def _near(text: str, names: Sequence[str]) -> str:
    """The one name that begins with a text; without, the nearest spelling that most of the letters agree with."""
    from difflib import get_close_matches

    begun = [name for name in names if text and name.startswith(text)]
    if len(begun) == 1:
        return begun[0]
    return next(iter(get_close_matches(text, names, n=1, cutoff=NEAR_RATIO)), "")
