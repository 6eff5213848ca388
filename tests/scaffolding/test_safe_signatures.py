"""No safe function takes a raw pointer, as only the contract of an unsafe function can make it
valid.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FUNCTION = re.compile(
    r"(?P<before>[^\n]*)\bfn (?P<name>\w+)[^;{(]*\((?P<arguments>[^{;]*?)\)\s*(->|\{|where)"
)
# Functions that compare pointers without dereferencing them.
ALLOWED = {"src/redis/native_type.rs": {"kind", "is"}}


def safe_functions_with_pointers(source: str) -> set[str]:
    # The arguments of a closure are not arguments of the function that takes the closure.
    source = re.sub(r"impl Fn(Once|Mut)?\([^)]*\)", "impl Fn", source)
    return {
        match["name"]
        for match in FUNCTION.finditer(source)
        if "unsafe" not in match["before"] and re.search(r"\*(mut|const) ", match["arguments"])
    }


def test_safe_functions_take_no_raw_pointers() -> None:
    found = {}
    for path in sorted(ROOT.glob("src/**/*.rs")):
        name = str(path.relative_to(ROOT))
        functions = safe_functions_with_pointers(path.read_text()) - ALLOWED.get(name, set())
        if functions:
            found[name] = functions
    assert found == {}


def test_safe_function_with_a_pointer_is_found() -> None:
    lines = [
        "pub fn one(a: u8, b: *mut c_void) -> u8 {}",
        "unsafe fn two(b: *mut c_void) {}",
        "fn three(a: &u8) {}",
    ]
    source = "\n".join(lines)
    assert safe_functions_with_pointers(source) == {"one"}
