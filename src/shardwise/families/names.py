"""What people call a model of the catalogue: repositories of others, tuned and quantised versions, other separators."""

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache

from shardwise.families.catalogue import catalogue_name, names_by_spelling

VERSION = re.compile(
    r"-(instruct|chat|it|base|pt|hf|thinking|reasoning|preview|sft|dpo|rlhf|qat|\d{4}"
    r"|bf16|fp16|fp8|nvfp4|mxfp4|int4|int8|4bit|8bit|[2-8]bits?|bnb|gguf|awq|gptq|mlx|unsloth|dynamic"
    r"|(quantized\.)?w\d+a\d+|i?q\d(\.\d)?(-[kmslx]+)*)(?=-v\d|$)"
)
"""Endings of a name that say how a model was tuned or stored, and not how it is built."""
MAKERS_PREFIX = "meta-"
"""Meta's repositories write ``Meta-Llama-3.1-8B`` and ``Llama-3.1-8B`` for one model."""
FILE_ENDING = ".gguf"
BETWEEN_DIGITS, SEPARATORS = re.compile(r"(?<![\d.])(\d)_(?=\d)"), re.compile(r"[\s_:-]+|\.(?=i?q\d)")
BEFORE_NUMBER = re.compile(r"(?<=[a-z])-(?=\d)")
PARTS = re.compile(r"[a-z]+|\d[\d.x]*[a-z]*")
"""Words, and numbers with the letters behind them, such as ``8b`` and ``8x7b``."""
TYPO_RATIO = 0.8
MOST_NAMES = 4


@lru_cache(maxsize=512)
def known_name(text: str) -> tuple[str, str] | None:
    """The name that a text asks for, and the entry of the catalogue that it means; ``None`` where it means none or two.

    As little as possible is left out of the text to find the entry. The name is the entry's, unless another model is
    asked for that is built like it.

    >>> known_name("unsloth/Qwen3-8B"), known_name("Qwen/Qwen2.5-1.5B-Instruct"), known_name("gemma-9-2b")
    (('qwen3-8b', 'qwen3-8b'), ('qwen2.5-1.5b', 'qwen2-1.5b'), None)
    """
    shorter = {_form(name): name for name in _shorter(text)}
    entry = catalogue_name(text) or next((_by_form()[form] for form in shorter if form in _by_form()), None)
    if entry is None or _form(entry) in shorter:
        return None if entry is None else (entry, entry)
    return [text.strip().casefold(), *(shorter[form] for form in shorter if _by_form().get(form) == entry)][-1], entry


def close_names(text: str) -> list[str]:
    """Names of the families that a text names: those that go on where it ends, of its size, and with its other words.

    >>> close_names("llama3")[:2], close_names("lama-3.1-9b")[0], close_names("vicuna-7b")
    (['llama-3-8b', 'llama-3-70b'], 'llama-3.1-8b', [])
    """
    form = _form([*_shorter(text)][-1])
    words = PARTS.findall(form)
    families = {PARTS.findall(name)[0]: None for name in names_by_spelling().values()}
    typed = {near for word in words for near in get_close_matches(word, families, n=1, cutoff=TYPO_RATIO)}
    found = []
    for name in sorted(set(names_by_spelling().values()), key=lambda name: (len(name), name)):
        has = PARTS.findall(_form(name))
        if has[0] in typed:
            ratio = SequenceMatcher(None, form, _form(name)).ratio()
            found.append((not _form(name).startswith(f"{form}-"), -len({*words} & {*has}), -ratio, name))
    return [name for *_, name in sorted(found, key=lambda one: one[:-1])][:MOST_NAMES]


def _shorter(text: str) -> Iterator[str]:
    """The name without its owner, and then with one ending less at a time."""
    name = text.strip().casefold().rpartition("/")[2].removesuffix(FILE_ENDING)
    name = SEPARATORS.sub("-", BETWEEN_DIGITS.sub(r"\1.", name))
    yield name
    while VERSION.search(name):
        name = VERSION.sub("", name, count=1)
        yield name
    if name.startswith(MAKERS_PREFIX):
        yield name.removeprefix(MAKERS_PREFIX)


def _form(name: str) -> str:
    """A name as it is compared: no separator stands between a word and a number."""
    return BEFORE_NUMBER.sub("", name)


@lru_cache(maxsize=1)
def _by_form() -> Mapping[str, str]:
    """The catalogue's name by the form of each of its spellings, shorter ones after whole ones.

    A form that two models share means neither of them; no ending of the catalogue's own name is left out.
    """
    found: dict[str, str | None] = {}
    for is_whole in (True, False):
        forms: dict[str, set[str]] = {}
        for spelling, name in names_by_spelling().items():
            for shorter in _shorter(spelling):
                forms.setdefault(_form(shorter), set()).add(name)
                if is_whole or _form(shorter) == _form(name):
                    break
        for form, names in forms.items():
            found.setdefault(form, names.pop() if len(names) == 1 else None)
    return {form: name for form, name in found.items() if name is not None}
