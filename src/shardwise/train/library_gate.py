"""Says which version of a library to install where the one that is here lacks something the trainer uses of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from shardwise.errors import LibraryError

KNOWN_VERSIONS = {"torch": ">=2.11,<2.14", "transformers": ">=5,<6"}
"""The versions in which names that a library does not offer as public were read."""


@contextmanager
def library_gate(library: str) -> Iterator[None]:
    """Within, a name that the library lacks is refused with the versions that have it.

    Raises:
        LibraryError: an import failed, or an attribute is missing.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        lacking = LibraryError(
            f"{library} {version(library)} lacks what training uses of it: {error}",
            code="train-library",
            fix=f"pip install '{library}{KNOWN_VERSIONS[library]}'",
        )
        lacking.add_note(lacking.fix)  # shown below a traceback, in which a rank that cannot be imported ends
        raise lacking from error
