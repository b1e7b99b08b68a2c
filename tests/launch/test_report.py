"""The page of a finished run that a script asks for by its own module: what is no run is refused in one sentence."""

import pytest

from shardwise.launch.report import main


def said(capsys, *words):
    assert main([*map(str, words)]) == 2
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(("words", "named"), [((), "''"), (("missing",), "'missing'"), (("a", "b"), "'a b'")])
def test_what_is_no_folder_is_refused_with_what_to_type(capsys, words, named):
    assert said(capsys, *words) == [
        f"error: {named} is no run folder [cli-usage]",
        "  fix: name one folder: python -m shardwise.launch.report runs/NAME",
    ]


def test_a_folder_without_a_measurement_is_refused(capsys, tmp_path):
    assert said(capsys, tmp_path)[0].endswith(
        "is empty: the run did not end, or is no run of ours [reconcile-no-measurement]"
    )
