"""What tests of the launch share."""

import json

import pytest

from shardwise.launch import buildable
from shardwise.train.job import job_from_json, job_to_json
from shardwise.train.meta_model import meta_model, unfit_weights


@pytest.fixture
def built_here(monkeypatch):
    """Models of transformers are built in this process, which has imported it: one of their own takes five seconds."""

    def built(job, *words):
        asked = unfit_weights if words else meta_model
        return json.loads(json.dumps(asked(job_from_json(json.loads(json.dumps(job_to_json(job)))))))

    monkeypatch.setattr(buildable, "_built", built)
