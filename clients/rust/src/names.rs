//! Names of bound limits. A name keeps its algorithms and windows while limits of that name are in use.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::error::Error;
use crate::limits::Limit;

/// Use of a name, shared by all limits that are bound to it.
pub(crate) struct NameInUse {
    /// Limits that were bound to the name first.
    first: Arc<[Limit]>,
}

/// Names in use.
#[derive(Default)]
pub(crate) struct Names {
    by_name: HashMap<String, Weak<NameInUse>>,
    /// Number of names at which unused names are removed.
    sweep_at: usize,
}

impl Names {
    /// Binds limits to a name, which is in use while the returned value exists.
    ///
    /// # Errors
    /// [`Error::Call`] if limits in use have the name and another algorithm or window.
    pub(crate) fn bind(&mut self, name: &str, limits: &Arc<[Limit]>) -> Result<Arc<NameInUse>, Error> {
        let shape = |limits: &[Limit]| limits.iter().map(Limit::shape).collect::<Vec<_>>();
        if let Some(existing) = self.by_name.get(name).and_then(Weak::upgrade) {
            if shape(&existing.first) == shape(limits) {
                return Ok(existing);
            }
            let words = |limits: &[Limit]| limits.iter().map(Limit::canonical).collect::<Vec<_>>().join(", ");
            let (old, new) = (words(&existing.first), words(limits));
            return Err(Error::Call(format!(
                "the name {name:?} has the limits {old}, and cannot have {new}: they share keys"
            )));
        }
        if self.by_name.len() >= self.sweep_at {
            self.by_name.retain(|_, in_use| in_use.strong_count() > 0);
            self.sweep_at = 2 * self.by_name.len() + 16;
        }
        let in_use = Arc::new(NameInUse { first: limits.clone() });
        self.by_name.insert(name.to_owned(), Arc::downgrade(&in_use));
        Ok(in_use)
    }
}
