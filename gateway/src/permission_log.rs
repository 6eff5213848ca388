//! Log of the permissions that the server's user lacks.

use std::collections::HashSet;
use std::sync::Mutex;

/// Permissions that the user needs, as `ACL SETUSER` takes them.
pub const GRANTS: &str = "+rl.limit +rl.take +rl.peek +rl.release +rl.policylist +client|tracking +info ~rl:*";
/// Maximum number of different errors that are logged, more than there are commands.
const MAX_ERRORS: usize = 32;

/// Log that has one line for each different NOPERM error.
#[derive(Default)]
pub struct PermissionLog(Mutex<HashSet<String>>);

impl PermissionLog {
    /// Logs an error the first time that it occurs: each call fails with it until the permission is granted.
    pub fn log(&self, why: &str) {
        if self.is_new(why) {
            tracing::error!(why, grant = GRANTS, "the server's user lacks a permission");
        }
    }

    fn is_new(&self, why: &str) -> bool {
        self.0.lock().is_ok_and(|mut logged| logged.len() < MAX_ERRORS && logged.insert(why.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_ERRORS, PermissionLog};

    #[test]
    fn each_error_is_logged_once() {
        let log = PermissionLog::default();
        assert_eq!(["a", "b", "a", "b"].map(|why| log.is_new(why)), [true, true, false, false]);
        assert_eq!((0..2 * MAX_ERRORS).filter(|number| log.is_new(&number.to_string())).count(), MAX_ERRORS - 2);
    }
}
