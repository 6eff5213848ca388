//! The arguments of every command, for COMMAND DOCS.

use super::rl_take::command_lines;
use crate::redis::command::{Arg, Shape};

const KEY: Arg = Arg::new(c"key", Shape::Key);
const LIMIT: Arg = Arg::new(c"limit", Shape::Number);
const WINDOW: Arg = Arg::new(c"window", Shape::Word);
const CAPACITY: Arg = Arg::new(c"capacity", Shape::Number);
const REFILL: Arg = Arg::new(c"refill", Shape::Number);
const LEAK: Arg = Arg::new(c"leak", Shape::Number);
const PERIOD: Arg = Arg::new(c"period", Shape::Word);
const COST: Arg = Arg::new(c"cost", Shape::Number).after(c"COST").optional();
const OFFSET: Arg = Arg::new(c"offset", Shape::Word).after(c"OFFSET").optional();
const ANCHOR: Arg = Arg::new(c"day", Shape::Whole).after(c"ANCHOR").optional();
const ALIGNED: Arg =
    Arg::new(c"alignment", Shape::Block(&[Arg::literal(c"aligned", c"ALIGNED"), OFFSET, ANCHOR])).optional();
const STRICT: Arg = Arg::literal(c"strict", c"STRICT").optional();
const TTL: Arg = Arg::new(c"ttl", Shape::Word);
const HOLDER: Arg = Arg::new(c"holder", Shape::Word);
/// Any bytes.
const ITEM: Arg = Arg::new(c"item", Shape::Word);
const SIZE: Arg = Arg::new(c"size", Shape::Word).after(c"SIZE").optional();
/// The item of a policy's sketch.
const ITEM_OF_POLICY: Arg = Arg::new(c"item", Shape::Word).after(c"ITEM").optional();
const NUMKEYS: Arg = Arg::new(c"numkeys", Shape::Whole);
const UPTO: Arg = Arg::literal(c"upto", c"UPTO");
const FORCE: Arg = Arg::literal(c"force", c"FORCE");
const MAXWAIT: Arg = Arg::new(c"maxwait", Shape::Word).after(c"MAXWAIT");
const MODE: Arg = Arg::new(c"mode", Shape::OneOf(&[UPTO, FORCE])).optional();
const MODE_OR_WAIT: Arg = Arg::new(c"mode", Shape::OneOf(&[UPTO, FORCE, MAXWAIT])).optional();
const FORCE_OR_WAIT: Arg = Arg::new(c"mode", Shape::OneOf(&[FORCE, MAXWAIT])).optional();
/// An amount, or a percentage.
const KEEP: Arg = Arg::new(c"keep", Shape::Word).after(c"KEEP").optional();
const AS: Arg = Arg::new(c"name", Shape::Word).after(c"AS").optional();
const NX: Arg = Arg::literal(c"nx", c"NX").optional();
const BLOCK: Arg = Arg::new(c"block", Shape::Word).after(c"BLOCK").optional();
const FENCE: Arg = Arg::literal(c"fence", c"FENCE").optional();
const ID: Arg = Arg::new(c"id", Shape::Word);
const ONCE: Arg = Arg::new(c"once", Shape::Block(&[ID, TTL])).after(c"ONCE");
const SETTLE: Arg = Arg::new(c"settle", Shape::Block(&[ID, Arg::new(c"amount", Shape::Number)])).after(c"SETTLE");
const COUNTS: Arg = Arg::new(c"counts", Shape::OneOf(&[ONCE, SETTLE])).optional();
const EACH: Arg = Arg::literal(c"each", c"EACH").optional();
const BAN_RULE: Arg = Arg::new(
    c"ban",
    Shape::Block(&[
        Arg::new(c"strikes", Shape::Whole),
        WINDOW,
        Arg::new(c"block", Shape::Word),
        Arg::new(c"longest", Shape::Word).after(c"MAX").optional(),
    ]),
)
.after(c"BAN")
.optional();

