"""Rows with prompts, completions and conversations: what of them is learned, and what a bad one is called."""

import json

import datasets
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer, models

from shardwise.errors import DataError
from shardwise.train.data.encoding import Encoder
from shardwise.train.data.examples import Chat, Completion
from shardwise.train.data.request import open_samples, prepare_samples, suited_packing
from shardwise.train.data.sources import parse_source
from shardwise.train.data.tokenizer import ByteTokenizer, open_tokenizer
from shardwise.train.job import DataSpec
from train.data.chats import (
    CLOSES_ALL,
    FORGETFUL,
    MARKED,
    NO_OLD_THOUGHTS,
    OPENS_THOUGHT,
    TURNS,
    UNMARKED,
    WITH_CALLS,
    WITH_TOOLS,
    chat_folder,
    write_rows,
)
from train.data.reading import read_examples


def learned(folder, example):
    """The text of a conversation's tokens, and of those that are learned."""
    tokenizer = open_tokenizer(folder)
    (encoded,) = Encoder(tokenizer).encode([example])
    return tokenizer.decode(encoded.tokens), tokenizer.decode(encoded.tokens[encoded.is_target])


@pytest.mark.parametrize("template", [MARKED, UNMARKED], ids=["marks", "prefixes"])
def test_of_a_conversation_the_assistants_turns_are_learned(tmp_path, template):
    folder = chat_folder(tmp_path / "model", template)
    whole, answers = learned(folder, Chat(place="", messages=tuple(TURNS)))
    assert whole == "<user>why?<end><assistant>so.<end><user>and?<end><assistant>yes<end>"
    assert answers == "so.<end>yes<end>"


def test_turns_before_the_completion_are_a_prompt(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", {"prompt": TURNS[:3], "completion": TURNS[3:]})
    (example,) = read_examples(path)
    assert learned(chat_folder(tmp_path / "model", MARKED), example)[1] == "yes<end>"


def test_tools_reach_the_template_also_as_a_text_of_json(tmp_path):
    tools = [{"type": "function", "function": {"name": "clock"}}]
    rows = ({"messages": TURNS[:2], "tools": tools}, {"messages": TURNS[:2], "tools": json.dumps(tools)})
    for example in read_examples(write_rows(tmp_path / "a.jsonl", *rows)):
        assert learned(chat_folder(tmp_path / "model", WITH_TOOLS), example)[0].startswith("[clock]<user>why?")


def test_of_a_completion_its_tokens_and_its_end_are_learned(tmp_path):
    example = Completion(place="", prompt="ü: ", completion="ja")
    assert learned(chat_folder(tmp_path / "model", UNMARKED), example) == ("ü: ja<end>", "ja<end>")
    (encoded,) = Encoder(ByteTokenizer()).encode([example])
    assert encoded.tokens[encoded.is_target].tolist() == [*b"ja", 256]


def test_a_token_that_reaches_from_the_prompt_into_the_completion_is_learned(tmp_path):
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "c": 2, "ab": 3}, merges=[("a", "b")]))
    backend.save(str(tmp_path / "tokenizer.json"))
    encoded = open_tokenizer(tmp_path).encode_completion("ca", "bc")
    assert (encoded.tokens.tolist(), encoded.is_target.tolist()) == ([2, 3, 2], [False, True, True])


@pytest.mark.parametrize(
    ("template", "answers"),
    [
        (NO_OLD_THOUGHTS, "so.<end>(hm)yes<end>"),
        (OPENS_THOUGHT, "so.<end>yes<end>"),
        (CLOSES_ALL, "so.<end>yes<end><system>"),
    ],
    ids=["no old thoughts", "opens a thought", "closes the whole"],
)
def test_turns_that_a_template_rewrites_are_told_by_their_content(tmp_path, template, answers):
    encoder = Encoder(open_tokenizer(chat_folder(tmp_path / "model", template)))
    (encoded,) = encoder.encode([Chat(place="", messages=tuple(TURNS))])
    assert open_tokenizer(tmp_path / "model").decode(encoded.tokens[encoded.is_target]) == answers
    assert [by.partition(" where ")[0] for by in encoder.targets_by] == ["their content"]


