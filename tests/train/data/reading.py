"""What tests read out of files of documents."""

from pathlib import Path

from shardwise.train.data.documents import read_rows
from shardwise.train.data.examples import Example, Text, example_of
from shardwise.train.data.sources import Source, parse_source, read_source


def read_documents(path: Path, *, field: str = "text") -> list[str]:
    """The texts of a file whose rows hold nothing else."""
    examples = [example_of(row, field=field) for row in read_rows(path, field=field)]
    assert all(isinstance(example, Text) for example in examples)
    return [example.text for example in examples]


def read_examples(source: Source | Path, *, field: str = "text") -> list[Example]:
    """The examples of a source."""
    source = parse_source(str(source)) if isinstance(source, Path) else source
    return [example_of(row, field=field) for row in read_source(source, field=field)]
