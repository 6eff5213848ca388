//! What the server's user has to be granted, and the lines in the log where a grant is missing.

use std::collections::HashSet;
use std::sync::Mutex;

/// What the user needs, as `ACL SETUSER` takes it.
pub const GRANTS: &str = "+rl.limit +rl.take +rl.release +rl.policylist +info ~rl:*";
/// How many different refusals are told: there are fewer commands.
const MOST: usize = 32;

/// The refusals that the log was told of.
#[derive(Default)]
pub struct Missing(Mutex<HashSet<String>>);

impl Missing {
    /// Tells of a refusal, the first time that it comes: every call has the same until somebody grants what is missing.
    pub fn tell(&self, why: &str) {
        if self.is_new(why) {
            tracing::error!(why, grant = GRANTS, "the server's user lacks a permission");
        }
    }

    fn is_new(&self, why: &str) -> bool {
        self.0.lock().is_ok_and(|mut told| told.len() < MOST && told.insert(why.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Missing};

    #[test]
    fn each_refusal_is_told_once() {
        let missing = Missing::default();
        assert_eq!(["a", "b", "a", "b"].map(|why| missing.is_new(why)), [true, true, false, false]);
        assert_eq!((0..2 * MOST).filter(|number| missing.is_new(&number.to_string())).count(), MOST - 2);
    }
}
