//! Registration of the settings with servers that support CONFIG for modules (Redis 7.0, Valkey 8).

use super::api::{ERR, OK, api};
use super::guard;
use crate::server::settings::{ALL, Setting};
use redis_module::raw;
use std::ffi::{c_char, c_int, c_longlong, c_void};

/// Registers all settings, with their current values as defaults, and loads their values from the configuration file.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn register(ctx: *mut raw::RedisModuleCtx) -> Result<(), String> {
    let (Some(number), Some(switch), Some(load)) =
        (api!(RedisModule_RegisterNumericConfig), api!(RedisModule_RegisterBoolConfig), api!(RedisModule_LoadConfigs))
    else {
        return Ok(());
    };
    for setting in ALL {
        let (name, default) = (setting.name.as_ptr(), setting.get());
        let data = std::ptr::from_ref(setting).cast_mut().cast::<c_void>();
        let flags = match setting {
            Setting { is_load_only: true, .. } => raw::REDISMODULE_CONFIG_IMMUTABLE,
            // A size may be written with a unit.
            Setting { set_size: Some(_), .. } => raw::REDISMODULE_CONFIG_MEMORY,
            _ => raw::REDISMODULE_CONFIG_DEFAULT,
        };
        // SAFETY: the caller guarantees that `ctx` is that of the module's load; a setting is a static, so `data` lives
        // as long as the server.
        let status = unsafe {
            if setting.is_switch {
                let default = c_int::from(default != 0);
                switch(ctx, name, default, flags, Some(get_switch), Some(set_switch), None, data)
            } else {
                let (min, max) = (*setting.range.start(), *setting.range.end());
                number(ctx, name, default, flags, min, max, Some(get_number), Some(set_number), None, data)
            }
        };
        if status != OK {
            return Err(format!("the server refuses the setting {}", setting.name.to_string_lossy()));
        }
    }
    // SAFETY: the caller guarantees that `ctx` is that of the module's load.
    if unsafe { load(ctx) } != OK {
        return Err("a ratelimit.* setting in the configuration is wrong".to_owned());
    }
    Ok(())
}

/// # Safety
/// `data` is the pointer that `register` passed with a setting.
unsafe fn setting<'a>(data: *mut c_void) -> Option<&'a Setting> {
    // SAFETY: the caller guarantees that `data` points to a setting, which is a static.
    unsafe { data.cast::<Setting>().as_ref() }
}

guard::entry_point! {
    /// Returns the value of a setting.
    unsafe fn get_number(_name: *const c_char, data: *mut c_void) -> c_longlong, or 0 => {
        // SAFETY: see `setting`.
        unsafe { setting(data) }.map_or(0, Setting::get)
    }
}

guard::entry_point! {
    /// Changes the value of a setting.
    unsafe fn set_number(
        _name: *const c_char,
        value: c_longlong,
        data: *mut c_void,
        _error: *mut *mut raw::RedisModuleString,
    ) -> c_int, or ERR => {
        // SAFETY: see `setting`. The server has compared the value with the range.
        if let Some(setting) = unsafe { setting(data) } {
            setting.set(value);
        }
        OK
    }
}

guard::entry_point! {
    /// Returns the value of a boolean setting.
    unsafe fn get_switch(name: *const c_char, data: *mut c_void) -> c_int, or 0 => {
        // SAFETY: the arguments are those of the server.
        c_int::from(unsafe { get_number(name, data) } != 0)
    }
}

guard::entry_point! {
    /// Changes the value of a boolean setting.
    unsafe fn set_switch(
        name: *const c_char,
        value: c_int,
        data: *mut c_void,
        error: *mut *mut raw::RedisModuleString,
    ) -> c_int, or ERR => {
        // SAFETY: the arguments are those of the server.
        unsafe { set_number(name, c_longlong::from(value), data, error) }
    }
}
