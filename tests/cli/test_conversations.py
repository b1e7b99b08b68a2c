"""Twenty conversations with an assistant: its calls are replayed, and every number it says stands in an answer."""

import os
from pathlib import Path

import pytest

from cli.conversation import Conversation
from cli.mcp_session import session

__all__ = ["session"]
CONVERSATIONS = sorted((Path(__file__).parent / "conversations").glob("*.toml"))


def test_there_are_twenty_conversations():
    assert len(CONVERSATIONS) >= 20


@pytest.mark.runs
@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
def test_what_the_assistant_says_stands_in_the_answers(path, session):
    """With UPDATE_GOLDEN=1 the numbers in the file become those of the answers."""
    conversation, written = Conversation.read(path), path.read_text(encoding="utf-8")
    for text, faults in conversation.replay(session.call):
        if os.environ.get("UPDATE_GOLDEN"):
            written = written.replace(text, conversation.updated(text))
        else:
            assert faults == []
    path.write_text(written, encoding="utf-8")


def test_an_invented_number_is_found():
    conversation = Conversation(turns=[], answers={"predict": {"step_s": 6.309, "peak": 2**31}}, said="on 8 GPUs")
    assert conversation.faults("[6.31 s](predict.step_s), [2.0 GiB](predict.peak) on 8 GPUs") == []
    assert conversation.faults("[6.30 s](predict.step_s)") == ["6.30 s is 6.31 s"]
    assert conversation.faults("about 40 % faster on 8 GPUs") == ["40 stands nowhere"]
