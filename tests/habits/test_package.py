"""What a package index shows, and that the guides are installed."""

import tomllib
from importlib.util import module_from_spec, spec_from_file_location

from habits.source_tree import ROOT
from shardwise.cli.overview import guides_folder, overview_text

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
INSTALLED = PROJECT["tool"]["setuptools"]["data-files"]


def index_readme(text: str) -> str:
    spec = spec_from_file_location("setup_of_the_package", ROOT / "setup.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.index_readme(text)


def test_the_readme_of_an_index_has_no_link_that_leads_nowhere():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("](docs/") > 10
    shown = index_readme(readme)
    assert "](docs/" not in shown
    assert "](LICENSE)" not in shown
    assert (
        index_readme("[kept](https://pypi.org) but [docs/a.md](docs/a.md)") == "[kept](https://pypi.org) but docs/a.md"
    )
    assert index_readme("see [search](docs/search.md#top)") == "see search (`docs/search.md`)"


def test_every_page_of_the_guides_is_installed():
    pages = {path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".svg")}
    installed = {path for patterns in INSTALLED.values() for pattern in patterns for path in ROOT.glob(pattern)}
    assert pages <= installed


def test_help_names_the_folder_of_the_guides():
    folder = guides_folder()
    assert folder == str(ROOT / "docs")
    assert f"Guides: {folder}" in overview_text(guides=folder)


def test_the_package_says_whose_it_is_and_what_for():
    project = PROJECT["project"]
    assert project["license"] == "Apache-2.0"
    assert project["authors"]
    assert project["urls"]
    assert any(row.startswith("Intended Audience") for row in project["classifiers"])
