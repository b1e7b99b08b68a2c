"""Plans are compared by their fullest stages and shown with all of them."""

from shardwise.layout import Layout
from shardwise.predict.memory import predict_memory
from shardwise.search import IntRange, SearchBounds, search, shown


def test_every_plan_that_is_shown_has_the_memory_of_all_its_stages_predicted_once(make_question, monkeypatch):
    predicted: list[Layout] = []
    monkeypatch.setattr(shown, "predict_memory", lambda plan: predicted.append(plan.layout) or predict_memory(plan))
    question = make_question(engine="native", cluster="16xh100-sxm")
    pipelines = SearchBounds(
        pp=IntRange(low=4, high=8), tp=IntRange(low=2, high=2), micro_batch_size=IntRange(low=1, high=1)
    )
    result = search(
        model=question.model, cluster=question.cluster, recipe=question.recipe, engine=question.engine, bounds=pipelines
    )
    every = {ranked.plan: ranked.prediction.memory for ranked in (*result.plans, *result.pareto)}
    assert all(memory == predict_memory(plan) for plan, memory in every.items())
    assert all(len(memory.stages) == plan.layout.pp for plan, memory in every.items())
    assert 0 < len(predicted) <= len(every) < len(result.plans) + len(result.pareto)
