"""The one exception family: what was asked, why it cannot be, and one thing to type next."""


class ShardwiseError(Exception):
    """Input that cannot be used.

    Args:
        message: one sentence with the offending numbers.
        code: a heading of ``docs/errors.md``, such as ``layout-world-size``.
        fix: one thing to type or change next.
    """

    exit_code = 2

    def __init__(self, message: str, *, code: str, fix: str) -> None:
        if not (message and code and fix):
            raise TypeError("a ShardwiseError needs a message, a code and a fix")
        super().__init__(message)
        self.message = message
        self.code = code
        self.fix = fix

    def __str__(self) -> str:
        """The message with its code, and the fix below, as the command line prints them."""
        return f"{self.message} [{self.code}]\n  fix: {self.fix}"


class UsageError(ShardwiseError):
    """A question that cannot be understood, or an option that would be ignored."""


class ModelError(ShardwiseError):
    """A model that cannot be read or counted."""


class ClusterError(ShardwiseError):
    """Hardware that is unknown, ambiguous or impossible."""


class RecipeError(ShardwiseError):
    """A recipe field that is missing, unknown or out of range."""


class LayoutError(ShardwiseError):
    """A layout that breaks a rule of validity."""


class PlanError(ShardwiseError):
    """A plan file that cannot be read."""


class DataError(ShardwiseError):
    """Training data or a tokenizer that cannot be used."""


class CheckpointError(ShardwiseError):
    """A checkpoint that cannot be written, found or read."""


class SimulationError(ShardwiseError):
    """A program of tasks, or an order of passes, that could never run to its end."""


class TraceError(ShardwiseError):
    """A profiler trace or a memory snapshot that cannot be read."""


class CalibrationError(ShardwiseError):
    """A calibration that cannot be read, measured or learned."""


class LibraryError(ShardwiseError):
    """A library that lacks what training uses of it."""


class NoPlanError(ShardwiseError):
    """No layout fits: an answer, with exit code 3."""

    exit_code = 3
