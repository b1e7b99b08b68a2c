"""Plans, jobs and checkpoints of earlier versions hold fields that nothing reads any more."""

import pytest

from shardwise.errors import LayoutError
from shardwise.plan_file import read_plan
from shardwise.retired import _say_once
from shardwise.train.checkpoint.origin import origin_facts, origin_of, require_continuable
from shardwise.train.job import job_from_json, job_to_json
from train.checkpoint.test_origin import STATE, going_on, made_job, save

SAID = (
    "warning: layout.late_updates is not used any more: "
    "the optimizer finishes its step before the next forward pass begins\n"
)


@pytest.fixture(autouse=True)
def _a_new_process():
    _say_once.cache_clear()


def planned(**layout):
    return {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {"seq_len": 4096}, "layout": layout}


@pytest.mark.parametrize("is_late", [True, False])
def test_a_plan_file_with_a_retired_field_is_read_with_one_sentence(capsys, is_late):
    plans = [read_plan(planned(dp_shard=8, late_updates=is_late)) for _ in range(3)]
    assert capsys.readouterr() == ("", SAID)
    assert plans[0] == read_plan(planned(dp_shard=8))


def test_a_retired_field_without_a_value_and_plans_without_it_are_read_in_silence(capsys):
    read_plan(planned(dp_shard=8, late_updates=None))
    read_plan(planned(dp_shard=8))
    assert capsys.readouterr() == ("", "")


def test_a_field_that_never_was_is_still_refused():
    with pytest.raises(LayoutError, match=r"layout\.later_updates is not a field of a plan"):
        read_plan(planned(later_updates=True))


def of_an_earlier_version(job):
    document = job_to_json(job)
    return {**document, "layout": {**document["layout"], "late_updates": True}}


def test_a_job_file_with_a_retired_field_is_the_same_job(tmp_path, capsys):
    job = made_job(tmp_path)
    assert job_from_json(of_an_earlier_version(job)) == job
    assert capsys.readouterr().err == SAID


def test_a_checkpoint_made_with_a_retired_field_is_known_and_gone_on_from(tmp_path, capsys):
    job = made_job(tmp_path / "run")
    facts = origin_facts(job, STATE) | {"job": of_an_earlier_version(job)}
    checkpoint = save(tmp_path / "elsewhere", facts)
    assert origin_of(checkpoint).job == job
    require_continuable(going_on(job, checkpoint.path))
    assert capsys.readouterr().err == SAID
