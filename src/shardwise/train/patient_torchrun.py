"""torchrun that lets ranks which were asked to stop finish their step and save.

``python -m shardwise.train.patient_torchrun OPTION… -m MODULE WORD…`` is ``torchrun`` with those words. A scheduler
that ends a job signals every process of it, torchrun too, which kills its ranks half a minute later unless it is told
otherwise.
"""

import sys

from torch.distributed.run import get_args_parser
from torch.distributed.run import main as torchrun

__all__ = ["PATIENCE", "PATIENCE_S", "with_patience"]

PATIENCE = "--shutdown-timeout"
PATIENCE_S = 600
"""As long as ``shardwise train`` itself waits for a run that was asked to stop."""


def with_patience(words: list[str]) -> list[str]:
    """The words of a torchrun command, with the option in front where this version of torch has it."""
    has_option = PATIENCE in get_args_parser().format_help()
    return [f"{PATIENCE}={PATIENCE_S}", *words] if has_option else words


if __name__ == "__main__":
    torchrun(with_patience(sys.argv[1:]))
