"""links.py DIRECTORY: checks that every relative link of the Markdown files below it leads to a file or directory below it."""

import pathlib
import re
import sys


def dead(root):
    """The links that lead nowhere, as `PAGE: TARGET`."""
    root = root.resolve()
    for page in sorted(root.rglob("*.md")):
        text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
            path = target.partition("#")[0]
            if re.match(r"[a-z]+:", target) or not path:
                continue
            file = (page.parent / path).resolve()
            if not (file.exists() and file.is_relative_to(root)):
                yield f"{page.relative_to(root)}: {target}"


if __name__ == "__main__":
    found = list(dead(pathlib.Path(sys.argv[1])))
    sys.exit("dead links:\n" + "\n".join(found) if found else 0)
