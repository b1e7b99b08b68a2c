"""Examples of every kind as tokens, with those that are learned."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from shardwise.train.data.chat import ChatTemplate
from shardwise.train.data.examples import Chat, Completion, Example, Text
from shardwise.train.data.tokenizer import Encoded, Tokenizer

__all__ = ["Encoder"]


class Encoder:
    """A tokenizer with its chat template, which is read when the first conversation comes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.targets_by: set[str] = set()
        """How the assistant's tokens were told from the others so far."""
        self.num_empty_answers = 0
        """Rows so far whose completion, or all of whose assistant's turns, say nothing."""
        self.num_open_answers = 0
        """Conversations so far in which no special token closes what the assistant says."""

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template of the tokenizer."""
        return ChatTemplate(self._tokenizer.path)

    def encode(self, examples: Sequence[Example]) -> list[Encoded]:
        """Tokens of the examples in their order; texts are tokenised together."""
        texts = [example.text for example in examples if isinstance(example, Text)]
        tokens = iter(self._tokenizer.encode(texts) if texts else ())
        encoded = []
        for example in examples:
            if isinstance(example, Text):
                whole = next(tokens)
                encoded.append(Encoded(tokens=whole, is_target=np.ones(len(whole), dtype=np.bool_)))
            elif isinstance(example, Completion):
                self.num_empty_answers += not example.completion.strip()
                encoded.append(self._tokenizer.encode_completion(example.prompt, example.completion))
            else:
                encoded.append(self._chat(example))
        return encoded

    def _chat(self, chat: Chat) -> Encoded:
        encoded, targets_by = self.template.encode(chat)
        self.targets_by.add(targets_by)
        self.num_empty_answers += chat.is_empty
        self.num_open_answers += not self.template.closes(encoded)
        return encoded
