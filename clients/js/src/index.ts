/** Rate limits in Redis and Valkey, decided by the redis-ratelimit module. */

export { network } from "./address.js";
export type { AcquireOptions, Call, CallOptions, Keyed, Once, PeekOptions } from "./calls.js";
export type { Client, IoredisClient, NodeRedisClient, NodeRedisCluster } from "./clients.js";
export type { Decision } from "./decision.js";
export {
  CallError,
  DeniedError,
  FullError,
  LeaseLostError,
  NoPolicyError,
  RateLimitError,
  SetupError,
  UnavailableError,
} from "./errors.js";
export { denial, fields, violated, type Denial } from "./headers.js";
export { Lease, type LeaseOptions } from "./lease.js";
export { Limiter, Policies, type LimiterOptions, type TakeOptions } from "./limiter.js";
export {
  ban,
  concurrency,
  fixed,
  leakyBucket,
  policy,
  sliding,
  slidingLog,
  tokenBucket,
  type Ban,
  type CalendarWindow,
  type ConcurrencyLimit,
  type ConcurrencyOptions,
  type Duration,
  type FixedOptions,
  type KnownLimit,
  type Limit,
  type LimitOptions,
  type Limits,
  type PolicyLimit,
  type SlidingOptions,
} from "./limits.js";
export type { LocalOptions } from "./local.js";
export type {
  PolicyCounts,
  PolicyEntry,
  PolicyInfo,
  PolicyScale,
  PolicySetOptions,
} from "./policies.js";
export { Units, type UnitsOptions } from "./units.js";
