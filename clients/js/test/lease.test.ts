/** Leases and units. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { after, test, type TestContext } from "node:test";

import { Redis } from "ioredis";
import {
  DeniedError,
  LeaseLostError,
  Limiter,
  UnavailableError,
  concurrency,
  fixed,
  slidingLog,
  tokenBucket,
} from "redis-ratelimit-client";

import { calls, clockedServerFor, lookInto, serverFor, until } from "./support/server.js";

const server = await serverFor({ after });
const redis = new Redis(server.url);
after(() => redis.disconnect());
/** Options with a long timeout, so that a slow machine causes no outage. */
const LONG_TIMEOUT = { timeout: 30, onOutage: "raise" } as const;
const limiter = new Limiter(redis, LONG_TIMEOUT);

/** Returns the number of leases of a key. */
const leaseCount = async (key: string) =>
  ((await redis.call("RL.PEEK", key, "CONCURRENCY", "10", "1h", "nobody")) as number[])[2]! * -1 +
  10;

test("lease denies others until it is released", async () => {
  const pool = concurrency(2, "1h");
  {
    await using one = await limiter.lease("pool", pool);
    await using _two = await limiter.lease("pool", pool);
    await assert.rejects(limiter.lease("pool", pool), (error) => {
      assert.ok(error instanceof DeniedError);
      assert.ok(error.decision.wait! > 3500);
      return true;
    });
    assert.equal(await leaseCount("pool"), 2);
    assert.equal(one.signal.aborted, false);
  }
  assert.equal(await leaseCount("pool"), 0);
});

/** Creates a limiter whose timers and clock the test moves. */
function limiterWithManualTime(test: TestContext, client: Redis) {
  let now = 0;
  const limiter = new Limiter(client, {
    ...LONG_TIMEOUT,
    resends: 0,
    now: () => now,
    log: () => {},
  });
  test.mock.timers.enable({ apis: ["setTimeout"] });
  const pass = (ms: number) => {
    now += ms;
    test.mock.timers.tick(ms);
  };
  return { limiter, pass };
}

test("lease is renewed while it is held", async (test) => {
  const { server, clock } = await clockedServerFor(test);
  const admin = lookInto(test, server);
  const { limiter, pass } = limiterWithManualTime(test, admin);
  const pool = concurrency(1, "30s");
  const lease = await limiter.lease("pool", pool);
  for (let index = 0; index < 6; index++) {
    clock.advance(10_000);
    pass(10_000);
    // The server replies to the renewal, which was sent before, first.
    await assert.rejects(limiter.lease("pool", pool), ({ decision }: DeniedError) => {
      return decision.wait === 30;
    });
  }
  assert.equal(lease.signal.aborted, false);
  await lease.release();
  clock.advance(10_000);
  pass(10_000);
  assert.equal(((await admin.call("RL.PEEK", "pool", ...pool.words, "x")) as number[])[2], 1);
});

test("fencing token is larger than earlier tokens", async () => {
  const lock = concurrency(1, "1h");
  const tokens: number[] = [];
  for (let index = 0; index < 3; index++) {
    await using lease = await limiter.lease("fenced", lock, { fence: true });
    tokens.push(lease.token!);
    const renewal = limiter.lease("fenced", lock, { holder: lease.holder, fence: true });
    assert.equal((await renewal).token, lease.token, "a renewal keeps the token");
    await assert.rejects(limiter.lease("fenced", lock, { fence: true }), DeniedError);
  }
  assert.ok(tokens[0]! > 1.7e15 && tokens[0]! < tokens[1]! && tokens[1]! < tokens[2]!);
  await using plain = await limiter.lease("fenced", lock);
  assert.equal(plain.token, undefined);
});

test("lease that had expired is lost, even if there was room", async () => {
  const lease = await limiter.lease("gap", concurrency(1, "300ms"), { fence: true });
  await redis.del("gap");
  await until(() => lease.signal.aborted);
  assert.ok(lease.signal.reason instanceof LeaseLostError);
  await until(async () => (await leaseCount("gap")) === 0);
});

test("holder is notified of a lost lease", async () => {
  const pool = concurrency(1, "300ms");
  const lease = await limiter.lease("lost", pool);
  await redis.del("lost");
  await redis.call("RL.ACQUIRE", "lost", "1", "1h", "somebody");
  await until(() => lease.signal.aborted);
  assert.ok(lease.signal.reason instanceof LeaseLostError);
  await lease.release();
  // A lost lease is not released, as another holder has it.
  assert.equal(await leaseCount("lost"), 1);
});

