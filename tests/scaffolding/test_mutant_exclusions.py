"""Each exclusion in .cargo/mutants.toml names code that exists."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {path: path.read_text() for path in sorted(ROOT.glob("core/src/**/*.rs"))}
EXCLUDED = tomllib.loads((ROOT / ".cargo" / "mutants.toml").read_text())["exclude_re"]
# `in Type::function`, `in <impl Trait for Type>::(one|other)`, `replace Type::function -> `
FUNCTION = re.compile(
    r"(?:in|replace) (?:<impl [^>]*>::|[A-Z]\w*(?:<\w+>)?::)?\(?([a-z_|]+)\)?(?= -> |\$|$)"
)
GUARD = re.compile(r"match guard (.+) with (?:true|false)")
TYPE = re.compile(r"\b([A-Z]\w+)(?=::|>::)")


@pytest.mark.parametrize("excluded", EXCLUDED)
def test_excluded_mutant_names_existing_code(excluded: str) -> None:
    file = excluded[: excluded.index(r"\.rs") + len(r"\.rs")]
    if file.count("(") > file.count(")"):
        file = file.lstrip("(")
    texts = [text for path, text in SOURCES.items() if re.search(f"{file}$", str(path))]
    assert texts, f"no file of core/src ends in {file}"
    all_text = "".join(texts)
    for functions in FUNCTION.findall(excluded):
        for function in functions.split("|"):
            assert re.search(rf"\bfn {function}\b", all_text), f"no function {function}"
    for name in TYPE.findall(excluded):
        assert re.search(rf"\b{name}\b", all_text), f"no type {name}"
    for guard in GUARD.findall(excluded):
        code = guard.replace("\\", "")
        assert f"if {code} =>" in all_text, f"no guard {code}"
