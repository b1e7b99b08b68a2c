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
