//! Arguments of all commands, for COMMAND DOCS.

use super::rl_take::command_lines;
use crate::redis::command::{Arg, ArgType};

const KEY: Arg = Arg::new(c"key", ArgType::Key);
const LIMIT: Arg = Arg::new(c"limit", ArgType::Number);
const WINDOW: Arg = Arg::new(c"window", ArgType::Word);
const CAPACITY: Arg = Arg::new(c"capacity", ArgType::Number);
const REFILL: Arg = Arg::new(c"refill", ArgType::Number);
const LEAK: Arg = Arg::new(c"leak", ArgType::Number);
const PERIOD: Arg = Arg::new(c"period", ArgType::Word);
const COST: Arg = Arg::new(c"cost", ArgType::Number).after(c"COST").optional();
const OFFSET: Arg = Arg::new(c"offset", ArgType::Word).after(c"OFFSET").optional();
const ANCHOR: Arg = Arg::new(c"day", ArgType::Whole).after(c"ANCHOR").optional();
const ALIGNED: Arg =
    Arg::new(c"alignment", ArgType::Block(&[Arg::literal(c"aligned", c"ALIGNED"), OFFSET, ANCHOR])).optional();
const STRICT: Arg = Arg::literal(c"strict", c"STRICT").optional();
const TTL: Arg = Arg::new(c"ttl", ArgType::Word);
const HOLDER: Arg = Arg::new(c"holder", ArgType::Word);
/// Item of a sketch: any bytes.
const ITEM: Arg = Arg::new(c"item", ArgType::Word);
const SIZE: Arg = Arg::new(c"size", ArgType::Word).after(c"SIZE").optional();
/// Item for the sketch of a policy.
const ITEM_OF_POLICY: Arg = Arg::new(c"item", ArgType::Word).after(c"ITEM").optional();
const NUMKEYS: Arg = Arg::new(c"numkeys", ArgType::Whole);
const UPTO: Arg = Arg::literal(c"upto", c"UPTO");
const FORCE: Arg = Arg::literal(c"force", c"FORCE");
const MAXWAIT: Arg = Arg::new(c"maxwait", ArgType::Word).after(c"MAXWAIT");
const MODE: Arg = Arg::new(c"mode", ArgType::OneOf(&[UPTO, FORCE])).optional();
const MODE_OR_WAIT: Arg = Arg::new(c"mode", ArgType::OneOf(&[UPTO, FORCE, MAXWAIT])).optional();
const FORCE_OR_WAIT: Arg = Arg::new(c"mode", ArgType::OneOf(&[FORCE, MAXWAIT])).optional();
/// Amount or percentage that a call must leave.
const KEEP: Arg = Arg::new(c"keep", ArgType::Word).after(c"KEEP").optional();
const AS: Arg = Arg::new(c"name", ArgType::Word).after(c"AS").optional();
const NX: Arg = Arg::literal(c"nx", c"NX").optional();
const BLOCK: Arg = Arg::new(c"block", ArgType::Word).after(c"BLOCK").optional();
const FENCE: Arg = Arg::literal(c"fence", c"FENCE").optional();
const ID: Arg = Arg::new(c"id", ArgType::Word);
const ONCE: Arg = Arg::new(c"once", ArgType::Block(&[ID, TTL])).after(c"ONCE");
const SETTLE: Arg = Arg::new(c"settle", ArgType::Block(&[ID, Arg::new(c"amount", ArgType::Number)])).after(c"SETTLE");
const ONCE_OR_SETTLE: Arg = Arg::new(c"counts", ArgType::OneOf(&[ONCE, SETTLE])).optional();
const EACH: Arg = Arg::literal(c"each", c"EACH").optional();
const BAN_RULE: Arg = Arg::new(
    c"ban",
    ArgType::Block(&[
        Arg::new(c"strikes", ArgType::Whole),
        WINDOW,
        Arg::new(c"block", ArgType::Word),
        Arg::new(c"longest", ArgType::Word).after(c"MAX").optional(),
    ]),
)
.after(c"BAN")
.optional();

