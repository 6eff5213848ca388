/**
 * The offset of a time zone is the same all year, and matches clients/zones.json, the table of all
 * packages.
 */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { test } from "node:test";

import { zoneOffset } from "redis-ratelimit-client";

interface Cases {
  zones: { zone: string; year: number; offset: string }[];
  refused: string[];
}

const CASES = JSON.parse(
  readFileSync(resolve(import.meta.dirname, "../../zones.json"), "utf8"),
) as Cases;

for (const { zone, year, offset } of CASES.zones) {
  test(`offset of ${zone} in ${year} is the smallest in the year`, () => {
    for (let day = 0; day < 365; day += 5) {
      assert.equal(zoneOffset(zone, new Date(Date.UTC(year, 0, 1 + day))), offset);
    }
  });
}

test("unknown zone is rejected", () => {
  for (const zone of CASES.refused) assert.throws(() => zoneOffset(zone), /Europe\/Berlin/);
});
