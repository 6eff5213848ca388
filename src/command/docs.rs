//! The arguments of every command, for COMMAND DOCS.

use crate::redis::command::{Arg, Shape};

const KEY: Arg = Arg::new(c"key", Shape::Key);
const LIMIT: Arg = Arg::new(c"limit", Shape::Number);
const WINDOW: Arg = Arg::new(c"window", Shape::Word);
const CAPACITY: Arg = Arg::new(c"capacity", Shape::Number);
const REFILL: Arg = Arg::new(c"refill", Shape::Number);
const LEAK: Arg = Arg::new(c"leak", Shape::Number);
const PERIOD: Arg = Arg::new(c"period", Shape::Word);
const COST: Arg = Arg::new(c"cost", Shape::Number).after(c"COST").optional();
const ALIGNED: Arg = Arg::literal(c"aligned", c"ALIGNED").optional();
const STRICT: Arg = Arg::literal(c"strict", c"STRICT").optional();
const TTL: Arg = Arg::new(c"ttl", Shape::Word);
const HOLDER: Arg = Arg::new(c"holder", Shape::Word);
const NUMKEYS: Arg = Arg::new(c"numkeys", Shape::Whole);
const UPTO: Arg = Arg::literal(c"upto", c"UPTO");
const FORCE: Arg = Arg::literal(c"force", c"FORCE");
const MAXWAIT: Arg = Arg::new(c"maxwait", Shape::Word).after(c"MAXWAIT");
const MODE: Arg = Arg::new(c"mode", Shape::OneOf(&[UPTO, FORCE])).optional();
const MODE_OR_WAIT: Arg = Arg::new(c"mode", Shape::OneOf(&[UPTO, FORCE, MAXWAIT])).optional();
const FORCE_OR_WAIT: Arg = Arg::new(c"mode", Shape::OneOf(&[FORCE, MAXWAIT])).optional();

const TOKEN_BUCKET_NAME: Arg = Arg::literal(c"algorithm", c"TOKENBUCKET");
const LEAKY_BUCKET_NAME: Arg = Arg::literal(c"algorithm", c"LEAKYBUCKET");
const FIXED_NAME: Arg = Arg::literal(c"algorithm", c"FIXED");
const SLIDING_NAME: Arg = Arg::literal(c"algorithm", c"SLIDING");
const LOG_NAME: Arg = Arg::literal(c"algorithm", c"SLIDINGLOG");
const CONCURRENCY_NAME: Arg = Arg::literal(c"algorithm", c"CONCURRENCY");

/// A spec of any algorithm, with what one may have behind its cost, and what a token bucket may.
macro_rules! spec {
    ($mode:expr, $mode_or_wait:expr) => {
        Arg::new(
            c"spec",
            Shape::OneOf(&[
                Arg::new(
                    c"token-bucket",
                    Shape::Block(&[TOKEN_BUCKET_NAME, CAPACITY, REFILL, PERIOD, COST, $mode_or_wait]),
                ),
                Arg::new(c"leaky-bucket", Shape::Block(&[LEAKY_BUCKET_NAME, CAPACITY, LEAK, PERIOD, COST, $mode])),
                Arg::new(c"fixed", Shape::Block(&[FIXED_NAME, LIMIT, WINDOW, ALIGNED, COST, $mode])),
                Arg::new(c"sliding", Shape::Block(&[SLIDING_NAME, LIMIT, WINDOW, STRICT, COST, $mode])),
                Arg::new(c"sliding-log", Shape::Block(&[LOG_NAME, LIMIT, WINDOW, COST, $mode])),
                Arg::new(c"concurrency", Shape::Block(&[CONCURRENCY_NAME, LIMIT, TTL, HOLDER, COST])),
            ]),
        )
    };
}
const SPEC: Arg = spec!(MODE, MODE_OR_WAIT);
/// Several pass all or none: none has UPTO.
const SPEC_OF_SEVERAL: Arg = spec!(FORCE.optional(), FORCE_OR_WAIT);

/// Of RL.TOKENBUCKET.
pub const TOKEN_BUCKET: &[Arg] = &[KEY, CAPACITY, REFILL, PERIOD, COST, MODE_OR_WAIT];
/// Of RL.LEAKYBUCKET.
pub const LEAKY_BUCKET: &[Arg] = &[KEY, CAPACITY, LEAK, PERIOD, COST, MODE];
/// Of RL.FIXED.
pub const FIXED: &[Arg] = &[KEY, LIMIT, WINDOW, ALIGNED, COST, MODE];
/// Of RL.SLIDING.
pub const SLIDING: &[Arg] = &[KEY, LIMIT, WINDOW, STRICT, COST, MODE];
/// Of RL.SLIDINGLOG.
pub const LOG: &[Arg] = &[KEY, LIMIT, WINDOW, COST, MODE];
/// Of RL.ACQUIRE.
pub const ACQUIRE: &[Arg] = &[KEY, LIMIT, TTL, HOLDER, COST];
/// Of RL.RELEASE.
pub const RELEASE: &[Arg] = &[KEY, HOLDER.multiple()];
/// Of RL.MTAKE and RL.MPEEK.
pub const MULTI: &[Arg] = &[NUMKEYS, KEY.multiple(), SPEC_OF_SEVERAL.multiple()];
/// Of RL.INFO.
pub const INFO: &[Arg] = &[KEY];
/// Of RL.THROTTLE and CL.THROTTLE.
pub const THROTTLE: &[Arg] = &[
    KEY,
    Arg::new(c"max_burst", Shape::Whole),
    Arg::new(c"count", Shape::Whole),
    Arg::new(c"period", Shape::Whole),
    Arg::new(c"quantity", Shape::Whole).optional(),
];
/// Of RL.TAKE and RL.PEEK.
pub const TAKE: &[Arg] = &[KEY, SPEC];
/// Of RL.EFFECT.
pub const EFFECT: &[Arg] = &[Arg::new(c"data", Shape::Block(&[KEY, Arg::new(c"effect", Shape::Word)])).multiple()];