def test_a_template_that_writes_nothing_of_a_turn_is_refused_by_line(tmp_path):
    folder = chat_folder(tmp_path / "model", FORGETFUL)
    path = write_rows(tmp_path / "a.jsonl", {"messages": TURNS})
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: the chat template does not write 'so.' of message 2"):
        learned(folder, *read_examples(path))


CALL = {"type": "function", "function": {"name": "clock", "arguments": '{"zone": "CET"}'}}
CALLED = {"messages": [TURNS[0], {"role": "assistant", "content": None, "tool_calls": [CALL]}, *TURNS[2:]]}
CLOCK = [{"type": "function", "function": {"name": "clock"}}]


def test_arguments_that_are_a_text_of_json_are_written_once(tmp_path):
    """OpenAI's files hold them as a text, and templates make a text of JSON of them."""
    (example,) = read_examples(write_rows(tmp_path / "a.jsonl", CALLED))
    assert learned(chat_folder(tmp_path / "model", WITH_CALLS), example)[1] == 'clock{"zone": "CET"}<end>yes<end>'


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (CALLED, "does not write 'clock' of message 2, which the assistant calls"),
        ({"messages": TURNS, "tools": CLOCK}, "does not write the tools"),
    ],
    ids=["calls", "tools"],
)
def test_a_template_without_tools_is_refused_where_there_are_some(tmp_path, row, says):
    (example,) = read_examples(write_rows(tmp_path / "a.jsonl", row))
    with pytest.raises(DataError, match=says):
        learned(chat_folder(tmp_path / "model", UNMARKED), example)


@pytest.mark.parametrize("tools", [None, [{"type": "web_search"}, {"name": "clock", "function": None}]], ids=str)
def test_tools_and_calls_that_say_less_are_read(tmp_path, tools):
    """Columns of Parquet hold nulls and empty texts where there is no call, and some tools have a type alone."""
    turns = [TURNS[0], {**TURNS[1], "tool_calls": ""}, TURNS[2], {**TURNS[3], "tool_calls": []}]
    (example,) = read_examples(write_rows(tmp_path / "a.jsonl", {"messages": turns, "tools": tools}))
    assert len(example.tools) == len(tools or ())


def test_parts_of_text_are_one_text_and_a_turn_of_weight_0_is_only_read(tmp_path):
    parts = [{"type": "text", "text": "s"}, {"type": "text", "text": "o."}]
    turns = [TURNS[0], {"role": "assistant", "content": parts}, TURNS[2], {**TURNS[3], "weight": 0}]
    for template in (MARKED, UNMARKED):
        (example,) = read_examples(write_rows(tmp_path / "a.jsonl", {"messages": turns}))
        whole, answers = learned(chat_folder(tmp_path / "model", template), example)
        assert (whole[-35:], answers) == ("so.<end><user>and?<end><assistant>yes<end>"[-35:], "so.<end>")


SHAPES = {
    "alpaca": (
        {"instruction": "add", "input": "1 2", "output": "3"},
        "instruction,input,output",
        "<user>add\n\n1 2<end><assistant>3<end>",
    ),
    "no input": (
        {"instruction": "hi", "input": "", "output": "ho"},
        "instruction,input,output",
        "<user>hi<end><assistant>ho<end>",
    ),
    "dolly": (
        {"instruction": "q", "context": "c", "response": "r", "category": "x"},
        "instruction,context,response",
        "<user>q\n\nc<end><assistant>r<end>",
    ),
    "gsm8k": ({"question": "q", "answer": "a"}, "question,answer", "<user>q<end><assistant>a<end>"),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        "conversations",
        "<user>q<end><assistant>a<end>",
    ),
    "pairs of texts": (
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        "prompt,chosen",
        "<user>q<end><assistant>a<end>",
    ),
    "pairs of chats": ({"chosen": TURNS[:2], "rejected": TURNS[:2]}, "chosen", "<user>why?<end><assistant>so.<end>"),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "saved"])
