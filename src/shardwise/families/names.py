"""What people call a model of the catalogue: repositories of others, tuned and quantised versions of it."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache

from shardwise.families.catalogue import names_by_spelling

VERSION = re.compile(
    r"-(instruct|chat|it|base|pt|hf|thinking|reasoning|preview|sft|dpo|rlhf|\d{4}"
    r"|bf16|fp16|fp8|nvfp4|mxfp4|int4|int8|4bit|8bit|[2-8]bits?|bnb|gguf|awq|gptq|mlx|unsloth|dynamic)$"
)
"""Endings of a name that say how a model was tuned or stored, and not how it is built."""
MAKERS_PREFIX = "meta-"
"""Meta's repositories write ``Meta-Llama-3.1-8B`` and ``Llama-3.1-8B`` for one model."""
SEPARATORS = re.compile(r"[\s_-]")
SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?[mb])(?![\w])")


def plain_name(spelling: str) -> str:
    """A name in lower case without its owner and without the endings of tuned and quantised versions.

    >>> plain_name("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit")
    'llama-3.1-8b'
    """
    return list(_shorter(spelling))[-1]


def known_name(text: str) -> str | None:
    """The model of the catalogue that a name means, as little as possible of it left out; ``None`` where none is meant.

    >>> known_name("unsloth/Qwen3-8B"), known_name("Qwen3-30B-A3B-Instruct-2507"), known_name("gemma-9-2b")
    ('qwen3-8b', 'qwen3-30b-a3b', None)
    """
    tails = _by_tail()
    return next((tails[name] for name in _shorter(text) if name in tails), None)


def close_names(text: str) -> list[str]:
    """Names that go on where the text ends, shortest first; or else those of the same letters, and similar ones.

    >>> close_names("llama 3.1 8b")[0], close_names("olmo2-7b")[0], close_names("lama-3.1-8b")[0]
    ('llama-3.1-8b', 'olmo-2-7b', 'llama-3.1-8b')
    """
    spelling = text.strip().casefold()
    names = names_by_spelling()
    longer = sorted(
        (known for known in names if known.startswith(f"{spelling}-")), key=lambda known: (len(known), known)
    )
    if longer and spelling:
        return list(dict.fromkeys(names[known] for known in longer))[:4]
    plain = plain_name(spelling)
    known = sorted(set(names.values()))
    same_letters = [name for name in known if SEPARATORS.sub("", name) == SEPARATORS.sub("", plain)]
    near = [name for name in get_close_matches(plain, known, n=12, cutoff=0.5) if name not in same_letters]
    words = set(plain.split("-"))
    near.sort(key=lambda name: (not words & set(SIZE.findall(name)), len(set(name.split("-")) - words)))
    return [*same_letters, *near][:4]


def _shorter(text: str) -> Iterator[str]:
    """The name without its owner, and then with one ending less at a time."""
    name = text.strip().casefold().rpartition("/")[2]
    yield name
    while VERSION.search(name):
        name = VERSION.sub("", name)
        yield name
    if name.startswith(MAKERS_PREFIX):
        yield name.removeprefix(MAKERS_PREFIX)


@lru_cache(maxsize=1)
def _by_tail() -> Mapping[str, str]:
    """The catalogue's name by that of each repository without its owner, shorter forms after exact ones.

    A form that two models share means neither of them.
    """
    found: dict[str, str | None] = {}
    spellings = names_by_spelling()
    for shorten in (lambda name: [name.rpartition("/")[2]], _shorter):
        forms: dict[str, set[str]] = {}
        for spelling, name in spellings.items():
            for form in shorten(spelling):
                forms.setdefault(form, set()).add(name)
        for form, names in forms.items():
            found.setdefault(form, names.pop() if len(names) == 1 else None)
    return {form: name for form, name in found.items() if name is not None}
