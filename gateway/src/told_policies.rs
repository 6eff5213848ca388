//! The policies as the server has them: what their limits are called and how long their windows are.

use crate::link::{Listener, PolicyRow};
use crate::windows::{Window, windows};
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::Arc;

/// The policies that the server told of last.
#[derive(Default)]
pub struct Table {
    known: ArcSwap<KnownPolicies>,
}

#[derive(Clone, Default)]
struct KnownPolicies {
    digest: Option<String>,
    windows: HashMap<String, (i64, Arc<[Window]>)>,
}

impl Table {
    /// The limits of a policy; none, if it is not known here yet.
    #[must_use]
    pub fn windows(&self, policy: &str) -> Arc<[Window]> {
        self.known.load().windows.get(policy).map(|(_, windows)| Arc::clone(windows)).unwrap_or_default()
    }

    /// The first of these policies that is known here.
    #[must_use]
    pub fn first(&self, names: &[String]) -> Option<(String, Arc<[Window]>)> {
        let known = self.known.load();
        names.iter().find_map(|name| Some((name.clone(), Arc::clone(&known.windows.get(name)?.1))))
    }
}

impl Listener for Table {
    fn digest(&self) -> Option<String> {
        self.known.load().digest.clone()
    }

    fn policies(&self, digest: String, policies: Vec<PolicyRow>) {
        let windows = policies.into_iter().map(|row| (row.name, (row.version, windows(&row.specs).into()))).collect();
        self.known.store(Arc::new(KnownPolicies { digest: Some(digest), windows }));
    }

    fn has(&self, name: &str, version: i64) -> bool {
        self.known.load().windows.get(name).is_some_and(|(known, _)| *known >= version)
    }

    fn add(&self, policy: PolicyRow) {
        let limits: Arc<[Window]> = windows(&policy.specs).into();
        self.known.rcu(|known| {
            let mut known = KnownPolicies::clone(known);
            known.windows.insert(policy.name.clone(), (policy.version, Arc::clone(&limits)));
            known
        });
    }
}
