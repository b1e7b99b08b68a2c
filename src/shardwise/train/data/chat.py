"""Conversations as tokens, by the tokenizer's own chat template, and which of these the assistant said.

transformers renders the template. A template with generation marks says itself which tokens are the assistant's. With
any other template, the conversation is also rendered up to the start of each turn of the assistant and up to its end:
the text that only the longer one has was said in the turn, and a token that ends in that text belongs to the turn.

Many templates write a turn otherwise once others follow (without its reasoning, or closed by another token), or open
the assistant's turn with a thought that the turn does not have. There the conversation is rendered once more with a
mark in the place of what the assistant said, which shows where this begins and ends.
"""

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import DataError
from shardwise.train.data.examples import Chat, Turn
from shardwise.train.data.tokenizer import Encoded, Tokenizer, targets_of_spans

__all__ = ["ChatTemplate", "stop_tokens", "template_digest"]

GENERATION_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
BY_MARKS = "the template's generation marks"
BY_PREFIXES = "prefixes of the rendered template"
BY_CONTENT = "their content where the template rewrites turns that others follow, such as by leaving out their thoughts"
MARK = "@@said@@"
"""A text that no template writes by itself; it stands for a turn's content while the template is rendered."""
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
        self._require_tools(chat)
        encoded, by = (self._by_marks(chat), BY_MARKS) if self._has_marks(chat) else self._by_prefixes(chat)
        if not encoded.is_target.any():
            raise DataError(
                f"{chat.place}: the chat template writes nothing of what the assistant says",
                code="data-messages",
                fix="give the assistant's turns content, or another template",
            )
        return encoded, by

    def closes(self, encoded: Encoded) -> bool:
        """Whether a special token is among those that are learned, so that a model can stop."""
        return bool(np.isin(encoded.tokens[encoded.is_target], self._tokenizer.all_special_ids).any())

    def closing_token(self) -> int | None:
        """The first special token that the template writes after what the assistant says."""
        turns = ({"role": "user", "content": MARK}, {"role": "assistant", "content": MARK})
        text = self._applied(Chat(place="the chat template", messages=turns), turns, tokenize=False)
        _, _, closing = text.rpartition(MARK)
        special = {*self._tokenizer.all_special_ids, *self._tokenizer.added_tokens_decoder}
        numbers = self._tokenizer(closing, add_special_tokens=False)["input_ids"]
        return next((int(number) for number in numbers if number in special), None)

    def prompt(self, messages: list[dict[str, Any]], *, place: str) -> tuple[str, tuple[int, ...]]:
        """Messages as the text and the tokens after which the assistant speaks."""
        chat = Chat(place=place, messages=tuple(messages))
        text = self._applied(chat, chat.messages, tokenize=False, add_generation_prompt=True)
        return text, tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _require_tools(self, chat: Chat) -> None:
        """Return when the template writes the tools of a conversation.

        Raises:
            DataError: it does not, as templates do that know no tools.
        """
        names = [str(tool.get("function", tool).get("name", "")) for tool in chat.tools]
        if names and not all(name in self._applied(chat, chat.messages, tokenize=False) for name in names):
            raise DataError(
                f"{chat.place}: the chat template does not write the tools",
                code="data-messages",
                fix="give a template that writes tools (chat_template.jinja beside tokenizer.json), or drop 'tools'",
            )

    def _has_marks(self, chat: Chat) -> bool:
        """Whether the template says by itself which tokens of a conversation the assistant generates."""
        tools = list(chat.tools) or None
        says_all = not chat.num_given and all(turn.get("weight", 1) for turn in chat.messages)
        return bool(says_all and GENERATION_MARK.search(self._tokenizer.get_chat_template(tools=tools)))

    def _by_marks(self, chat: Chat) -> Encoded:
        found = self._applied(chat, chat.messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        tokens = np.asarray(found["input_ids"], dtype=np.int64)
        return Encoded(tokens=tokens, is_target=np.asarray(found["assistant_masks"], dtype=bool))

    def _by_prefixes(self, chat: Chat) -> tuple[Encoded, str]:
        text, by, spans = self._applied(chat, chat.messages, tokenize=False), BY_PREFIXES, []
        for index in range(chat.num_given, len(chat.messages)):
            turn = chat.messages[index]
            if turn["role"] == "assistant" and turn.get("weight", 1):
                span = self._span_of_prefixes(chat, index, text)
                if span is None:
                    span, by = self._span_of_content(chat, index, text), BY_CONTENT
                _require_written(chat, index, text[slice(*span)])
                spans.append(span)
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return Encoded(
            tokens=np.asarray(found["input_ids"], dtype=np.int64),
            is_target=targets_of_spans(found["offset_mapping"], spans),
        ), by

    def _span_of_prefixes(self, chat: Chat, index: int, text: str) -> tuple[int, int] | None:
        """Where a turn stands between the conversation up to it and with it; nothing where these are no prefixes."""
        before = chat.messages[:index]
        if not before:
            return None
        start = self._applied(chat, before, tokenize=False, add_generation_prompt=True)
        end = self._applied(chat, chat.messages[: index + 1], tokenize=False)
        return (len(start), len(end)) if text.startswith(start) and text.startswith(end) else None

    def _span_of_content(self, chat: Chat, index: int, text: str) -> tuple[int, int]:
        """Where a turn stands by a mark in place of its content: what the assistant begins with, to what closes it."""
        before, turn, after = chat.messages[:index], chat.messages[index], chat.messages[index + 1 :]
        marked = {**turn, "content": MARK}
        alone = self._applied(chat, (*before, marked), tokenize=False)
        whole = self._applied(chat, (*before, marked, *after), tokenize=False)
        (_, has_mark, closing), (opening, _, following) = alone.partition(MARK), whole.partition(MARK)
        start, is_told = _num_common(text, opening), has_mark and text.endswith(following)
        if before:
            prompt = self._applied(chat, before, tokenize=False, add_generation_prompt=True)
            closed = self._applied(chat, before, tokenize=False)
            start = min(start, _num_common(text, prompt))
            is_told = is_told and start >= min(_num_common(prompt, closed), len(opening))
        if not is_told:
            raise _not_told(chat, index)
        return start, len(text) - len(following) + _num_common(closing, following)

    def _applied(self, chat: Chat, messages: tuple[Turn, ...], **options: Any) -> Any:
        """The messages in the tokenizer's chat template, as transformers applies it.

        Raises:
            DataError: the template refuses them.
        """
        tools = list(chat.tools) or None
        try:
            try:
                return self._tokenizer.apply_chat_template([*map(_with_objects, messages)], tools=tools, **options)
            except Exception:  # noqa: BLE001 - some templates write the arguments of calls as they stand
                return self._tokenizer.apply_chat_template(list(messages), tools=tools, **options)
        except Exception as error:  # jinja and templates raise what they like
            raise DataError(
                f"{chat.place}: the chat template refuses the messages: {str(error).splitlines()[0] or error!r}",
                code="data-messages",
                fix="write the turns as the template wants them, or drop the row",
            ) from error


def stop_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens at which a model that learned with a tokenizer stops: the end of a text, and what closes an answer."""
    closing = None
    with suppress(DataError, OSError, ValueError):  # no chat template, or one that wants other conversations
        closing = ChatTemplate(tokenizer.path).closing_token()
    return tuple(dict.fromkeys(token for token in (tokenizer.end_token, closing) if token is not None))


def _with_objects(turn: Turn) -> Turn:
    """A turn whose tool calls have arguments as objects, as templates want them; OpenAI writes a text of JSON."""
    calls = turn.get("tool_calls")
    return {**turn, "tool_calls": [_with_object(call) for call in calls]} if isinstance(calls, list) else turn


def _with_object(call: Any) -> Any:
    function = call.get("function", call) if isinstance(call, dict) else {}
    arguments = function.get("arguments")
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else None
    except ValueError:
        read = None
    if not isinstance(read, dict):
        return call
    told = {**function, "arguments": read}
    return {**call, "function": told} if "function" in call else told


def _require_written(chat: Chat, index: int, written: str) -> None:
    """Return when a turn's last line and the names of its calls are in what the template writes of it.

    Raises:
        DataError: some are not, so that an empty answer would be learned.
    """
    turn = chat.messages[index]
    calls = [call.get("function", call).get("name") for call in turn.get("tool_calls") or () if isinstance(call, dict)]
    wanted = [*(turn.get("content") or "").strip().splitlines()[-1:], *calls]
    if lost := next((text for text in wanted if str(text).strip() not in written), None):
        raise DataError(
            f"{chat.place}: the chat template does not write '{lost[:40]}' of message {index + 1}, which the assistant"
            f" {'calls' if lost in calls else 'says'}",
            code="data-messages",
            fix="give a template that writes it (chat_template.jinja beside tokenizer.json), or drop the row",
        )


def _num_common(one: str, other: str) -> int:
    """Characters with which both texts begin."""
    length = min(len(one), len(other))
    return next((place for place in range(length) if one[place] != other[place]), length)


def _not_told(chat: Chat, index: int) -> DataError:
    return DataError(
        f"{chat.place}: the chat template writes message {index + 1} otherwise where others follow, so which tokens are"
        " the assistant's cannot be told",
        code="data-messages",
        fix="give a template with {% generation %} marks, or end the conversation at that message",
    )


def _opened(tokenizer: Path | None) -> Any:
    """The tokenizer as transformers reads it, which has a chat template."""
    if tokenizer is None:
        raise _no_template("bytes have no chat template", place="that of --tokenizer")
    try:
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - seconds of imports, for conversations alone
    except ImportError as error:
        raise DataError(
            "rendering a chat template needs transformers, which is not installed",
            code="data-extra",
            fix="pip install 'shardwise[train,data]'",
        ) from error
    # The file is named, as another one may lie in its folder under the usual name.
    folder, file = str(tokenizer.parent), str(tokenizer)
    opened = PreTrainedTokenizerFast.from_pretrained(folder, tokenizer_file=file, local_files_only=True)
    if opened.chat_template is None:
        raise _no_template(f"{tokenizer.parent} has no chat template", place=tokenizer.parent)
    return opened


def _no_template(what: str, *, place: object) -> DataError:
    return DataError(
        f"the data hold conversations, and {what}",
        code="data-template",
        fix=f"add --tokenizer FOLDER of the model's chat version, or put its chat_template.jinja into {place}; to learn"
        " without a template, write each row with the keys prompt and completion",
    )
