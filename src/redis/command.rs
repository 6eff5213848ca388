//! Registration of commands: name, flags and keys on every server; documentation and arity from Redis 7.0 on; ACL
//! categories from 7.2 on.

use super::api::{OK, api, call};
use crate::server::stats::CommandStats;
use redis_module::raw;
use std::ffi::{CStr, CString, c_int};
use std::ptr::{null, null_mut};

/// Entry point of a command.
pub type EntryPoint = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// Description of a command, as registered with the server.
#[derive(Clone, Copy)]
pub struct Command {
    /// Name, such as `rl.tokenbucket`.
    pub name: &'static CStr,
    /// Entry point.
    pub entry: EntryPoint,
    /// Access to its keys, which determines its flags and ACL categories.
    pub access: Access,
    /// Position of its keys.
    pub keys: Keys,
    /// Number of words including the name. Negative: at least that many.
    pub arity: c_int,
    /// Summary for COMMAND DOCS.
    pub summary: &'static CStr,
    /// Complexity for COMMAND DOCS.
    pub complexity: &'static CStr,
    /// Arguments for COMMAND DOCS.
    pub args: &'static [Arg],
    /// Counters of its calls.
    pub stats: &'static CommandStats,
}

/// Access of a command to its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Changes keys.
    Take,
    /// Changes keys, and may block its client.
    TakeOrWait,
    /// Reads keys.
    Peek,
    /// Applies effects that were propagated to a replica or the AOF.
    Effect,
    /// Changes policies, but no keys. For operators.
    ManagePolicies,
    /// Reads statistics of this server about any key, also on a replica and in any state of the server. For operators.
    ReadStatistics,
}

/// Position of the keys of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// First argument.
    First,
    /// Every other argument, from the first on.
    EveryOther,
    /// Arguments after the first, which is their number.
    Numbered,
    /// No keys.
    None,
}

impl Keys {
    /// Returns `access` if the server has to call the command to learn the positions of its keys.
    pub const fn getkeys_access(self, access: Access) -> Option<Access> {
        match self {
            Keys::Numbered => Some(access),
            Keys::First | Keys::EveryOther | Keys::None => None,
        }
    }
}

/// Argument, for COMMAND DOCS.
#[derive(Clone, Copy)]
pub struct Arg {
    /// Name in the syntax line.
    pub name: &'static CStr,
    /// Type.
    pub kind: ArgType,
    /// Word before the argument, or the literal word itself.
    pub token: Option<&'static CStr>,
    /// `true` if it may be left out.
    pub optional: bool,
    /// `true` if it may be repeated.
    pub multiple: bool,
}

