/** Rate limits in Redis and Valkey, decided by the redis-ratelimit module. */

export { network, type NetworkOptions } from "./address.js";
export { BoundLimit } from "./bound.js";
export type {
  AcquireOptions,
  Call,
  CallOptions,
  Keyed,
  Once,
  PeekOptions,
  TakeOptions,
} from "./calls.js";
export type { Client, IoredisClient, NodeRedisClient, NodeRedisCluster } from "./clients.js";
export type { DecisionData } from "./decision-data.js";
export { Decision, DeniedError } from "./decision.js";
export {
  CallError,
  FullError,
  LeaseLostError,
  NoPolicyError,
  RateLimitError,
  SetupError,
  UnavailableError,
} from "./errors.js";
export { denial, fields, violated, type Denial, type FieldOptions } from "./headers.js";
export { Lease, type LeaseOptions } from "./lease.js";
export { Limiter } from "./limiter.js";
export {
  ban,
  concurrency,
  fixed,
  leakyBucket,
  policy,
  sketch,
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
  type PolicyLimit,
  type PolicyOptions,
  type SketchOptions,
  type SlidingOptions,
} from "./limits.js";
export type { LocalOptions } from "./local.js";
export { ManualClock } from "./memory/clock.js";
export type { LimiterOptions } from "./options.js";
export {
  Policies,
  type PolicyCounts,
  type PolicyDeleteOptions,
  type PolicyEntry,
  type PolicyInfo,
  type PolicyScale,
  type PolicyStepOptions,
  type PolicySetOptions,
} from "./policies.js";
export { rate, type LimitOrRate, type Limits } from "./rates.js";
export { specOf } from "./keys.js";
export { UNLIMITED } from "./request-keys.js";
export { Units, type UnitsOptions } from "./units.js";
export { zoneOffset } from "./zones.js";
