//! The policies as the server has them: what their limits are called and how long their windows are.

use crate::link::Listener;
use crate::windows::{Window, windows};
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::Arc;

/// The policies that the server told of last.
#[derive(Default)]
pub struct Table {
    known: ArcSwap<KnownPolicies>,
}

#[derive(Default)]
struct KnownPolicies {
    digest: Option<String>,
    windows: HashMap<String, Arc<[Window]>>,
}

impl Table {
    /// The limits of a policy; none, if it is not known here yet.
    #[must_use]
    pub fn windows(&self, policy: &str) -> Arc<[Window]> {
        self.known.load().windows.get(policy).cloned().unwrap_or_default()
    }

    /// The first of these policies that is known here.
    #[must_use]
    pub fn first(&self, names: &[String]) -> Option<(String, Arc<[Window]>)> {
        let known = self.known.load();
        names.iter().find_map(|name| Some((name.clone(), Arc::clone(known.windows.get(name)?))))
    }
}

impl Listener for Table {
    fn digest(&self) -> Option<String> {
        self.known.load().digest.clone()
    }

    fn policies(&self, digest: String, policies: Vec<(String, String)>) {
        let windows = policies.into_iter().map(|(name, specs)| (name, windows(&specs).into())).collect();
        self.known.store(Arc::new(KnownPolicies { digest: Some(digest), windows }));
    }
}
