"""Files that commands write."""

import os
import threading

from shardwise.cli.output import write_file


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    """So does ``/dev/null``, which a rename by root would make a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_file(pipe, "answer", is_forced=False)
    reader.join(timeout=300)
    assert read == ["answer\n"]
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_goes_on_leading_where_it_led(tmp_path):
    file, link = tmp_path / "plan.json", tmp_path / "link.json"
    file.write_text("old")
    link.symlink_to(file)
    write_file(link, "new", is_forced=True)
    assert link.is_symlink()
    assert file.read_text() == "new\n"
