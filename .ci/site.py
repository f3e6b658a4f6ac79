"""Add files from outside docs/ to the site: the README as first page, guides of packages, figures, and HTML pages.

Links in the pages are relative to the repository, so that they also work there. These hooks rewrite the links for the
site. A link to a file that is not on the site, such as source code, becomes plain text.
"""

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SHOWN = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ampsim/testing/MAINTAINERS.md", "ampsim/jax/loops.md",
    "ampsim/runs/record/examples.md", "experiments/data/README.md", "figures/*.md", "figures/*.svg", "figures/*.png",
    "figures/*.html", "paper/ampsim.pdf",
)  # fmt: skip
LINK = re.compile(r"(?<!`)\[((?:[^\[\]]|\[[^\]]*\]\([^)]*\)|!\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files in `SHOWN` to the site, under their paths in the repository."""
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            if path.name != "conformance_page.html":
                name = (
                    "index.md" if path == ROOT / "README.md" else path.relative_to(ROOT).as_posix()
                )
                files.append(File.generated(config, name, abs_src_path=str(path)))
    for asset in ("iframe-worker.js", "site.css"):
        files.append(
            File.generated(config, f"assets/{asset}", abs_src_path=str(ROOT / ".ci" / asset))
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
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
        if files.get_file_from_path(name) is None:
            return text
        return (
            f"[{text}]({os.path.relpath(name, str(PurePosixPath(source).parent))}{hashed}{anchor})"
        )

    return LINK.sub(rewrite, markdown) + (codes() if source == "lint/README.md" else "")


def codes() -> str:
    """Return a Markdown list of the pages of all lint codes."""
    pages = sorted((ROOT / "docs" / "lint").glob("AMP*.md"))
    titles = {
        path.name: path.read_text("utf-8").partition("\n")[0].removeprefix("# ") for path in pages
    }
    return "\n\n## All codes\n\n" + "".join(
        f"- [{title}]({name})\n" for name, title in titles.items()
    )
