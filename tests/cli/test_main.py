"""The front door: help, unknown words, exit codes, the shape of errors, and what happens when the reader leaves."""

import fcntl
import gc
import json
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from shardwise.cli import main as front_door
from shardwise.cli.command import COMMANDS

COMMAND_NAMES = [entry.name for entry in COMMANDS]


def test_help_lists_every_command(capsys):
    assert front_door.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert [name for name in COMMAND_NAMES if f"  {name} " not in printed] == []


def test_no_words_at_all_print_the_help(capsys):
    assert front_door.main([]) == 0
    assert "Usage: shardwise COMMAND" in capsys.readouterr().out


def test_version_is_the_package_version(capsys):
    assert front_door.main(["--version"]) == 0
    assert capsys.readouterr().out == "shardwise 0.1.0\n"


def test_an_unknown_command_names_the_one_that_was_meant(capsys):
    assert front_door.main(["predcit"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    commands = ", ".join(entry.name for entry in COMMANDS)
    assert printed.err == (
        f"error: there is no command 'predcit'; the commands are {commands} [cli-usage]\n"
        "  fix: run `shardwise predict`\n"
    )


def test_an_unknown_option_names_the_one_that_was_meant(capsys):
    assert front_door.main(["predict", "plan.json", "--micro-batch", "2"]) == 2
    assert "write --micro-batch-size instead of --micro-batch" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMAND_NAMES)
def test_a_wrong_option_is_one_json_object_with_json(command, capsys):
    assert front_door.main([command, "--json", "--no-such-thing"]) == 2
    printed = capsys.readouterr()
    assert printed.err == ""
    answer = json.loads(printed.out)
    assert list(answer) == ["ok", "error", "code", "fix"]
    assert (answer["ok"], answer["code"]) == (False, "cli-usage")


@pytest.mark.parametrize("command", COMMAND_NAMES)
def test_every_command_has_json_and_says_so(command, capsys):
    assert front_door.main([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_a_failure_of_ours_is_one_sentence_and_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(front_door, "_dispatch", lambda words: 1 // 0)
    monkeypatch.delenv("SHARDWISE_DEBUG", raising=False)
    assert front_door.main(["plan"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: shardwise failed: ZeroDivisionError")
    assert "Traceback" not in printed


def test_a_failure_of_ours_shows_its_traceback_on_request(monkeypatch):
    monkeypatch.setattr(front_door, "_dispatch", lambda words: 1 // 0)
    monkeypatch.setenv("SHARDWISE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        front_door.main(["plan"])


def test_ctrl_c_is_quiet_and_exits_with_130(monkeypatch, capsys):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr(front_door, "_dispatch", interrupted)
    assert front_door.main(["plan"]) == 130
    assert capsys.readouterr().err == ""


def num_unread_bytes(pipe):
    """What was written to a pipe and nobody has read yet."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


def test_ctrl_c_while_waiting_for_standard_input_is_quiet():
    program = subprocess.Popen(
        [sys.executable, "-m", "shardwise", "predict", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    program.stdin.write("\n")
    program.stdin.flush()
    while num_unread_bytes(program.stdin):
        assert program.poll() is None
        time.sleep(0.01)
    program.send_signal(signal.SIGINT)
    printed, complaints = program.communicate(timeout=300)
    assert (program.returncode, printed, complaints) == (130, "", "")


def test_a_reader_that_leaves_is_not_a_failure():
    code = f"{sys.executable} -m shardwise catalog prices --json | head -c 10"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {code}"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode in (0, 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", ["--help", "catalog prices --json", "catalog gpus"])
def test_a_full_disk_is_one_sentence(words):
    command = f"{sys.executable} -m shardwise {words} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "error: the answer cannot be written: No space left on device [output-path]\n  fix: make room for it\n"
    )


@pytest.mark.parametrize("words", ["--help", "predict llama-3.1-8b 8xh100-sxm", "nonsense"])
def test_a_closed_standard_output_is_one_sentence(words):
    command = f"{sys.executable} -m shardwise {words} >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: the answer cannot be written: standard output is closed [output-path]\n  fix: "
    )
    assert len(done.stderr.splitlines()) == 2


def test_a_closed_standard_error_changes_nothing_but_the_messages():
    for words, exit_code in (("--version", 0), ("nonsense", 2)):
        command = f"{sys.executable} -m shardwise {words} 2>&-"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (exit_code, "")


def test_a_closed_standard_input_is_told():
    command = f"{sys.executable} -m shardwise predict - <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "[cli-usage]" in done.stderr


def test_the_module_runs_like_the_command():
    done = subprocess.run([sys.executable, "-m", "shardwise", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "shardwise 0.1.0\n"


def test_a_command_in_a_folder_that_was_deleted_says_so(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert front_door.main(["plan", "llama-3.2-1b", "8xh100-sxm"]) == 2
    assert "the working directory of this shell was deleted [working-directory]" in capsys.readouterr().err


@pytest.fixture
def collector():
    """As it was, after a test that leaves it as a process that ends does."""
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("collector")
def test_a_short_command_looks_for_no_cycles_of_garbage_even_at_its_end(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["shardwise", "catalog", "gpus"])
    assert front_door.program() == 0
    assert not gc.isenabled()
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("name", [entry.name for entry in COMMANDS if entry.runs_long])
def test_a_long_command_frees_its_cycles_of_garbage(monkeypatch, name):
    monkeypatch.setattr(sys, "argv", ["shardwise", name, "--help"])
    assert front_door.program() == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
