//! Names of bound limits. A name keeps its algorithms and windows while limits of that name are in use.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::error::Error;
use crate::limits::Limit;

/// Bound limits in use, by name.
#[derive(Default)]
pub(crate) struct Names {
    by_name: HashMap<String, Weak<[Limit]>>,
    /// Number of names at which unused names are removed.
    sweep_at: usize,
}

impl Names {
    /// Binds limits to a name.
    ///
    /// # Errors
    /// [`Error::Call`] if limits in use have the name and another algorithm or window.
    pub(crate) fn bind(&mut self, name: &str, limits: &Arc<[Limit]>) -> Result<(), Error> {
        let shape = |limits: &[Limit]| limits.iter().map(Limit::shape).collect::<Vec<_>>();
        if let Some(existing) = self.by_name.get(name).and_then(Weak::upgrade) {
            if shape(&existing) == shape(limits) {
                return Ok(());
            }
            let words = |limits: &[Limit]| limits.iter().map(Limit::canonical).collect::<Vec<_>>().join(", ");
            let (old, new) = (words(&existing), words(limits));
            return Err(Error::Call(format!(
                "the name {name:?} has the limits {old}, and cannot have {new}: they share keys"
            )));
        }
        if self.by_name.len() >= self.sweep_at {
            self.by_name.retain(|_, limits| limits.strong_count() > 0);
            self.sweep_at = 2 * self.by_name.len() + 16;
        }
        self.by_name.insert(name.to_owned(), Arc::downgrade(limits));
        Ok(())
    }
}
