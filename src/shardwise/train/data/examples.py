"""Rows as a run learns from them: a text, a prompt with its completion, or a conversation."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from shardwise.errors import DataError
from shardwise.train.data.documents import Row

__all__ = ["TEXT_FIELD", "Chat", "Completion", "Example", "Text", "example_of", "unread_keys"]

TEXT_FIELD = "text"
"""The key of a text where the user names none."""
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
"""Roles as conversations of ShareGPT name them, and as chat templates do."""
ASKS = ("instruction", "question", "query", "problem", "prompt", "context", "input")
ANSWERS = ("output", "response", "answer", "chosen", "solution")
"""Keys of public data sets under which the user asks and the assistant answers, in the order in which they are read."""
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

    @property
    def is_empty(self) -> bool:
        """Whether the assistant neither says nor calls anything in what is learned."""
        turns = [turn for turn in self.messages[self.num_given :] if turn["role"] == "assistant"]
        return not any(str(turn.get("content") or "").strip() or turn.get("tool_calls") for turn in turns)


Example: TypeAlias = Text | Completion | Chat


def example_of(row: Row, *, field: str) -> Example:
    """The text, completion or chat that a row of a data set holds under ``field``.

    Several names with commas are what the user asks, then what the assistant answers. A row that has none of
    the names, or of which nobody named one, may hold ``messages``, or ``prompt`` and ``completion``.

    Raises:
        DataError: it holds nothing of the kind; file and line are named.
    """
    value = row.fields.get(field)
    if isinstance(value, str):
        return Text(place=row.place, text=value)
    if _is_conversation(value):
        return _chat(row, field, _turns(row, field))
    if "," in field and {*field.split(",")} & {*row.fields}:
        return _question(row, field.split(","))
    is_absent = field == TEXT_FIELD or not {field, *field.split(",")} & {*row.fields}
    if is_absent and row.fields.get("messages") is not None:
        return _chat(row, "messages", _turns(row, "messages"))
    if is_absent and any(row.fields.get(name) is not None for name in ("prompt", "completion")):
        return _completion(row)
    raise _no_text(row, field)


def unread_keys(row: Row, example: Example, *, field: str) -> tuple[str, ...]:
    """Keys of a row that are not read though they hold something."""
    read = {field, *field.split(",")}
    if not read & {*row.fields}:
        read = {"messages", "tools"} if row.fields.get("messages") is not None else {"prompt", "completion", "tools"}
    elif isinstance(example, Chat):
        read.add("tools")
    return tuple(name for name, value in row.fields.items() if name not in read and value not in (None, "", []))


def _question(row: Row, names: list[str]) -> Chat:
    """A chat: the user asks the texts of all names but the last, the assistant answers the last one's."""
    texts = ["" if (value := row.fields.get(name)) is None else value for name in names]
    if not (row.fields.keys() >= {*names} and all(isinstance(text, str) for text in texts)):
        raise _no_text(row, ",".join(names))
    *asked, answer = (str(text) for text in texts)
    question = "\n\n".join(filter(None, asked))
    turns = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    return Chat(place=row.place, messages=turns, tools=_tools(row))


def _completion(row: Row) -> Example:
    prompt, completion = row.fields.get("prompt"), row.fields.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return Completion(place=row.place, prompt=prompt, completion=completion)
    if _is_conversation(prompt) and _is_conversation(completion):
        given = _turns(row, "prompt")
        return _chat(row, "completion", (*given, *_turns(row, "completion")), num_given=len(given))
    names = {name: _kind(row.fields.get(name)) for name in ("prompt", "completion")}
    if fix := _named_fix(row):
        raise DataError(f"{row.place}: there is no 'completion' beside 'prompt'", code="data-field", fix=fix)
    raise DataError(
        f"{row.place}: 'prompt' is {names['prompt']} and 'completion' is {names['completion']}",
        code="data-field",
        fix="write both as texts, or both as lists of messages",
    )


def _chat(row: Row, name: str, turns: tuple[Turn, ...], *, num_given: int = 0) -> Chat:
    if not any(turn["role"] == "assistant" for turn in turns[num_given:]):
        roles = ", ".join(dict.fromkeys(str(turn["role"]) for turn in turns[num_given:]))
        raise DataError(
            f"{row.place}: '{name}' has no turn of the assistant, so there is nothing to learn; its roles are {roles}",
            code="data-messages",
            fix="drop the row, or write the role of what shall be learned as assistant",
        )
    return Chat(place=row.place, messages=turns, num_given=num_given, tools=_tools(row))


