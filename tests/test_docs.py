"""What the documents name is there."""

import re

import pytest
from redis import Redis

from support.server import REPOSITORY

DOCUMENTS = [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").glob("*.md"))]

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)


def test_a_test_that_a_document_names_exists() -> None:
    named = {
        match.groups()
        for document in DOCUMENTS
        for match in re.finditer(r"(test_\w+\.py)::(test_\w+)", document.read_text())
    }
    assert len(named) > 40
    for file, test in sorted(named):
        source = (REPOSITORY / "tests" / file).read_text()
        assert f"\ndef {test}(" in source, f"{file}::{test}"


@each_document
def test_a_file_that_a_document_links_to_exists(document) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_the_calls_that_replace_others_are_calls(redis: Redis) -> None:
    blocks = re.findall(r"```\n(.*?)```", (REPOSITORY / "docs/migrating.md").read_text(), re.DOTALL)
    calls = re.findall(r"(?:^|→\s+)(RL\..+)$", "\n".join(blocks), re.MULTILINE)
    assert len(calls) > 10
    for call in calls:
        assert redis.execute_command(*call.split()), call