test("lease that cannot be renewed is lost when it expires", async (test) => {
  const away = await serverFor(test);
  const client = new Redis(away.port, { enableOfflineQueue: false, retryStrategy: null });
  client.on("error", () => {});
  test.after(() => client.disconnect());
  await once(client, "ready");
  const { limiter, pass } = limiterWithManualTime(test, client);
  const lease = await limiter.lease("pool", concurrency(1, "30s"));
  const closed = once(client, "end");
  await away.stop();
  await closed;
  for (let index = 0; index < 3; index++) {
    assert.equal(lease.signal.aborted, false);
    pass(9_999);
    await assert.rejects(limiter.check(), UnavailableError);
  }
  pass(2);
  assert.equal(lease.signal.aborted, false);
  pass(1);
  assert.ok(lease.signal.reason instanceof LeaseLostError);
});

test("lock denies a second call of one holder", async () => {
  const lock = concurrency(1, "1h");
  await using _held = await limiter.lease("lock", lock, { holder: "nightly", nx: true });
  await assert.rejects(limiter.lease("lock", lock, { holder: "nightly", nx: true }), DeniedError);
});

test("units of two processes: exactly the limit, few calls, and the rest is given back", async (test) => {
  const { server } = await clockedServerFor(test);
  const admin = lookInto(test, server);
  const limits = slidingLog(1000, "1h");
  const processes = [1, 2].map(() =>
    new Limiter(admin, LONG_TIMEOUT).units("hot", limits, { peers: 2, keep: "1h" }),
  );
  const take = async (index: number) => (await processes[index % 2]!.take()).allowed;
  const some = await Promise.all(Array.from({ length: 330 }, (_, index) => take(index)));
  assert.ok(some.every(Boolean));
  // Each has requested a unit for the first take, and then 164 for the waiting takes.
  assert.equal(await calls(admin), 4);
  await Promise.all(processes.map((units) => units.close()));
  const remaining = (await admin.call("RL.PEEK", "hot", ...limits.words)) as number[];
  assert.equal(remaining[2], 1000 - 330);

  test.mock.method(Math, "random", () => 0);
  const rest = await Promise.all(Array.from({ length: 2000 }, (_, index) => take(index)));
  assert.equal(rest.filter(Boolean).length, 670);
  for (const units of processes) {
    const denied = await units.take();
    assert.equal(denied.allowed, false);
    // The longest pause, or the wait for the oldest entry.
    assert.ok(denied.wait! > 1 && denied.wait! <= 3600, `${denied.wait}`);
  }
});

test("units are given back when their time is over", async () => {
  const limits = fixed(100, "1h");
  await using units = limiter.units("kept", limits, { peers: 1, keep: "50ms" });
  for (let i = 0; i < 10; i++) await units.take();
  const remaining = async () =>
    ((await redis.call("RL.PEEK", "kept", ...limits.words)) as number[])[2];
  await until(async () => (await remaining()) === 90);
  assert.equal((await units.take()).allowed, true);
});

test("recovered units are not given back again", async (test) => {
  const { server, clock } = await clockedServerFor(test);
  const admin = lookInto(test, server);
  const bucket = tokenBucket(100, 100, "1m");
  const units = new Limiter(admin, LONG_TIMEOUT).units("hot", bucket, { peers: 1, keep: "1h" });
  for (let i = 0; i < 60; i++) assert.equal((await units.take()).allowed, true);
  clock.advance(30_000);
  // 50 have recovered. Had 60 been charged from the start, 10 would be used now.
  await units.close();
  const remaining = (await admin.call("RL.PEEK", "hot", ...bucket.words)) as number[];
  assert.equal(remaining[2], 90);
});

test("denied units are requested again after their wait", async (test) => {
  const { server } = await clockedServerFor(test);
  const admin = lookInto(test, server);
  let now = 0;
  const units = new Limiter(admin, { ...LONG_TIMEOUT, now: () => now }).units(
    "scarce",
    tokenBucket(10, 1, "1d"),
    { batch: 10, keep: "1h" },
  );
  for (let i = 0; i < 10; i++) assert.equal((await units.take()).remaining, 9 - i);
  const { allowed, waitMs } = await units.take();
  assert.equal(allowed, false);
  const callCount = await calls(admin);
  now += 1000;
  assert.equal((await units.take()).waitMs, waitMs! - 1000);
  assert.equal(await calls(admin), callCount);
  now += waitMs!;
  await units.take();
  assert.equal(await calls(admin), callCount + 1);
});

test("units with a cost above one, and above the limit", async () => {
  await using units = limiter.units("large", fixed(10, "1h"), { batch: 4, keep: "1h" });
  assert.equal((await units.take(3)).allowed, true);
  assert.equal((await units.take(3)).allowed, true);
  assert.equal((await units.take(3)).allowed, true);
  assert.equal((await units.take(3)).allowed, false);
  assert.deepEqual([(await units.take(11)).allowed, (await units.take(11)).wait], [false, null]);
  for (const option of [{ batch: 0 }, { peers: 0.5 }])
    assert.throws(() => limiter.units("large", fixed(10, "1h"), option), /whole number/);
});