def test_a_shape_of_public_data_sets_is_refused_with_the_option_that_reads_it(tmp_path, name, kind):
    row, field, whole = SHAPES[name]
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        write_rows(path, row)
    elif kind == "json":
        path.write_text(json.dumps([row], indent=1), encoding="utf-8-sig")
    elif kind == "parquet":
        parquet.write_table(pa.Table.from_pylist([row]), path)
    else:
        datasets.Dataset.from_list([row]).save_to_disk(str(path))
    with pytest.raises(DataError) as refused:
        read_examples(path)
    assert refused.value.fix.partition(", which learns")[0] == f"read it with --data-field {field}"
    (example,) = read_examples(path, field=field)
    assert learned(chat_folder(tmp_path / "model", UNMARKED), example)[0] == whole


def test_rows_of_other_shapes_may_stand_beside_those_that_an_option_names(tmp_path):
    rows = [{"question": "q", "answer": "a"}, {"messages": TURNS[:2]}, {"prompt": "p", "completion": "c"}]
    path = write_rows(tmp_path / "a.jsonl", *rows)
    found = read_examples(path, field="question,answer")
    assert [type(example) for example in found] == [Chat, Chat, Completion]


def test_a_run_says_what_it_does_not_read_and_what_is_learned_otherwise(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, data = chat_folder(tmp_path / "model", UNMARKED.replace("<end>", "")), tmp_path / "data"
    (folder / "tokenizer_config.json").unlink()
    data.mkdir()
    write_rows(data / "a.jsonl", {"messages": TURNS, "id": 3, "source": ""}, {"prompt": "q", "completion": ""})
    for name in ("README.md", "a.pdf"):
        (data / name).write_text("about", encoding="utf-8")
    spec = DataSpec(source=str(data), tokenizer=str(folder), packing="documents")
    said = [sentence.removeprefix(f"{data}: ") for sentence in prepare_samples(spec, seq_len=64, vocab_size=300)]
    assert said[0].startswith("6 of 19 tokens in 2 rows are learned")
    assert said[1:] == [
        "no end closes texts and completions, as the tokenizer's files name none (eos_token)",
        "1 rows have an empty answer, of which only the end is learned",
        "in 1 conversations no special token that the template writes after an answer is learned",
        "README.md, a.pdf in this folder are not read",
        "rows also hold id, which is not read (by the first)",
    ]


BAD_ROWS = {
    "no role": ({"messages": [{"speaker": "human", "text": "why?"}]}, "message 1 of 'messages' has no role"),
    "other roles": (
        {"messages": [{"role": "bot", "content": "so."}]},
        "'messages' has no turn of the assistant, so there is nothing to learn; its roles are bot",
    ),
    "no text": (
        {"messages": [{"role": "user", "content": {"a": 1}}]},
        "message 1 of 'messages' has a content that is no text",
    ),
    "weight": (
        {"messages": [{**TURNS[1], "weight": 0.5}]},
        "message 1 of 'messages' has a content that is no text, or a weight",
    ),
    "no assistant": ({"messages": TURNS[:1]}, "'messages' has no turn of the assistant"),
    "no list": ({"messages": "why?"}, "'messages' is a text, not a list of messages"),
    "no completion": ({"prompt": "why?"}, "'prompt' is a text and 'completion' is null"),
    "no tools": ({"messages": TURNS, "tools": "clock"}, "'tools' is no list of tools that are functions"),
    "a text as a tool": (
        {"messages": TURNS, "tools": [{"type": "function", "function": "clock"}]},
        "'tools' is no list of tools that are functions",
    ),
    "a tool named by a number": ({"messages": TURNS, "tools": [{"name": 5}]}, "'tools' is no list of tools that"),
    **{
        f"a call that is {kind}": (
            {"messages": [TURNS[0], {"role": "assistant", "content": "", "tool_calls": calls}]},
            "message 2 of 'messages' has tool_calls that are no list of calls of functions",
        )
        for kind, calls in {
            "a text": ["clock"],
            "of a text": [{"type": "function", "function": "clock"}],
            "of a number": [{"function": {"name": 5, "arguments": {}}}],
            "no list": 5,
        }.items()
    },
    "another name": ({"conversations": TURNS}, "there is no text under 'text'; the line has conversations"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, name):
    row, says = BAD_ROWS[name]
    path = write_rows(tmp_path / "a.jsonl", {"text": "fine"}, row)
    with pytest.raises(DataError) as refused:
        read_examples(path)
    assert refused.value.message.startswith(f"{path}, line 2: {says}")
    assert refused.value.fix


def test_every_kind_of_file_gives_the_same_samples(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = chat_folder(tmp_path / "model", UNMARKED)
    rows = [{"messages": TURNS[:2], "tools": None}, {"messages": TURNS, "tools": None}]
    lines = write_rows(tmp_path / "a.jsonl", *rows)
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"))
    both = datasets.DatasetDict(train=datasets.Dataset.from_list(rows), tiny=datasets.Dataset.from_list(rows[:1]))
    both.save_to_disk(str(tmp_path / "splits"))
    sources = [lines, tmp_path / "a.parquet", tmp_path / "saved", tmp_path / "splits", f"{tmp_path / 'splits'}@tiny"]
    opened = [
        open_samples(
            DataSpec(source=str(source), tokenizer=str(folder), packing="documents"),
            seq_len=24,
            vocab_size=300,
            cache=tmp_path / "tokens",
        )
        for source in sources
    ]
    assert [samples.num_samples for samples in opened] == [2, 2, 2, 2, 1]
    assert len({samples.fingerprint for samples in opened[:4]}) == 1
    assert [(samples.sample(0).labels >= 0).sum() for samples in opened] == [8, 8, 8, 8, 4]


def test_a_data_set_in_the_hub_cache_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = "a" * 40
    snapshot = tmp_path / "hub" / "datasets--acme--notes" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (tmp_path / "hub" / "datasets--acme--notes" / "refs").mkdir()
    (tmp_path / "hub" / "datasets--acme--notes" / "refs" / "main").write_text(commit, encoding="utf-8")
    write_rows(snapshot / "train.jsonl", {"text": "a note"})
    source = parse_source("acme/notes:0.5")
    assert (source.path, source.split, source.weight_ratio) == (snapshot, "train", 0.5)
    assert [example.text for example in read_examples(source)] == ["a note"]
    assert parse_source("acme/other").split == ""


def test_a_bad_row_of_a_data_set_is_named_and_so_are_the_splits(tmp_path):
    datasets.Dataset.from_list([{"messages": TURNS}, {"messages": TURNS[:1]}]).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match="saved, split train, row 2: 'messages' has no turn of the assistant"):
        read_examples(tmp_path / "saved")
    datasets.DatasetDict(a=datasets.Dataset.from_list([{"text": "x"}])).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(DataError) as refused:
        read_examples(tmp_path / "splits")
    assert refused.value.message.endswith("has no split 'train' that `datasets` can read: it has a")


def test_a_split_and_a_slice_of_saved_data_are_read_alone(tmp_path):
    """Also of one data set without splits, which is its split ``train`` and no other."""
    rows = datasets.Dataset.from_list([{"text": f"row {number}"} for number in range(10)])
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=rows.select(range(8)), test=rows.select([8, 9])).save_to_disk(str(tmp_path / "two"))
    assert [it.text for it in read_examples(parse_source(f"{tmp_path / 'one'}@train[:30%]"))] == [
        "row 0",
        "row 1",
        "row 2",
    ]
    assert [it.text for it in read_examples(parse_source(f"{tmp_path / 'two'}@test"))] == ["row 8", "row 9"]
    assert len(read_examples(parse_source(f"{tmp_path / 'two'}@train[6:]+test"))) == 4
    with pytest.raises(DataError) as refused:
        read_examples(parse_source(f"{tmp_path / 'one'}@validation"))
    assert refused.value.message.endswith("has no split 'validation' that `datasets` can read: it has train")


def test_conversations_without_a_chat_template_are_refused(tmp_path):
    request = DataSpec(source=str(write_rows(tmp_path / "a.jsonl", {"messages": TURNS})))
    with pytest.raises(DataError, match="conversations, and bytes have no chat template") as refused:
        open_samples(request, seq_len=8, vocab_size=300, cache=tmp_path / "tokens")
    assert refused.value.code == "data-template"
    assert refused.value.fix.startswith("add --tokenizer FOLDER of the model's chat version")
    folder = chat_folder(tmp_path / "base", UNMARKED)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(DataError, match="base has no chat template") as refused:
        learned(folder, *read_examples(tmp_path / "a.jsonl"))
    assert f"put its chat_template.jinja into {folder}; to learn without a template, write" in refused.value.fix


def test_rows_with_prompts_are_kept_whole_unless_somebody_says_otherwise(tmp_path):
    text = write_rows(tmp_path / "text.jsonl", {"text": "a"})
    prompts = write_rows(tmp_path / "prompts.jsonl", {"prompt": "a", "completion": "b"})
    assert suited_packing(DataSpec(source=str(text))) == "stream"
    assert suited_packing(DataSpec(source=str(prompts))) == "documents"
    assert suited_packing(DataSpec(source=str(tmp_path / "nowhere"))) == "stream"


def rows_of(tmp_path, **choices):
    """Rows of 5, 9 and 14 tokens, of which 2, 3 and 4 are learned, as samples of 8 bytes."""
    rows = [{"prompt": "p" * n, "completion": "c" * m} for n, m in ((3, 1), (6, 2), (10, 3))]
    request = DataSpec(source=str(write_rows(tmp_path / "a.jsonl", *rows)), packing="rows", **choices)
    return open_samples(request, seq_len=8, vocab_size=300, cache=tmp_path / "tokens"), request


@pytest.mark.parametrize(
    ("overlong", "num_learned", "says"),
    [
        ("cut", [2, 3, 4], "and are cut into pieces (--overlong cut)"),
        (
            "truncate",
            [2, 3],
            "and are truncated (--overlong truncate); no sample holds 5 tokens of them",
        ),
        (
            "drop",
            [2, 3],
            "and are left out (--overlong drop); no sample holds 14 tokens of them",
        ),
    ],
)
def test_what_becomes_of_rows_that_are_too_long_is_said(tmp_path, monkeypatch, overlong, num_learned, says):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    samples, request = rows_of(tmp_path, overlong=overlong)
    found = [int((samples.sample(number).labels >= 0).sum()) for number in range(samples.num_samples)]
    assert found == num_learned
    said = prepare_samples(request, seq_len=8, vocab_size=300)
    assert "9 of 28 tokens in 3 rows are learned" in said[0]
    assert said[1].endswith(f": 1 of 3 rows have more than 9 tokens {says}")
    assert said[-1].endswith("every byte is a token, as no tokenizer is named (--tokenizer)")


def test_all_tokens_are_learned_where_that_is_asked_for(tmp_path):
    samples, _ = rows_of(tmp_path, loss_on="all", overlong="drop")
    assert [int((samples.sample(number).labels >= 0).sum()) for number in range(2)] == [4, 8]


def test_a_stream_learns_the_same_tokens_across_the_ends_of_rows(tmp_path):
    rows = [{"prompt": "pp", "completion": "cc"}] * 8
    request = DataSpec(source=str(write_rows(tmp_path / "a.jsonl", *rows)), crosses_documents=True)
    samples = open_samples(request, seq_len=10, vocab_size=300, cache=tmp_path / "tokens")
    labels = np.concatenate([samples.sample(number).labels for number in range(samples.num_samples)])
    assert set(labels[labels >= 0].tolist()) == {ord("c"), 256}
    assert (labels >= 0).mean() == pytest.approx(3 / 5, abs=0.05)


@pytest.mark.parametrize("has_other", [False, True], ids=["alone", "beside another"])
def test_a_tokenizer_of_another_name_reads_conversations_itself(tmp_path, has_other):
    """One of the usual name in its folder would give other tokens, or be missed."""
    folder = chat_folder(tmp_path / "model", UNMARKED)
    (folder / "tokenizer.json").rename(folder / "mine.json")
    if has_other:
        Tokenizer(models.BPE(vocab={"?": 0, "!": 1}, merges=[])).save(str(folder / "tokenizer.json"))
    example = Chat(place="a.jsonl, line 1", messages=tuple(TURNS[:2]))
    assert learned(folder / "mine.json", example) == ("<user>why?<end><assistant>so.<end>", "so.<end>")