/// Type of an argument.
#[derive(Clone, Copy)]
pub enum ArgType {
    /// A key.
    Key,
    /// A whole number.
    Whole,
    /// A number, perhaps with decimals.
    Number,
    /// Any other word.
    Word,
    /// Literal word.
    Literal,
    /// Alternatives.
    OneOf(&'static [Arg]),
    /// Sequence.
    Block(&'static [Arg]),
}

impl Arg {
    /// Creates a required argument.
    pub const fn new(name: &'static CStr, kind: ArgType) -> Arg {
        Arg { name, kind, token: None, optional: false, multiple: false }
    }

    /// Creates a literal word.
    pub const fn literal(name: &'static CStr, word: &'static CStr) -> Arg {
        Arg { token: Some(word), ..Arg::new(name, ArgType::Literal) }
    }

    /// Returns the argument, preceded by the word `word`.
    pub const fn after(self, word: &'static CStr) -> Arg {
        Arg { token: Some(word), ..self }
    }

    /// Returns the argument as optional.
    pub const fn optional(self) -> Arg {
        Arg { optional: true, ..self }
    }

    /// Returns the argument as repeatable.
    pub const fn multiple(self) -> Arg {
        Arg { multiple: true, ..self }
    }
}

/// Version in which all commands were added, for COMMAND DOCS.
const SINCE: &CStr = c"0.1.0";

/// ACL category of all commands, on servers where a module can add one (Redis 7.4, Valkey 8).
const CATEGORY: &CStr = c"ratelimit";

/// Adds the ACL category that [`register`] assigns to commands.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn add_category(ctx: *mut raw::RedisModuleCtx) {
    if let Some(add) = api!(RedisModule_AddACLCategory) {
        // SAFETY: the caller guarantees that `ctx` is that of the module's load. If an earlier load has added the
        // category, the call fails and changes nothing.
        unsafe { add(ctx, CATEGORY.as_ptr()) };
    }
}

/// Registers `command`. Returns `Err` if the server rejects it.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn register(ctx: *mut raw::RedisModuleCtx, command: &Command) -> Result<(), String> {
    let flags = match (command.access, command.keys) {
        // No deny-oom: existing keys are limited even without memory. Creating a key checks the memory itself.
        (Access::Take, Keys::Numbered) => c"write getkeys-api",
        (Access::Take, _) => c"write fast",
        // The flag exists since the version that introduced descriptions of commands.
        (Access::TakeOrWait, _) if api!(RedisModule_SetCommandInfo).is_some() => c"write blocking",
        (Access::Peek, Keys::Numbered) => c"readonly getkeys-api",
        (Access::Peek, Keys::None) => c"readonly",
        (Access::Peek, _) => c"readonly fast",
        (Access::TakeOrWait | Access::Effect | Access::ManagePolicies, _) => c"write",
        (Access::ReadStatistics, _) => c"allow-loading allow-stale",
    };
    let (first, last, step) = match command.keys {
        Keys::First => (1, 1, 1),
        Keys::EveryOther => (1, -1, 2),
        // Only the first key: for all keys, the server calls the command. A client that uses only these numbers routes
        // the call by the first key; without these numbers, it would route the call to any node.
        Keys::Numbered => (2, 2, 1),
        Keys::None => (0, 0, 0),
    };
    // SAFETY: the caller guarantees that `ctx` is that of the module's load; the server copies names and flags, and
    // everything that the description points to.
    unsafe {
        let name = command.name.as_ptr();
        let status =
            call!(RedisModule_CreateCommand(ctx, name, Some(command.entry), flags.as_ptr(), first, last, step));
        if status != OK {
            return Err(format!("the server refuses the command {}", command.name.to_string_lossy()));
        }
        let Some(get) = api!(RedisModule_GetCommand) else { return Ok(()) };
        let server_command = get(ctx, name);
        if let Some(set_info) = api!(RedisModule_SetCommandInfo)
            && describe(server_command, command, set_info) != OK
        {
            return Err(format!("the server refuses the description of {}", command.name.to_string_lossy()));
        }
        if let Some(set_categories) = api!(RedisModule_SetCommandACLCategories)
            && set_categories(server_command, command.categories().as_ptr()) != OK
        {
            return Err(format!("the server refuses the ACL categories of {}", command.name.to_string_lossy()));
        }
    }
    Ok(())
}

impl Command {
    fn categories(&self) -> CString {
        let access = match self.access {
            Access::Take => "write",
            Access::TakeOrWait => "write blocking",
            Access::Peek => "read",
            Access::Effect => "write dangerous",
            Access::ManagePolicies => "write admin dangerous",
            // Same as SLOWLOG, which also shows the names of all keys.
            Access::ReadStatistics => "admin dangerous",
        };
        let speed = if self.keys == Keys::First && self.access != Access::TakeOrWait { "fast" } else { "slow" };
        let for_users = matches!(self.access, Access::Take | Access::TakeOrWait | Access::Peek);
        let has_category = api!(RedisModule_AddACLCategory).is_some() && for_users;
        let category = if has_category { CATEGORY.to_str().unwrap_or_default() } else { "" };
        CString::new(format!("{access} {speed} {category}").trim_end()).unwrap_or_default()
    }
}

