"""Where the program starts: one command is imported, run, and its exit code returned.

Exit codes: 0 done; 1 a failure of ours; 2 input that cannot be used; 3 it does not fit, or no plan does; 130 stopped
with Ctrl-C; 141 the reader of our output went away.
"""

import errno
import gc
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def program() -> int:
    """``main`` in a process of its own, which looks for no cycles of garbage unless its command runs long.

    An answer takes a second and keeps nearly all that it makes. Looking through that while it is made and once more at
    the end took an eighth of a plan's time; at the end the system takes the memory back at once.
    """
    gc.disable()
    exit_code = main()
    if not gc.isenabled():
        gc.freeze()
    return exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; the only place that catches what went wrong."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if sys.stderr is None:  # closed by the caller, who wants no messages
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open as long as the program runs
    if sys.stdout is None:
        return _refuse_closed_output()
    _show_what_the_terminal_cannot()
    try:
        exit_code = _run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        if not _is_about_output(error):
            raise
        return _give_up_output(error)
    return exit_code


def _refuse_closed_output() -> int:
    """Python gives no stdout at all when the caller closed it."""
    sys.stderr.write(
        "error: the answer cannot be written: standard output is closed [output-path]\n"
        "  fix: leave out `>&-`, or write `> /dev/null`\n"
    )
    return EXIT_FAILED


def _is_about_output(error: Exception) -> bool:
    """Whether the reader of our output left, or its disk is full."""
    return isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF)


def _give_up_output(error: OSError) -> int:
    """Stop writing; quietly when the reader left."""
    _let_go_of_output()
    if error.errno == errno.EPIPE:
        return EXIT_BROKEN_PIPE
    fix = "make room for it" if error.errno == errno.ENOSPC else "write to a file or a pipe that takes it"
    sys.stderr.write(f"error: the answer cannot be written: {error.strerror} [output-path]\n  fix: {fix}\n")
    return EXIT_FAILED


def _let_go_of_output() -> None:
    """The interpreter flushes stdout once more at exit; give it somewhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_what_the_terminal_cannot() -> None:
    """Print a question mark for a character the output's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(words: list[str]) -> int:
    from shardwise.errors import ShardwiseError

    try:
        return _dispatch(words)
    except ShardwiseError as error:
        return _report(message=error.message, code=error.code, fix=error.fix, exit_code=error.exit_code, words=words)
    except Exception as error:  # the one place where a failure of ours ends
        if _is_about_output(error) or os.environ.get("SHARDWISE_DEBUG"):
            raise
        return _report(
            message=f"shardwise failed: {type(error).__name__}: {error}",
            code="internal-error",
            fix="run the same command with SHARDWISE_DEBUG=1 and report the traceback",
            exit_code=EXIT_FAILED,
            words=words,
        )


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        from shardwise.cli.overview import guides_folder, overview_text

        sys.stdout.write(overview_text(guides=guides_folder()))
        return 0
    if words[0] == "--version":
        from shardwise import __version__

        sys.stdout.write(f"shardwise {__version__}\n")
        return 0
    from shardwise.cli.command import run_command

    _require_working_directory()
    return run_command(words)


def _require_working_directory() -> None:
    """Return when the folder that the command was typed in is still there."""
    from shardwise.errors import PlanError

    try:
        Path.cwd()
    except FileNotFoundError:
        raise PlanError(
            "the working directory of this shell was deleted",
            code="working-directory",
            fix="cd to a folder that exists",
        ) from None


def _report(*, message: str, code: str, fix: str, exit_code: int, words: list[str]) -> int:
    """Say what went wrong: on stderr for people, as one object on stdout for ``--json``."""
    from shardwise.cli.output import write_line
    from shardwise.render.errors import error_json, error_text

    if "--json" in words:
        write_line(error_json(message=message, code=code, fix=fix))
    else:
        from shardwise.cli.spelling import with_option_spelling

        sys.stderr.write(error_text(message=message, code=code, fix=with_option_spelling(fix, words)))
    return exit_code
