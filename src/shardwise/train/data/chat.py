"""Conversations as tokens, by the tokenizer's own chat template, and which of these the assistant said.

transformers renders the template. A template with generation marks says itself which tokens are the assistant's. With
any other template, the conversation is also rendered up to the start of each turn of the assistant and up to its end:
the text that only the longer one has was said in the turn, and a token that ends in that text belongs to the turn.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import DataError
from shardwise.train.data.examples import Chat, Turn
from shardwise.train.data.tokenizer import Encoded, targets_of_spans

__all__ = ["ChatTemplate", "template_digest"]

GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
BY_MARKS = "the template's generation marks"
BY_PREFIXES = "prefixes of the rendered template"
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json", "special_tokens_map.json")


def template_digest(tokenizer: Path | None) -> str:
    """Changes with the files from which a tokenizer's chat template is read."""
    files = [tokenizer.with_name(name) for name in TEMPLATE_FILES] if tokenizer is not None else []
    return hashlib.sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()


class ChatTemplate:
    """The chat template beside a ``tokenizer.json``."""

    def __init__(self, tokenizer: Path | None) -> None:
        self._tokenizer: Any = _opened(tokenizer)

    def encode(self, chat: Chat) -> tuple[Encoded, str]:
        """Tokens of a conversation with those that the assistant said, and how these were told from the others."""
        has_marks = self._has_marks(chat)
        encoded = self._by_marks(chat) if has_marks else self._by_prefixes(chat)
        if not encoded.is_target.any():
            raise DataError(
                f"{chat.place}: the chat template writes nothing of what the assistant says",
                code="data-messages",
                fix="give the assistant's turns content, or another template",
            )
        return encoded, BY_MARKS if has_marks else BY_PREFIXES

    def prompt(self, messages: list[dict[str, Any]], *, place: str) -> tuple[str, tuple[int, ...]]:
        """Messages as the text and the tokens after which the assistant speaks."""
        chat = Chat(place=place, messages=tuple(messages))
        text = self._applied(chat, chat.messages, tokenize=False, add_generation_prompt=True)
        return text, tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _has_marks(self, chat: Chat) -> bool:
        """Whether the template says by itself which tokens of a conversation the assistant generates."""
        tools = list(chat.tools) or None
        return bool(not chat.num_given and GENERATION_MARK.search(self._tokenizer.get_chat_template(tools=tools)))

    def _by_marks(self, chat: Chat) -> Encoded:
        found = self._applied(chat, chat.messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        tokens = np.asarray(found["input_ids"], dtype=np.int64)
        return Encoded(tokens=tokens, is_target=np.asarray(found["assistant_masks"], dtype=bool))

    def _by_prefixes(self, chat: Chat) -> Encoded:
        text = self._applied(chat, chat.messages, tokenize=False)
        spans = []
        for index in range(chat.num_given, len(chat.messages)):
            if chat.messages[index]["role"] == "assistant":
                before = chat.messages[:index]
                start = self._applied(chat, before, tokenize=False, add_generation_prompt=True) if before else ""
                end = self._applied(chat, chat.messages[: index + 1], tokenize=False)
                if not (text.startswith(start) and text.startswith(end)):
                    raise _not_a_prefix(chat, index)
                spans.append((len(start), len(end)))
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return Encoded(
            tokens=np.asarray(found["input_ids"], dtype=np.int64),
            is_target=targets_of_spans(found["offset_mapping"], spans),
        )

    def _applied(self, chat: Chat, messages: tuple[Turn, ...], **options: Any) -> Any:
        """The messages in the tokenizer's chat template, as transformers applies it.

        Raises:
            DataError: the template refuses them.
        """
        try:
            return self._tokenizer.apply_chat_template(list(messages), tools=list(chat.tools) or None, **options)
        except Exception as error:  # jinja and templates raise what they like
            raise DataError(
                f"{chat.place}: the chat template refuses the messages: {str(error).splitlines()[0] or error!r}",
                code="data-messages",
                fix="write the turns as the template wants them, or drop the row",
            ) from error


def _not_a_prefix(chat: Chat, index: int) -> DataError:
    return DataError(
        f"{chat.place}: the chat template writes message {index + 1} otherwise where others follow, so which tokens are"
        " the assistant's cannot be told",
        code="data-messages",
        fix="give a template with {% generation %} marks, or end the conversation at that message",
    )


def _opened(tokenizer: Path | None) -> Any:
    """The tokenizer as transformers reads it, which has a chat template."""
    if tokenizer is None:
        raise _no_template("bytes have no chat template")
    try:
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - seconds of imports, for conversations alone
    except ImportError as error:
        raise DataError(
            "rendering a chat template needs transformers, which is not installed",
            code="data-extra",
            fix="pip install 'shardwise[train,data]'",
        ) from error
    opened = PreTrainedTokenizerFast.from_pretrained(str(tokenizer.parent), local_files_only=True)
    if opened.chat_template is None:
        raise _no_template(f"{tokenizer.parent} has no chat template")
    return opened


def _no_template(what: str) -> DataError:
    return DataError(
        f"the data hold conversations, and {what}",
        code="data-template",
        fix="give the folder of a chat model with --tokenizer, or put its chat_template.jinja beside tokenizer.json",
    )
