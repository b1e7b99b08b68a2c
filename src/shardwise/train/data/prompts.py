"""Prompts that a model continues while it is trained."""

from pathlib import Path
from typing import Any, NamedTuple, cast

from shardwise.errors import DataError
from shardwise.train.data.documents import Row, read_rows
from shardwise.train.data.encoding import Encoder
from shardwise.train.data.examples import TEXT_FIELD
from shardwise.train.data.tokenizer import Tokenizer

__all__ = ["Prompt", "read_prompts"]

NAMES = ("prompt", "messages", "text")


class Prompt(NamedTuple):
    """A text that the model continues at a validation, and its token ids."""

    text: str
    tokens: tuple[int, ...]


def read_prompts(path: Path, *, tokenizer: Tokenizer, seq_len: int) -> tuple[Prompt, ...]:
    """The prompts of a file: every line of a text, or ``prompt``, ``messages`` or ``text`` of every row.

    Raises:
        DataError: a row has none of these, or leaves no room in ``seq_len`` for a token; or there is no row.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}", code="data-not-found", fix="name a file of prompts with --generate")
    if path.name.lower().removesuffix(".gz").endswith((".txt", ".md")):
        lines = "".join(str(row.fields[TEXT_FIELD]) for row in read_rows(path, field=TEXT_FIELD)).splitlines()
        rows = [
            Row(place=f"{path}, line {number}", fields={"prompt": line})
            for number, line in enumerate(lines, start=1)
            if line
        ]
    else:
        rows = list(read_rows(path))
    encoder = Encoder(tokenizer)
    prompts = tuple(_prompt(row, tokenizer, encoder) for row in rows)
    if not prompts:
        raise DataError(f"{path} holds no prompt", code="data-too-short", fix="write a prompt on each line")
    for row, prompt in zip(rows, prompts, strict=True):
        if not 0 < len(prompt.tokens) < seq_len:
            raise DataError(
                f"{row.place}: the prompt has {len(prompt.tokens):,} tokens, and a sequence of the run {seq_len:,}",
                code="data-prompt",
                fix="give prompts of at least one token that leave room for an answer",
            )
    return prompts


def _prompt(row: Row, tokenizer: Tokenizer, encoder: Encoder) -> Prompt:
    value = next((row.fields[name] for name in NAMES if row.fields.get(name) is not None), None)
    if isinstance(value, str):
        encoded = tokenizer.encode([value])[0].tolist()
        is_closed = bool(encoded) and encoded[-1] == tokenizer.end_token
        return Prompt(text=value, tokens=tuple(encoded[:-1] if is_closed else encoded))
    if not isinstance(value, list):
        raise DataError(
            f"{row.place}: there is no text under 'prompt', and no messages",
            code="data-field",
            fix='write {"prompt": "..."} or {"messages": [...]} on each line',
        )
    text, tokens = encoder.template.prompt(cast("list[dict[str, Any]]", value), place=row.place)
    return Prompt(text=text, tokens=tokens)
