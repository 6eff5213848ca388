/** Callers do not share keys, and all keys of a tenant share a hash tag. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { PREFIX, keyOf, type Policy } from "../src/limits.js";
import { perUser } from "./support/limits.js";

const NAMES = ["a{b", "a(b", "a}b", "a)b", "a%7Bb", "a%257Bb", "a:b", "a", "b", "{}", "{", "}", ""];
// A name that contains another key, and names that are not valid UTF-8.
NAMES.push("%", "a}:user:b", "a b", "ä", "a\u0308", "\ud800", "%ud800", "\udc00", "\ufffd", "A");

function key(tenant: string, user: string, policy: Policy = perUser(1)): string {
  return PREFIX + keyOf(policy, { tenant, user, address: "", endpoint: "" });
}

test("no two callers share a key", () => {
  const pairs = NAMES.flatMap((tenant) => NAMES.map((user) => key(tenant, user)));
  assert.equal(new Set(pairs).size, NAMES.length ** 2);
});

test("a tenant's keys have a tag, and it is the tenant's own", () => {
  const tags = NAMES.map((tenant) => {
    const [, tag, ...rest] = key(tenant, "{}").split(/[{}]/);
    assert.equal(rest.length, 1);
    return tag!;
  });
  assert.ok(tags.every((tag) => tag.length > 0));
  assert.equal(new Set(tags).size, NAMES.length);
});

test("names are escaped as in the other examples", () => {
  // The tests of the FastAPI example have the same table.
  assert.equal(key("a{b", "ä !'()*~-_.:/@"), "rl:{a%7Bb}:user:%C3%A4%20!'()*~-_.%3A%2F%40");
  assert.equal(key("a{b", ""), "rl:{a%7Bb}:user:%");
});
