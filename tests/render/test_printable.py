"""What files call themselves reaches a terminal as text, in answers and in refusals."""

import json

import pytest

from outside import CONFIG
from shardwise.cli.main import main
from shardwise.render.printable import printable

TRAPS = ("\x1b[31mred", "\x1b]0;title\x07", "\x9b2J", "\r", "\x08", "\x00", "\u202eevil", "\x7f")


@pytest.mark.parametrize("trap", TRAPS)
def test_what_a_terminal_obeys_is_written_out(trap):
    shown = printable(f"a{trap}b", has_colour=False)
    assert shown.isprintable()
    assert json.loads(f'"{shown}"') == f"a{trap}b"


def test_lines_tabs_and_letters_stay():
    assert printable("größe\t漢字\n") == "größe\t漢字\n"


def test_colours_of_our_own_stay_on_a_terminal_that_takes_them():
    assert printable("\x1b[1mtitle\x1b[0m \x1b[2J", has_colour=True) == "\x1b[1mtitle\x1b[0m \\u001b[2J"


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("field", ["model_type", "name", "hidden_act", "_name_or_path"])
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_no_name_in_a_config_reaches_the_terminal_raw(tmp_path, capsys, trap, field, words):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, field: f"llama{trap}"}), encoding="utf-8")
    main(["predict", str(tmp_path / "config.json"), "8xh100-sxm", "--seq-len", "512", *words])
    said = "".join(capsys.readouterr())
    assert said
    assert all(character.isprintable() or character == "\n" for character in said)
