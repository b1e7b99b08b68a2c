"""Rows as a run learns from them: a text, a prompt with its completion, or a conversation."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from shardwise.errors import DataError
from shardwise.train.data.documents import Row

__all__ = ["TEXT_FIELD", "Chat", "Completion", "Example", "Text", "example_of"]

TEXT_FIELD = "text"
"""The key of a text where the user names none."""
Turn: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A document, all of which is learned."""

    place: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A prompt, and the completion that is learned."""

    place: str
    prompt: str
    completion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Turns of a conversation, of which those of the assistant are learned."""

    place: str
    messages: tuple[Turn, ...]
    num_given: int = 0
    """Turns at the beginning that are the prompt: nothing of them is learned."""
    tools: tuple[Turn, ...] = ()


Example: TypeAlias = Text | Completion | Chat


def example_of(row: Row, *, field: str) -> Example:
    """The text, completion or chat that a row of a data set holds under ``field``.

    Where nobody named a field, also what it holds under ``messages``, or ``prompt`` and ``completion``.

    Raises:
        DataError: it holds nothing of the kind; file and line are named.
    """
    value = row.fields.get(field)
    if isinstance(value, str):
        return Text(place=row.place, text=value)
    if _is_conversation(value):
        return _chat(row, field, _turns(row, field))
    if field == TEXT_FIELD and row.fields.get("messages") is not None:
        return _chat(row, "messages", _turns(row, "messages"))
    if field == TEXT_FIELD and any(row.fields.get(name) is not None for name in ("prompt", "completion")):
        return _completion(row)
    raise _no_text(row, field)


def _completion(row: Row) -> Example:
    prompt, completion = row.fields.get("prompt"), row.fields.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return Completion(place=row.place, prompt=prompt, completion=completion)
    if _is_conversation(prompt) and _is_conversation(completion):
        given = _turns(row, "prompt")
        return _chat(row, "completion", (*given, *_turns(row, "completion")), num_given=len(given))
    names = {name: JSON_NAMES.get(type(row.fields.get(name)), "something else") for name in ("prompt", "completion")}
    raise DataError(
        f"{row.place}: 'prompt' is {names['prompt']} and 'completion' is {names['completion']}",
        code="data-field",
        fix="write both as texts, or both as lists of messages",
    )


def _chat(row: Row, name: str, turns: tuple[Turn, ...], *, num_given: int = 0) -> Chat:
    if not any(turn["role"] == "assistant" for turn in turns[num_given:]):
        raise DataError(
            f"{row.place}: '{name}' has no turn of the assistant, so there is nothing to learn",
            code="data-messages",
            fix="drop the row, or add what the assistant says",
        )
    return Chat(place=row.place, messages=turns, num_given=num_given, tools=_tools(row))


def _turns(row: Row, name: str) -> tuple[Turn, ...]:
    """The messages under a key, each with a role; columns of Parquet hold nulls where a message has no such key."""
    value = row.fields[name]
    if not _is_conversation(value):
        kind = JSON_NAMES.get(type(value), "something else") if value else "empty"
        raise DataError(
            f"{row.place}: '{name}' is {kind}, not a list of messages",
            code="data-messages",
            fix='write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]',
        )
    turns = tuple(_without_nulls(turn) for turn in cast("list[dict[str, Any]]", value))
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn.get("role"), str):
            raise DataError(
                f"{row.place}: message {number} of '{name}' has no role; it has {', '.join(turn) or 'no keys at all'}",
                code="data-messages",
                fix="write each message with role (system, user, assistant, tool) and content",
            )
        if other := next(filter(_is_no_text, _kinds(turn)), None):
            raise DataError(
                f"{row.place}: message {number} of '{name}' holds a part of type {other}, and only text is learned",
                code="data-messages",
                fix="drop the row, or keep only the text parts of the message",
            )
    return turns


def _kinds(turn: Turn) -> Iterator[str]:
    """The types of a message's parts, where its content is a list of them."""
    content = turn.get("content")
    for part in content if isinstance(content, list) else ():
        yield str(part.get("type")) if isinstance(part, dict) else "text"


def _is_no_text(kind: str) -> bool:
    return any(word in kind for word in ("image", "audio", "video"))


def _tools(row: Row) -> tuple[Turn, ...]:
    """The tools of a row, also where they are written as a text of JSON."""
    value = row.fields.get("tools")
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not value:
        return ()
    if not _is_conversation(value):
        raise DataError(
            f"{row.place}: 'tools' is no list of tools",
            code="data-messages",
            fix="write the tools as a list of JSON schemas, or leave the key out",
        )
    return tuple(_without_nulls(tool) for tool in cast("list[dict[str, Any]]", value))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _is_conversation(value: object) -> bool:
    """Whether a value is a list of objects, as turns and tools are."""
    return isinstance(value, list) and len(value) > 0 and all(isinstance(turn, dict) for turn in value)


def _no_text(row: Row, field: str) -> DataError:
    """The refusal of a row without text; it says what the row has under the field, or has instead of it."""
    value = row.fields.get(field)
    if row.is_of_table and value is None:
        return DataError(
            f"{row.place}: there is no text in column '{field}'",
            code="data-field",
            fix="drop the rows without text, or name the column that holds it with --data-field",
        )
    if row.is_of_table:
        return DataError(
            f"{row.place}: column '{field}' holds {type(value).__name__}, not text",
            code="data-field",
            fix="name the column that holds the text with --data-field",
        )
    if field in row.fields:
        return DataError(
            f"{row.place}: '{field}' is {JSON_NAMES.get(type(value), type(value).__name__)}, not text",
            code="data-field",
            fix="drop the lines without text, or name the key that holds it with --data-field",
        )
    chat = next((name for name, held in row.fields.items() if _is_conversation(held)), None)
    if chat is not None:
        return DataError(
            f"{row.place}: there is no text under '{field}', and '{chat}' is a conversation",
            code="data-field",
            fix=f"read it with --data-field {chat}",
        )
    keys = ", ".join(sorted(row.fields)) or "no keys at all"
    return DataError(
        f"{row.place}: there is no text under '{field}'; the line has {keys}",
        code="data-field",
        fix="name the key that holds the text with --data-field",
    )


JSON_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}
