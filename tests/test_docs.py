"""The pages show what is: examples and commands are run, links lead somewhere, each error text has
its page.
"""

import doctest
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from ampsim.cli import COMMANDS, build
from ampsim.runs.read.error_texts import error_id_in, error_texts

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: str, language: str) -> list[str]:
    return [
        text
        for name, text in FENCE.findall((ROOT / page).read_text())
        if name == language
    ]


def runs(page: str) -> list[tuple[str, str]]:
    """Return each command of a page's console blocks with the output that is shown below it."""
    return re.findall(
        r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(blocks(page, "console")), re.MULTILINE
    )


WITH_EXAMPLES = [page for page in PAGES if ">>> " in (ROOT / page).read_text()]
WITH_RUNS = [page for page in PAGES if runs(page)]


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_examples_are_run(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in re.findall(r">>> import (torch|jax)", (ROOT / page).read_text()):
        pytest.importorskip(
            package, reason=f"pip install -c constraints.txt 'ampsim[{package}]'"
        )
    from ampsim.testing import check_scaler

    monkeypatch.setitem(check_scaler.__kwdefaults__, "examples", 10)
    result = doctest.testfile(
        str(ROOT / page), module_relative=False, optionflags=doctest.ELLIPSIS
    )
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize("page", WITH_RUNS)
def test_shown_output_matches_commands(page: str, tmp_path: Path) -> None:
    shutil.copytree(DOCS / "examples", tmp_path, dirs_exist_ok=True)
    (tmp_path / "docs").symlink_to(DOCS)
    command = tmp_path / "bin" / "ampsim"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ampsim "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    for typed, shown in runs(page):
        done = subprocess.run(  # noqa: S602
            typed,
            shell=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        assert doctest.OutputChecker().check_output(shown, said, doctest.ELLIPSIS), (
            f"$ {typed}\n{said}"
        )


def test_readme_shows_lint_and_explain() -> None:
    assert "README.md" in WITH_RUNS
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options_exist(page: str) -> None:
    lines = [line for text in blocks(page, "sh") for line in text.splitlines()]
    asked = [
        line.partition("#")[0].split() for line in lines if re.match(r"ampsim ", line)
    ]
    for _, name, *words in asked:
        assert name in COMMANDS or name.startswith("--"), f"ampsim {name}"
        known = options(name) if name in COMMANDS and name != "lint" else set()
        own = words[: words.index("--")] if "--" in words else words
        unknown = [
            word
            for word in own
            if word.startswith("-") and word != "-" and word not in known
        ]
        assert name == "lint" or unknown == [], (
            f"{page}: ampsim {name} {' '.join(words)}"
        )


def options(name: str) -> set[str]:
    """Return every option of a command, and of the commands in it."""
    group = typer.main.get_command(build([name]))
    command = group.commands[name]  # type: ignore[attr-defined]
    commands = [command, *getattr(command, "commands", {}).values()]
    return {
        option
        for each in commands
        for parameter in each.params
        for option in parameter.opts
    }


def slugs(path: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    text = FENCE.sub("", path.read_text())
    titles = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    ]
    return {
        re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())
        for title in titles
    }


@pytest.mark.parametrize(
    "page",
    [*PAGES, "CONTRIBUTING.md", "ampsim/jax/loops.md"],
)
def test_links_lead_to_files_and_headings(page: str) -> None:
    path = ROOT / page
    for link in LINK.findall(FENCE.sub("", path.read_text())):
        if ":" in link.split("/")[0]:
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in slugs(target), f"{page}: {link}"


def test_workflow_gives_inputs_of_the_action() -> None:
    yaml = pytest.importorskip("yaml", reason="pip install -c constraints.txt pyyaml")
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    [workflow] = blocks("docs/how-to/ci.md", "yaml")
    steps = yaml.safe_load(workflow)["jobs"]["scaler"]["steps"]
    calls = [step["with"] for step in steps if "ampsim@" in step.get("uses", "")]
    assert len(calls) == 2
    assert all(call.keys() <= inputs.keys() for call in calls)


def test_each_known_error_has_a_page() -> None:
    pages = [path for path in (DOCS / "errors").glob("*.md") if path.name != "index.md"]
    index = (DOCS / "errors" / "index.md").read_text()
    titles = {
        path.read_text().partition("\n")[0].removeprefix("# "): path for path in pages
    }
    for row in error_texts():
        [title] = [title for title in titles if error_id_in(title) == row["id"]]
        assert titles[title].name == f"{row['id']}.md"
        assert f"[{title}]({row['id']}.md)" in index
    assert len(pages) == len(error_texts())


# ---------------------------------------------------------------------------------------------------------
# the site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install -c constraints.txt --group docs")
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "-f",
        ".ci/mkdocs.yml",
        "-d",
        str(folder),
    ]
    done = subprocess.run(  # noqa: S603
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.deep
def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        for link in re.findall(r'href="([^"#:]+)(?:#[^"]*)?"', path.read_text()):
            assert path.name == "404.html" or (path.parent / link).exists(), (
                f"{path.relative_to(site)}: {link}"
            )
