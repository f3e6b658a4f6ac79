"""Tell a package where its repository is: `python .ci/address.py https://HOST/OWNER/NAME TAG`, in what is to be built.

Whoever publishes knows the address, the sources do not. The links and pictures of README.md become absolute, as an
index of packages shows them, and `[project.urls]` is added.
"""

import re
import sys
from pathlib import Path


def main(address: str, tag: str) -> None:
    """Rewrite README.md and pyproject.toml here."""
    readme, project = Path("README.md"), Path("pyproject.toml")
    text = readme.read_text("utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:|#)([^)]+)", rf"\g<1>{address}/raw/{tag}/\g<2>", text)
    text = re.sub(r"(?<!!)(\]\()(?![a-z]+:|#)([^)]+)", rf"\g<1>{address}/blob/{tag}/\g<2>", text)
    readme.write_text(text, "utf-8")
    urls = {
        "Repository": address,
        "Documentation": f"{address}/tree/{tag}/docs",
        "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    project.write_text(f"{project.read_text('utf-8')}\n[project.urls]\n{table}", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