/// The arguments of an algorithm and what stands behind them: in a call with `$mode` among the options, or `$waiting`
/// where the algorithm can wait, and perhaps with `$counts`; or in a policy.
macro_rules! spec_arguments {
    (rate [$first:expr] [$($argument:ident),+] ($mode:expr, $waiting:expr $(, $counts:expr)?)) => {
        &[$first, $($argument,)+ COST, $mode, KEEP, AS, $($counts)?]
    };
    (waits $first:tt $arguments:tt ($mode:expr, $waiting:expr $(, $counts:expr)?)) => {
        spec_arguments!(rate $first $arguments ($waiting, $waiting $(, $counts)?))
    };
    (lease [$first:expr] [$($argument:ident),+] ($mode:expr, $waiting:expr $(, $counts:expr)?)) => {
        &[$first, $($argument,)+ HOLDER, COST, KEEP, AS, NX]
    };
    (item [$first:expr] [$($argument:ident),+] ($mode:expr, $waiting:expr $(, $counts:expr)?)) => {
        &[$first, $($argument,)+ ITEM, SIZE, COST, $mode, KEEP]
    };
    (item [$first:expr] [$($argument:ident),+] policy) => {
        &[$first, $($argument,)+ SIZE, COST, SHADOW]
    };
    (lease [$first:expr] [$($argument:ident),+] policy) => {
        &[$first, $($argument,)+ COST, AS, SHADOW]
    };
    ($any:ident [$first:expr] [$($argument:ident),+] policy) => {
        &[$first, $($argument,)+ COST, AS, FORCE_OR_SHADOW]
    };
}

/// The specs of all algorithms, with what may stand for one.
macro_rules! specs {
    (
        {$place:tt $($or:expr)?}
        $($read:ident = $name:literal $word:literal, $arguments:tt $options:ident, $command:tt;)+
    ) => {
        Arg::new(
            c"spec",
            Shape::OneOf(&[
                $(Arg::new(
                    $name,
                    Shape::Block(spec_arguments!($options [Arg::literal(c"algorithm", $word)] $arguments $place)),
                ),)+
                $($or)?
            ]),
        )
    };
}

const POLICY_NAME: Arg = Arg::new(c"name", Shape::Word).after(c"POLICY");
const OR_NAME: Arg = Arg::new(c"other", Shape::Word).after(c"OR").optional().multiple();
const SPEC: Arg = command_lines!(specs, { (MODE, MODE_OR_WAIT, COUNTS) });
const PEEK_SPEC: Arg = command_lines!(specs, { (MODE, MODE_OR_WAIT, ONCE.optional()) });
/// Spec of one of several keys, which are charged all or none: it has no UPTO, and no idempotency key of its own.
const SPEC_OF_KEYS: Arg = command_lines!(specs, {
    (FORCE.optional(), FORCE_OR_WAIT)
    Arg::new(c"policy", Shape::Block(&[POLICY_NAME, OR_NAME, COST, FORCE_OR_WAIT, KEEP, ITEM_OF_POLICY]))
});

/// Limits of one key: specs, or a single policy.
macro_rules! limits {
    ($spec:expr, $counts:expr) => {
        Arg::new(
            c"limits",
            Shape::OneOf(&[
                Arg::new(c"specs", Shape::Block(&[$spec.multiple(), BAN_RULE])),
                Arg::new(
                    c"policy",
                    Shape::Block(&[POLICY_NAME, OR_NAME, COST, MODE_OR_WAIT, KEEP, $counts, EACH, ITEM_OF_POLICY]),
                ),
            ]),
        )
    };
}
const LIMITS: Arg = limits!(SPEC, COUNTS);
const PEEK_LIMITS: Arg = limits!(PEEK_SPEC, ONCE.optional());