def _turns(row: Row, name: str) -> tuple[Turn, ...]:
    """The messages under a key, each with a role; columns of Parquet hold nulls where a message has no such key."""
    value = row.fields[name]
    if not _is_conversation(value):
        kind = _kind(value) if value else "empty"
        raise DataError(
            f"{row.place}: '{name}' is {kind}, not a list of messages",
            code="data-messages",
            fix='write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]',
        )
    turns = tuple(_turn(turn) for turn in cast("list[dict[str, Any]]", value))
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
        if not isinstance(turn.get("content"), str | None) or turn.get("weight", 1) not in (0, 1):
            raise DataError(
                f"{row.place}: message {number} of '{name}' has a content that is no text, or a weight besides 0 and 1",
                code="data-messages",
                fix="write the content as a text, and weight 0 for a turn of the assistant that is not learned",
            )
        if (calls := turn.get("tool_calls")) and not _are_functions(calls):
            raise DataError(
                f"{row.place}: message {number} of '{name}' has tool_calls that are no list of calls of functions",
                code="data-messages",
                fix='write tool_calls as [{"type": "function", "function": {"name": "clock", "arguments": {}}}]',
            )
    return turns


def _turn(message: dict[str, Any]) -> Turn:
    """A message as chat templates want it: role and content, parts of text as one text, no nulls.

    ``from`` and ``value``, as ShareGPT names them, are role and content.
    """
    turn = _without_nulls(message)
    if "role" not in turn and isinstance(turn.get("from"), str):
        role = turn.pop("from")
        turn = {"role": SHAREGPT_ROLES.get(role, role), "content": turn.pop("value", ""), **turn}
    content = turn.get("content")
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        turn["content"] = "".join(part if isinstance(part, str) else part["text"] for part in content)
    return cast("Turn", turn)


def _is_text_part(part: object) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("text"), str))


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
    tools = _without_nulls(value)
    if not _are_functions(tools):
        raise DataError(
            f"{row.place}: 'tools' is no list of tools that are functions",
            code="data-messages",
            fix='write tools as [{"type": "function", "function": {"name": "clock", "parameters": {}}}], or drop them',
        )
    return tuple(tools)


def _are_functions(value: object) -> bool:
    """Whether a value is a list of tools or calls: objects, as is what they hold under ``function``, whose names are
    texts."""
    if not _is_conversation(value):
        return False
    functions = [one.get("function", one) for one in cast("list[dict[str, Any]]", value)]
    return all(isinstance(one, dict) and isinstance(one.get("name", ""), str) for one in functions)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _is_conversation(value: object) -> bool:
    """Whether a value is a list of objects, as turns and tools are."""
    return isinstance(value, list) and len(value) > 0 and all(isinstance(turn, dict) for turn in value)


def _no_text(row: Row, field: str) -> DataError:
    """The refusal of a row without text; it says what the row has under the field, or has instead of it."""
    value, fix = row.fields.get(field), _named_fix(row)
    if value is not None and row.is_of_table:
        return DataError(
            f"{row.place}: column '{field}' holds {type(value).__name__}, not text",
            code="data-field",
            fix="name the column that holds the text with --data-field",
        )
    if field in row.fields:
        what = f"there is no text in column '{field}'" if row.is_of_table else f"'{field}' is {_kind(value)}, not text"
        return DataError(
            f"{row.place}: {what}",
            code="data-field",
            fix=fix or "drop the rows without text, or name what holds it with --data-field",
        )
    keys = ", ".join(sorted(row.fields)) or "no keys at all"
    return DataError(
        f"{row.place}: there is no text under '{field}'; the {'row' if row.is_of_table else 'line'} has {keys}",
        code="data-field",
        fix=fix or "name what holds the text with --data-field, or what holds question and answer: --data-field Q,A",
    )


def _named_fix(row: Row) -> str:
    """The option that reads a row of a shape that many public data sets have; nothing for other rows."""
    held = [name for name, value in row.fields.items() if isinstance(value, str)]
    conversation = next((name for name, value in row.fields.items() if _is_conversation(value)), None)
    if conversation is None:
        answer = next((name for name in ANSWERS if name in held), None)
        asked = [name for name in ASKS if name in held]
        conversation = ",".join([*asked, answer]) if answer and asked else None
    is_pair = {"chosen", "rejected"} <= {*row.fields}
    is_read = f"read it with --data-field {conversation}" if conversation else ""
    return f"{is_read}, which learns the chosen answers alone, as `train` knows no preferences" if is_pair else is_read


def _kind(value: object) -> str:
    return JSON_NAMES.get(type(value), "something else")


JSON_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}
