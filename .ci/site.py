"""Add files from outside docs/ to the site: the README as first page, guides of packages, figures,
and HTML pages.

Links in the pages are relative to the repository, so that they also work there. These hooks rewrite
the links for the site. A link to a file that is not on the site, such as source code, becomes plain
text.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from ampsim.cli import app
from ampsim.lint.engine import RULES

ROOT = Path(__file__).parents[1]
SHOWN = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ampsim/jax/loops.md",
    "ampsim/runs/record/examples.md", "experiments/data/README.md", "figures/*.md", "figures/*.svg", "figures/*.png",
    "figures/*.html", "paper/ampsim.pdf",
)  # fmt: skip
LINK = re.compile(
    r"(?<!`)\[((?:[^\[\]]|\[[^\]]*\]\([^)]*\)|!\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files in `SHOWN` to the site, under their paths in the repository."""
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            if path.name != "conformance_page.html":
                name = (
                    "index.md"
                    if path == ROOT / "README.md"
                    else path.relative_to(ROOT).as_posix()
                )
                files.append(File.generated(config, name, abs_src_path=str(path)))
    for asset in ("iframe-worker.js", "site.css"):
        files.append(
            File.generated(
                config, f"assets/{asset}", abs_src_path=str(ROOT / ".ci" / asset)
            )
        )
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Rewrite links to files of the repository; a link without a page on the site becomes text."""
    source = page.file.src_uri
    shown = next(
        (path for path in (ROOT / "docs" / source, ROOT / source) if path.exists()),
        ROOT / "README.md",
    )
    here = shown.parent.relative_to(ROOT).as_posix()

    def rewrite(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        if "](" in text:
            text = LINK.sub(rewrite, text)
        if ":" in target.split("/")[0] or target.startswith("#"):
            return f"[{text}]({target})"
        path, hashed, anchor = target.partition("#")
        wanted = os.path.normpath(PurePosixPath(here, path))
        name = "index.md" if wanted == "README.md" else wanted.removeprefix("docs/")
        found = files.get_file_from_path(name)
        if found is None or found.inclusion.is_excluded():
            return text
        return f"[{text}]({os.path.relpath(name, str(PurePosixPath(source).parent))}{hashed}{anchor})"

    append = APPENDED.get(source)
    return LINK.sub(rewrite, markdown) + (append() if append else "")


def rules() -> str:
    """Return a Markdown table of the lint rules."""
    rows = ["| code | name | severity | what it does |", "|---|---|---|---|"]
    for code, rule in RULES.items():
        rows.append(
            f"| [{code}]({code}.md) | {rule.name} | {rule.severity} | {rule.what} |"
        )
    return "\n\n## Rules\n\n" + "\n".join(rows) + "\n"


def commands() -> str:
    """Return the arguments and options of every command, in Markdown."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="ampsim")
    return (
        "\n\n## " + text.partition("\n## ")[2]
    )  # the page itself introduces the commands


APPENDED: Mapping[str, Callable[[], str]] = {
    "lint/README.md": rules,
    "reference/commands.md": commands,
}
