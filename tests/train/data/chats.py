"""Conversations, and tokenizers with chat templates that tests make."""

import json

from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel

MARKED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<end>"
    "{% endgeneration %}{% else %}{{ m.content }}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
UNMARKED = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
WITH_TOOLS = "{% if tools %}[{% for t in tools %}{{ t.function.name }}{% endfor %}]{% endif %}" + UNMARKED
FORGETFUL = UNMARKED.replace("{{ m.content }}<end>{% else", "{{ m.content if loop.last else '' }}<end>{% else")
WITH_CALLS = WITH_TOOLS.replace(
    "{{ m.content }}<end>{% else",
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.content }}<end>{% else",
)
NO_OLD_THOUGHTS = UNMARKED.replace(
    "{{ m.content }}<end>{% else", "{{ '(hm)' + m.content if loop.last else m.content.split(')')[-1] }}<end>{% else"
)
"""The last turn begins with a thought, be it an empty one; earlier turns have none (as Qwen3 writes them)."""
OPENS_THOUGHT = UNMARKED.replace("<assistant>{% endif %}", "<assistant>(think{% endif %}")
"""The assistant is asked to begin with a thought, which no turn has (as DeepSeek-R1 asks)."""
CLOSES_ALL = UNMARKED.replace("{% if add", "{% if not add_generation_prompt %}<system>{% endif %}{% if add")
"""One more token closes the whole conversation (as in Phi-3)."""
TURNS = [
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": "so."},
    {"role": "user", "content": "and?"},
    {"role": "assistant", "content": "yes"},
]


def chat_folder(folder, template):
    """A tokenizer of bytes with a few special tokens, and a chat template beside it."""
    folder.mkdir(exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<end>", "<user>", "<assistant>", "<system>"]
    backend = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate([*alphabet, *special])}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), ByteLevel()
    backend.add_special_tokens(special)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def write_rows(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
