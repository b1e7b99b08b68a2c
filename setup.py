"""What pyproject.toml cannot say: the README of a package index, whose pages the links into docs/ do not reach."""

import re
from pathlib import Path

from setuptools import setup

RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)#]+)[^)]*\)")


def index_readme(text: str) -> str:
    """The README with the path in place of each link to a file; they are installed beside the package."""
    return RELATIVE_LINK.sub(lambda link: link[1] if link[1] == link[2] else f"{link[1]} (`{link[2]}`)", text)


if __name__ == "__main__":
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(long_description=index_readme(readme), long_description_content_type="text/markdown")