/// Arguments and options of an algorithm: in a policy, or in a call. A call has `$mode`, or `$mode_or_wait` if the
/// algorithm supports MAXWAIT.
macro_rules! spec_arguments {
    (rate [$first:expr] [$($argument:ident),+] ($mode:expr, $mode_or_wait:expr $(, $once:expr)?)) => {
        &[$first, $($argument,)+ COST, $mode, KEEP, AS, $($once)?]
    };
    (waits $first:tt $arguments:tt ($mode:expr, $mode_or_wait:expr $(, $once:expr)?)) => {
        spec_arguments!(rate $first $arguments ($mode_or_wait, $mode_or_wait $(, $once)?))
    };
    (lease [$first:expr] [$($argument:ident),+] ($mode:expr, $mode_or_wait:expr $(, $once:expr)?)) => {
        &[$first, $($argument,)+ HOLDER, COST, KEEP, AS, NX]
    };
    (item [$first:expr] [$($argument:ident),+] ($mode:expr, $mode_or_wait:expr $(, $once:expr)?)) => {
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

/// Specs of all algorithms, and further alternatives.
macro_rules! specs {
    (
        {$place:tt $($alternative:expr)?}
        $($parser:ident = $name:literal $word:literal, $arguments:tt $options:ident, $command:tt;)+
    ) => {
        Arg::new(
            c"spec",
            ArgType::OneOf(&[
                $(Arg::new(
                    $name,
                    ArgType::Block(spec_arguments!($options [Arg::literal(c"algorithm", $word)] $arguments $place)),
                ),)+
                $($alternative)?
            ]),
        )
    };
}

const POLICY_NAME: Arg = Arg::new(c"name", ArgType::Word).after(c"POLICY");
const OR_NAME: Arg = Arg::new(c"other", ArgType::Word).after(c"OR").optional().multiple();
const SPEC: Arg = command_lines!(specs, { (MODE, MODE_OR_WAIT, ONCE_OR_SETTLE) });
const PEEK_SPEC: Arg = command_lines!(specs, { (MODE, MODE_OR_WAIT, ONCE.optional()) });
/// Spec of RL.MTAKE or RL.MPEEK, for one of the keys: without UPTO, and without an idempotency key of its own.
const SPEC_OF_KEYS: Arg = command_lines!(specs, {
    (FORCE.optional(), FORCE_OR_WAIT)
    Arg::new(c"policy", ArgType::Block(&[POLICY_NAME, OR_NAME, COST, FORCE_OR_WAIT, KEEP, ITEM_OF_POLICY]))
});

/// Limits of one key: specs, or a single policy.
macro_rules! limits {
    ($spec:expr, $once:expr) => {
        Arg::new(
            c"limits",
            ArgType::OneOf(&[
                Arg::new(c"specs", ArgType::Block(&[$spec.multiple(), BAN_RULE])),
                Arg::new(
                    c"policy",
                    ArgType::Block(&[POLICY_NAME, OR_NAME, COST, MODE_OR_WAIT, KEEP, $once, EACH, ITEM_OF_POLICY]),
                ),
            ]),
        )
    };
}
const LIMITS: Arg = limits!(SPEC, ONCE_OR_SETTLE);
const PEEK_LIMITS: Arg = limits!(PEEK_SPEC, ONCE.optional());

macro_rules! command_arguments {
    ({} $($parser:ident = $name:literal $word:literal, $arguments:tt $options:ident, {
        $($(#[doc = $syntax:literal])+ $command:literal, arity $arity:literal, $summary:literal, $complexity:literal)?
    };)+) => {
        $($(
            $(#[doc = $syntax])+
            #[allow(non_upper_case_globals, reason = "named like the parser of the algorithm")]
            pub const $parser: &[Arg] = spec_arguments!($options [KEY] $arguments (MODE, MODE_OR_WAIT, ONCE_OR_SETTLE));
        )?)+
    };
}
command_lines!(command_arguments, {});

/// The arguments of RL.ACQUIRE.
pub const ACQUIRE: &[Arg] = &[KEY, LIMIT, TTL, HOLDER, COST, KEEP, AS, NX, BLOCK, FENCE];
/// The arguments of RL.SKETCH.
pub const SKETCH: &[Arg] = &[KEY, ITEM, CAPACITY, REFILL, PERIOD, COST, MODE, KEEP, SIZE];
/// The arguments of RL.RELEASE.
pub const RELEASE: &[Arg] = &[KEY, HOLDER.multiple()];
/// The arguments of RL.MTAKE.
pub const MULTI: &[Arg] =
    &[NUMKEYS, KEY.multiple(), COST, FORCE_OR_WAIT, KEEP, ONCE_OR_SETTLE, SPEC_OF_KEYS.multiple()];
/// The arguments of RL.MPEEK.
pub const MULTI_PEEK: &[Arg] =
    &[NUMKEYS, KEY.multiple(), COST, FORCE_OR_WAIT, KEEP, ONCE.optional(), SPEC_OF_KEYS.multiple()];
/// The arguments of RL.BAN.
pub const BAN: &[Arg] = &[KEY, Arg::new(c"duration", ArgType::Word)];
/// The arguments of RL.INFO.
pub const INFO: &[Arg] = &[KEY];
/// The arguments of RL.THROTTLE and CL.THROTTLE.
pub const THROTTLE: &[Arg] = &[
    KEY,
    Arg::new(c"max_burst", ArgType::Whole),
    Arg::new(c"count", ArgType::Whole),
    Arg::new(c"period", ArgType::Whole),
    Arg::new(c"quantity", ArgType::Whole).optional(),
];
/// The arguments of RL.TOP.
pub const TOP: &[Arg] = &[
    Arg::new(c"count", ArgType::Whole).after(c"COUNT").optional(),
    Arg::new(c"duration", ArgType::Word).after(c"SINCE").optional(),
    Arg::literal(c"reset", c"RESET").optional(),
];
/// The arguments of RL.TAKE.
pub const TAKE: &[Arg] = &[KEY, COST, MODE_OR_WAIT, KEEP, ONCE_OR_SETTLE, EACH, LIMITS];
/// The arguments of RL.PEEK.
pub const PEEK: &[Arg] = &[KEY, COST, MODE_OR_WAIT, KEEP, ONCE.optional(), EACH, PEEK_LIMITS];
const NAME: Arg = Arg::new(c"name", ArgType::Word);
const SHADOW: Arg = Arg::literal(c"shadow", c"SHADOW").optional();
const FORCE_OR_SHADOW: Arg =
    Arg::new(c"enforcement", ArgType::OneOf(&[FORCE, Arg::literal(c"shadow", c"SHADOW")])).optional();
const LIMIT_OF_POLICY: Arg = command_lines!(specs, { policy });
/// The arguments of RL.LIMIT.
pub const LIMIT_BY_NAME: &[Arg] = &[KEY, NAME, OR_NAME, COST, MODE_OR_WAIT, KEEP, ONCE_OR_SETTLE, EACH, ITEM_OF_POLICY];
/// The arguments of RL.DELAY.
pub const DELAY: &[Arg] = &[KEY, NAME, OR_NAME, COST, FORCE.optional(), KEEP, ONCE_OR_SETTLE, ITEM_OF_POLICY];
/// The arguments of RL.POLICYSET.
pub const POLICY_SET: &[Arg] = &[
    NAME,
    Arg::new(
        c"condition",
        ArgType::OneOf(&[Arg::literal(c"nx", c"NX"), Arg::new(c"version", ArgType::Whole).after(c"VERSION")]),
    )
    .optional(),
    LIMIT_OF_POLICY.multiple(),
    BAN_RULE,
];
const FOR_DURATION: Arg = Arg::new(c"duration", ArgType::Word).after(c"FOR").optional();
const EVERY: Arg = Arg::new(c"interval", ArgType::Word).after(c"EVERY").optional();
/// The arguments of RL.POLICYSCALE.
pub const POLICY_SCALE: &[Arg] = &[
    NAME,
    Arg::new(
        c"scale",
        ArgType::OneOf(&[
            Arg::new(c"factor", ArgType::Number),
            Arg::new(
                c"multiply",
                ArgType::Block(&[
                    Arg::new(c"factor", ArgType::Number),
                    Arg::new(c"least", ArgType::Number).after(c"MIN").optional(),
                    EVERY,
                ]),
            )
            .after(c"MUL"),
            Arg::new(
                c"add",
                ArgType::Block(&[
                    Arg::new(c"step", ArgType::Number),
                    Arg::new(c"most", ArgType::Number).after(c"MAX").optional(),
                    EVERY,
                ]),
            )
            .after(c"ADD"),
        ]),
    ),
    FOR_DURATION,
];
/// The arguments of RL.POLICYGET.
pub const POLICY_GET: &[Arg] = &[NAME];
/// The arguments of RL.POLICYLIST.
pub const POLICY_LIST: &[Arg] = &[Arg::new(c"pattern", ArgType::Word).after(c"MATCH").optional()];
/// The arguments of RL.POLICYDEL.
pub const POLICY_DELETE: &[Arg] = &[Arg::new(
    c"policies",
    ArgType::OneOf(&[
        Arg::new(c"policy", ArgType::Block(&[NAME, Arg::new(c"version", ArgType::Whole).after(c"VERSION")])),
        NAME.multiple(),
    ]),
)];
/// The arguments of RL.POLICYEFFECT.
pub const POLICY_EFFECT: &[Arg] = &[Arg::new(c"record", ArgType::Word).multiple()];
/// The arguments of RL.EFFECT.
pub const EFFECT: &[Arg] = &[Arg::new(c"data", ArgType::Block(&[KEY, Arg::new(c"effect", ArgType::Word)])).multiple()];