macro_rules! of_commands {
    ({} $($read:ident = $name:literal $word:literal, $arguments:tt $options:ident, {
        $($(#[doc = $syntax:literal])+ $command:literal, arity $arity:literal, $summary:literal, $complexity:literal)?
    };)+) => {
        $($(
            $(#[doc = $syntax])+
            #[allow(non_upper_case_globals, reason = "it has the name of its algorithm")]
            pub const $read: &[Arg] = spec_arguments!($options [KEY] $arguments (MODE, MODE_OR_WAIT, COUNTS));
        )?)+
    };
}
command_lines!(of_commands, {});

/// The arguments of RL.ACQUIRE.
pub const ACQUIRE: &[Arg] = &[KEY, LIMIT, TTL, HOLDER, COST, KEEP, AS, NX, BLOCK, FENCE];
/// The arguments of RL.SKETCH.
pub const SKETCH: &[Arg] = &[KEY, ITEM, CAPACITY, REFILL, PERIOD, COST, MODE, KEEP, SIZE];
/// The arguments of RL.RELEASE.
pub const RELEASE: &[Arg] = &[KEY, HOLDER.multiple()];
/// The arguments of RL.MTAKE.
pub const MULTI: &[Arg] = &[NUMKEYS, KEY.multiple(), COST, FORCE_OR_WAIT, KEEP, COUNTS, SPEC_OF_KEYS.multiple()];
/// The arguments of RL.MPEEK.
pub const MULTI_PEEK: &[Arg] =
    &[NUMKEYS, KEY.multiple(), COST, FORCE_OR_WAIT, KEEP, ONCE.optional(), SPEC_OF_KEYS.multiple()];
/// The arguments of RL.BAN.
pub const BAN: &[Arg] = &[KEY, Arg::new(c"duration", Shape::Word)];
/// The arguments of RL.INFO.
pub const INFO: &[Arg] = &[KEY];
/// The arguments of RL.THROTTLE and CL.THROTTLE.
pub const THROTTLE: &[Arg] = &[
    KEY,
    Arg::new(c"max_burst", Shape::Whole),
    Arg::new(c"count", Shape::Whole),
    Arg::new(c"period", Shape::Whole),
    Arg::new(c"quantity", Shape::Whole).optional(),
];
/// The arguments of RL.TOP.
pub const TOP: &[Arg] = &[
    Arg::new(c"count", Shape::Whole).after(c"COUNT").optional(),
    Arg::new(c"duration", Shape::Word).after(c"SINCE").optional(),
    Arg::literal(c"reset", c"RESET").optional(),
];
/// The arguments of RL.TAKE.
pub const TAKE: &[Arg] = &[KEY, COST, MODE_OR_WAIT, KEEP, COUNTS, EACH, LIMITS];
/// The arguments of RL.PEEK.
pub const PEEK: &[Arg] = &[KEY, COST, MODE_OR_WAIT, KEEP, ONCE.optional(), EACH, PEEK_LIMITS];
const NAME: Arg = Arg::new(c"name", Shape::Word);
const SHADOW: Arg = Arg::literal(c"shadow", c"SHADOW").optional();
const FORCE_OR_SHADOW: Arg =
    Arg::new(c"enforcement", Shape::OneOf(&[FORCE, Arg::literal(c"shadow", c"SHADOW")])).optional();
const LIMIT_OF_POLICY: Arg = command_lines!(specs, { policy });
/// The arguments of RL.LIMIT.
pub const LIMIT_BY_NAME: &[Arg] = &[KEY, NAME, OR_NAME, COST, MODE_OR_WAIT, KEEP, COUNTS, EACH, ITEM_OF_POLICY];
/// The arguments of RL.DELAY.
pub const DELAY: &[Arg] = &[KEY, NAME, OR_NAME, COST, FORCE.optional(), KEEP, COUNTS, ITEM_OF_POLICY];
/// The arguments of RL.POLICYSET.
pub const POLICY_SET: &[Arg] = &[
    NAME,
    Arg::new(
        c"condition",
        Shape::OneOf(&[Arg::literal(c"nx", c"NX"), Arg::new(c"version", Shape::Whole).after(c"VERSION")]),
    )
    .optional(),
    LIMIT_OF_POLICY.multiple(),
    BAN_RULE,
];
const LASTS: Arg = Arg::new(c"duration", Shape::Word).after(c"FOR").optional();
const EVERY: Arg = Arg::new(c"interval", Shape::Word).after(c"EVERY").optional();
/// The arguments of RL.POLICYSCALE.
pub const POLICY_SCALE: &[Arg] = &[
    NAME,
    Arg::new(
        c"scale",
        Shape::OneOf(&[
            Arg::new(c"factor", Shape::Number),
            Arg::new(
                c"multiply",
                Shape::Block(&[
                    Arg::new(c"factor", Shape::Number),
                    Arg::new(c"least", Shape::Number).after(c"MIN").optional(),
                    EVERY,
                ]),
            )
            .after(c"MUL"),
            Arg::new(
                c"add",
                Shape::Block(&[
                    Arg::new(c"step", Shape::Number),
                    Arg::new(c"most", Shape::Number).after(c"MAX").optional(),
                    EVERY,
                ]),
            )
            .after(c"ADD"),
        ]),
    ),
    LASTS,
];
/// The arguments of RL.POLICYGET.
pub const POLICY_GET: &[Arg] = &[NAME];
/// The arguments of RL.POLICYLIST.
pub const POLICY_LIST: &[Arg] = &[Arg::new(c"pattern", Shape::Word).after(c"MATCH").optional()];
/// The arguments of RL.POLICYDEL.
pub const POLICY_DELETE: &[Arg] = &[Arg::new(
    c"policies",
    Shape::OneOf(&[
        Arg::new(c"policy", Shape::Block(&[NAME, Arg::new(c"version", Shape::Whole).after(c"VERSION")])),
        NAME.multiple(),
    ]),
)];
/// The arguments of RL.POLICYEFFECT.
pub const POLICY_EFFECT: &[Arg] = &[Arg::new(c"record", Shape::Word).multiple()];
/// The arguments of RL.EFFECT.
pub const EFFECT: &[Arg] = &[Arg::new(c"data", Shape::Block(&[KEY, Arg::new(c"effect", Shape::Word)])).multiple()];
