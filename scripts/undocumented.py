"""Fail for what is pub and has no doc: undocumented.py, with cargo on the PATH and what it needs.

rustc's missing_docs asks only for what is reachable from outside, and from outside of a cdylib
nothing is. Clippy's missing_docs_in_private_items asks for each field and constant of everybody's
own, too, many of which a name explains. So that one is asked, and of its answers those count that
are about what other files may use.
"""

import json
import subprocess
import sys

LINT = "clippy::missing_docs_in_private_items"
CLIPPY = ["cargo", "clippy", "--workspace", "--locked", "--quiet", "--message-format=json"]


def main() -> None:
    told = subprocess.run(
        [*CLIPPY, "--", "--cap-lints=warn", f"--warn={LINT}"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    messages = (line["message"] for line in map(json.loads, told.splitlines()) if "message" in line)
    answers = [message for message in messages if (message["code"] or {}).get("code") == LINT]
    # Else it has not been asked: what private items have no doc is many.
    if not answers:
        sys.exit(f"{LINT} found nothing at all")
    undocumented = [
        f"{span['file_name']}:{span['line_start']}: {line.strip()}"
        for answer in answers
        for span in answer["spans"]
        if (line := span["text"][0]["text"]).lstrip().startswith("pub")
    ]
    if undocumented:
        sys.exit("\n".join(["no doc:", *undocumented]))


if __name__ == "__main__":
    main()