impl Access {
    /// Returns the server's flags of a key that is accessed in this way.
    pub fn key_flags(self) -> u32 {
        match self {
            Access::Take | Access::TakeOrWait => {
                raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE
            }
            Access::Peek => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
            Access::Effect => raw::REDISMODULE_CMD_KEY_OW | raw::REDISMODULE_CMD_KEY_UPDATE,
            Access::ManagePolicies | Access::ReadStatistics => 0,
        }
    }
}

type SetInfo = unsafe extern "C" fn(*mut raw::RedisModuleCommand, *const raw::RedisModuleCommandInfo) -> c_int;

/// # Safety
/// `server_command` is a command of this module, during its load.
unsafe fn describe(server_command: *mut raw::RedisModuleCommand, command: &Command, set_info: SetInfo) -> c_int {
    // SAFETY: plain C structs, for which all zeros mean "none".
    let mut key_spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    key_spec.flags = u64::from(command.access.key_flags());
    key_spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    key_spec.bs.index.pos = 1;
    let range = |lastkey, keystep| raw::RedisModuleCommandKeySpec__bindgen_ty_2 {
        range: raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey, keystep, limit: 0 },
    };
    key_spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
    match command.keys {
        Keys::First => key_spec.fk = range(0, 1),
        Keys::EveryOther => key_spec.fk = range(-1, 2),
        Keys::Numbered => {
            // A key spec of the numkeys type would be complete, but the server derives no first key for COMMAND INFO
            // from it. From an incomplete key spec it derives the first key, and it calls the command for the other
            // keys.
            key_spec.bs.index.pos = 2;
            key_spec.fk = range(0, 1);
            key_spec.flags |= u64::from(raw::REDISMODULE_CMD_KEY_INCOMPLETE);
        }
        Keys::None => {}
    }
    // SAFETY: zeros are a valid entry, which ends the list.
    let mut key_specs = [key_spec, unsafe { std::mem::zeroed() }];

    let mut lists = Vec::new();
    let args = arg_list(command.args, &mut lists);
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: command.summary.as_ptr(),
        complexity: command.complexity.as_ptr(),
        since: SINCE.as_ptr(),
        history: null_mut(),
        tips: null(),
        arity: command.arity,
        key_specs: if command.keys == Keys::None { null_mut() } else { key_specs.as_mut_ptr() },
        args,
    };
    // SAFETY: everything pointed to lives until the call returns, and the server copies it.
    unsafe { set_info(server_command, &raw const info) }
}

/// Converts `args` to the server's type: a list that ends with a zeroed entry. `lists` owns it and its nested lists.
fn arg_list(args: &[Arg], lists: &mut Vec<Vec<raw::RedisModuleCommandArg>>) -> *mut raw::RedisModuleCommandArg {
    let mut list = Vec::new();
    for arg in args {
        let (kind, subargs) = match arg.kind {
            ArgType::Key => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, None),
            ArgType::Whole => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER, None),
            ArgType::Number => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE, None),
            ArgType::Word => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING, None),
            ArgType::Literal => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN, None),
            ArgType::OneOf(choices) => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF, Some(choices)),
            ArgType::Block(args) => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK, Some(args)),
        };
        let mut flags = raw::REDISMODULE_CMD_ARG_NONE;
        if arg.optional {
            flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL;
        }
        if arg.multiple {
            flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE;
        }
        list.push(raw::RedisModuleCommandArg {
            name: arg.name.as_ptr(),
            type_: kind,
            key_spec_index: if matches!(arg.kind, ArgType::Key) { 0 } else { -1 },
            token: arg.token.map_or(null(), CStr::as_ptr),
            summary: null(),
            since: null(),
            flags: flags.cast_signed(),
            deprecated_since: null(),
            subargs: subargs.map_or(null_mut(), |subargs| arg_list(subargs, lists)),
            display_text: null(),
        });
    }
    // SAFETY: a plain C struct, for which all zeros mean "none".
    list.push(unsafe { std::mem::zeroed() });
    let start = list.as_mut_ptr();
    lists.push(list);
    start
}
