"""Add the address of the repository before a build: `python .ci/address.py https://HOST/OWNER/NAME
TAG`.

The sources contain no address. This script makes the links and pictures of README.md absolute,
because a package index shows the README outside the repository, and adds `[project.urls]` to
pyproject.toml.
"""

import re
import sys
from pathlib import Path


def main(address: str, tag: str) -> None:
    """Rewrite README.md and pyproject.toml in the current folder."""
    readme, project = Path("README.md"), Path("pyproject.toml")
    text = readme.read_text("utf-8")
    text = re.sub(
        r"(!\[[^\]]*\]\()(?![a-z]+:|#)([^)]+)", rf"\g<1>{address}/raw/{tag}/\g<2>", text
    )
    text = re.sub(
        r"(?<!!)(\]\()(?![a-z]+:|#)([^)]+)", rf"\g<1>{address}/blob/{tag}/\g<2>", text
    )
    readme.write_text(text, "utf-8")
    urls = {
        "Repository": address,
        "Documentation": f"{address}/tree/{tag}/docs",
        "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    project.write_text(
        f"{project.read_text('utf-8')}\n[project.urls]\n{table}", "utf-8"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
