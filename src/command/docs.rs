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
const UPTO: Arg = Arg::literal(c"upto", c"UPTO");
const FORCE: Arg = Arg::literal(c"force", c"FORCE");
const MAXWAIT: Arg = Arg::new(c"maxwait", Shape::Word).after(c"MAXWAIT");
const MODE: Arg = Arg::new(c"mode", Shape::OneOf(&[UPTO, FORCE])).optional();
const MODE_OR_WAIT: Arg = Arg::new(c"mode", Shape::OneOf(&[UPTO, FORCE, MAXWAIT])).optional();

const TOKEN_BUCKET_NAME: Arg = Arg::literal(c"algorithm", c"TOKENBUCKET");
const LEAKY_BUCKET_NAME: Arg = Arg::literal(c"algorithm", c"LEAKYBUCKET");
const FIXED_NAME: Arg = Arg::literal(c"algorithm", c"FIXED");
const SLIDING_NAME: Arg = Arg::literal(c"algorithm", c"SLIDING");

const SPEC: Arg = Arg::new(
    c"spec",
    Shape::OneOf(&[
        Arg::new(
            c"token-bucket",
            Shape::Block(&[TOKEN_BUCKET_NAME, CAPACITY, REFILL, PERIOD, COST, MODE_OR_WAIT]),
        ),
        Arg::new(c"leaky-bucket", Shape::Block(&[LEAKY_BUCKET_NAME, CAPACITY, LEAK, PERIOD, COST, MODE])),
        Arg::new(c"fixed", Shape::Block(&[FIXED_NAME, LIMIT, WINDOW, ALIGNED, COST, MODE])),
        Arg::new(c"sliding", Shape::Block(&[SLIDING_NAME, LIMIT, WINDOW, COST, MODE])),
    ]),
);

/// Of RL.TOKENBUCKET.
pub const TOKEN_BUCKET: &[Arg] = &[KEY, CAPACITY, REFILL, PERIOD, COST, MODE_OR_WAIT];
/// Of RL.LEAKYBUCKET.
pub const LEAKY_BUCKET: &[Arg] = &[KEY, CAPACITY, LEAK, PERIOD, COST, MODE];
/// Of RL.FIXED.
pub const FIXED: &[Arg] = &[KEY, LIMIT, WINDOW, ALIGNED, COST, MODE];
/// Of RL.SLIDING.
pub const SLIDING: &[Arg] = &[KEY, LIMIT, WINDOW, COST, MODE];
/// Of RL.TAKE and RL.PEEK.
pub const TAKE: &[Arg] = &[KEY, SPEC];
/// Of RL.EFFECT.
pub const EFFECT: &[Arg] =
    &[Arg::new(c"data", Shape::Block(&[KEY, Arg::new(c"effect", Shape::Word)])).multiple()];
