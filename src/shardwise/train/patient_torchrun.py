"""torchrun that lets ranks which were asked to stop finish their step and save, and tells them who it is.

``python -m shardwise.train.patient_torchrun OPTION… -m MODULE WORD…`` is ``torchrun`` with those words. A scheduler
that ends a job signals every process of it, torchrun too, which kills its ranks half a minute later unless it is told
otherwise. With ``--standalone`` it meets nobody, and opens no port for it.
"""

import os
import secrets
import sys

from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.run import get_args_parser
from torch.distributed.run import main as torchrun

from shardwise.train.failure.keepers import KEEPERS_VARIABLE, TORCHRUN, keepers_text
from shardwise.train.store_port import hold_store_port

__all__ = ["PATIENCE", "PATIENCE_S", "STANDALONE", "run_torchrun", "with_patience"]

PATIENCE = "--shutdown-timeout"
PATIENCE_S = 600
"""Seconds that ``shardwise train`` itself waits for a run that was asked to stop."""


STANDALONE, ALONE = "--standalone", "shardwise-alone"
"""torchrun's option for a run on one machine, and the rendezvous that stands in for its own, which listens on every
network interface and reads pickles from whoever connects."""


def with_patience(words: list[str]) -> list[str]:
    """The words of a torchrun command, with the option in front where this version of torch has it."""
    has_option = PATIENCE in get_args_parser().format_help()
    return [f"{PATIENCE}={PATIENCE_S}", *words] if has_option else words


def run_torchrun(words: list[str]) -> None:
    """Run torchrun patiently, as a keeper of its ranks."""
    os.environ[KEEPERS_VARIABLE] = keepers_text({TORCHRUN: os.getpid()}, inherited=os.environ)
    if STANDALONE in words:
        hold_store_port()
    rendezvous_handler_registry.register(ALONE, alone)
    # Not the process id, which in a container is the same at every start: records of an earlier one would count.
    at_home = [f"--rdzv-backend={ALONE}", f"--rdzv-id={secrets.token_hex(8)}", "--local-addr=localhost"]
    torchrun(
        with_patience([*at_home, *(word for word in words if word != STANDALONE)] if STANDALONE in words else words)
    )


class AloneBackend(C10dRendezvousBackend):
    """Where one torchrun meets itself: in its own memory."""

    @property
    def name(self) -> str:
        """The name of this backend for ``--rdzv-backend``."""
        return ALONE


def alone(params: RendezvousParameters) -> RendezvousHandler:
    """The rendezvous of a run on one machine."""
    store = HashStore()
    return create_handler(store, AloneBackend(store, params.run_id), params)


if __name__ == "__main__":
    run_torchrun(sys.argv[1:])
