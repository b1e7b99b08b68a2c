"""What a search looks at: the pipelines of models whose layers no number of stages divides."""

from shardwise.search.bounds import SearchBounds
from shardwise.search.candidates import SCHEDULES
from shardwise.search.space import Space


def test_stages_that_count_the_embedding_as_a_layer_are_interleaved(make_question):
    """Llama 3 405B: 126 layers on 16 stages; with embedding and loss 128, eight layers a stage (arXiv:2407.21783)."""
    question = make_question(
        model="llama-3.1-405b", cluster="16384xh100-sxm", engine="megatron", global_batch_size=2048
    )
    space = Space(question=question, bounds=SearchBounds())
    interleaved = SCHEDULES.index("interleaved")
    chunks = {vpp for schedule, vpp in space._pipeline_options((16,)) if schedule == interleaved}
    assert {2, 4, 8} <= chunks
