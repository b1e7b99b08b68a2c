"""Written conversations with an assistant: what it calls, and that what it says stands in what the tools answered.

A number that the assistant says is a link to where it stands: ``[6.31 s](predict.time.step_s)``.
Any other number is one that the user, an argument or a text of an answer said before.
"""

import json
import re
import tomllib
from dataclasses import dataclass, field

LINK = re.compile(r"\[([^\]]*)\]\(([^)]+)\)")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
BARE = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
UNITS = {
    "TiB": 2**40, "GiB": 2**30, "GB": 1e9, "%": 0.01, "ms": 1e-3, "k": 1e3, "thousand": 1e3, "million": 1e6,
    "M": 1e6, "billion": 1e9, "PFLOP": 1e15,
}  # fmt: skip


@dataclass
class Conversation:
    """A file of ``conversations/``: turns of a user, calls, and what the assistant says after them."""

    turns: list
    answers: dict = field(default_factory=dict)
    said: str = ""

    @classmethod
    def read(cls, path):
        return cls(turns=tomllib.loads(path.read_text(encoding="utf-8"))["turn"])

    def replay(self, call):
        """Yield each sentence of the assistant with what is wrong in it, in order; calls are made on the way."""
        for turn in self.turns:
            if "user" in turn:
                self.said += " " + turn["user"]
            elif "call" in turn:
                arguments = {name: self.resolved(value) for name, value in turn.get("with", {}).items()}
                is_error, answer = call(turn["call"], arguments)
                assert is_error is turn.get("is_error", False), answer
                self.answers[turn.get("as", turn["call"])] = answer
                self.said += " " + json.dumps(arguments) + " " + json.dumps(answer)
            else:
                yield turn["assistant"], self.faults(turn["assistant"])

    def resolved(self, value):
        """``$plan.recommended.plan`` as what the tool answered; anything else as it is."""
        if isinstance(value, str) and value.startswith("$"):
            return self.at(value[1:])
        if isinstance(value, list):
            return [self.resolved(one) for one in value]
        if isinstance(value, dict):
            return {name: self.resolved(one) for name, one in value.items()}
        return value

    def at(self, path):
        found = self.answers
        for key in path.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
        return found

    def faults(self, text):
        """What the assistant says that no answer holds."""
        wrong = [
            f"{shown} is {self.shown(shown, path)}"
            for shown, path in LINK.findall(text)
            if shown != self.shown(shown, path)
        ]
        known = {number.replace(",", "") for number in NUMBER.findall(self.said)}
        bare = [number for number in BARE.findall(LINK.sub("", text)) if number.replace(",", "") not in known]
        return wrong + [f"{number} stands nowhere" for number in bare]

    def shown(self, shown, path):
        """The text of a link with the number that stands at its path, to the same digits and in the same unit."""
        value = self.at(path)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return str(value)
        number = NUMBER.search(shown)
        rest = shown[number.end() :].split()
        unit = UNITS.get(rest[0], 1) if rest else 1
        digits = len(number[0].partition(".")[2])
        written = f"{value / unit:,.{digits}f}"
        return shown[: number.start()] + written + shown[number.end() :]

    def updated(self, text):
        """The text with every link made right."""
        return LINK.sub(lambda link: f"[{self.shown(link[1], link[2])}]({link[2]})", text)
