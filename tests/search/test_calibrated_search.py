"""A calibration reaches the ranking: what is slow on the measured machine is avoided."""

from calibrations import calibration, tables
from shardwise.predict import predict
from shardwise.predict.calibrated_cluster import calibrated_cluster
from shardwise.search import search


def best(question, **parts):
    cluster = calibrated_cluster(question.cluster, calibration(**parts)) if parts else question.cluster
    result = search(model=question.model, cluster=cluster, recipe=question.recipe, engine=question.engine)
    return result.plans[0]


def test_a_slow_network_changes_the_ranking(make_question):
    """At 8 GB/s of payload, gathering 16 GB of weights costs seconds that a pipeline never pays."""
    question = make_question(global_batch_size=32)
    usual = best(question)
    slow = best(question, collectives=tables(bytes_per_s=8e9))
    assert usual.plan.layout.pp == 1
    assert slow.plan.layout != usual.plan.layout
    assert slow.prediction.time.step_s > usual.prediction.time.step_s


def test_what_the_search_recommends_is_the_calibrated_prediction(make_question):
    found = best(make_question(global_batch_size=32), collectives=tables(bytes_per_s=8e9))
    assert found.plan.cluster.calibration is not None
    assert predict(found.plan).time.step_s == found.prediction.time.step_s
