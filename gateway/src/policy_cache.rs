//! Cache of the server's policies, from which responses describe the limits behind a decision.

use crate::limit::{Limit, parse_limits};
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Policy in a reply to `RL.POLICYLIST`.
#[derive(Clone, Debug)]
pub struct PolicyRow {
    /// Name of the policy.
    pub name: String,
    /// Version, which grows each time that the policy is set.
    pub version: i64,
    /// Limits, as `RL.POLICYSET` takes them.
    pub specs: String,
}

/// Policies of the server, as of the last time that the gateway read them.
#[derive(Default)]
pub struct PolicyCache {
    cached: ArcSwap<CachedPolicies>,
    /// Number of changes of the cache.
    changes: AtomicU64,
}

#[derive(Clone, Default)]
struct CachedPolicies {
    digest: Option<String>,
    /// Version and limits of each policy.
    policies: HashMap<String, (i64, Arc<[Limit]>)>,
}

impl PolicyCache {
    /// Returns the limits of a policy, or an empty list if it is not cached.
    #[must_use]
    pub fn limits(&self, policy: &str) -> Arc<[Limit]> {
        self.cached.load().policies.get(policy).map(|(_, limits)| Arc::clone(limits)).unwrap_or_default()
    }

    /// Returns the name and the limits of the first of these policies that is cached.
    #[must_use]
    pub fn first_cached(&self, names: &[String]) -> Option<(String, Arc<[Limit]>)> {
        let cached = self.cached.load();
        names.iter().find_map(|name| Some((name.clone(), Arc::clone(&cached.policies.get(name)?.1))))
    }

    /// Returns the server's digest of the cached policies.
    #[must_use]
    pub fn digest(&self) -> Option<String> {
        self.cached.load().digest.clone()
    }

    /// Returns the number of changes of the cache. A decision from before the last change may be outdated.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Replaces all policies by those of the server.
    pub fn replace(&self, digest: String, rows: Vec<PolicyRow>) {
        let policies = rows.into_iter().map(|row| (row.name, (row.version, parse_limits(&row.specs).into()))).collect();
        self.cached.store(Arc::new(CachedPolicies { digest: Some(digest), policies }));
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns `true` if this version of a policy, or a later version, is cached.
    #[must_use]
    pub fn has_version(&self, name: &str, version: i64) -> bool {
        self.cached.load().policies.get(name).is_some_and(|(cached, _)| *cached >= version)
    }

    /// Adds or replaces one policy.
    pub fn insert(&self, row: &PolicyRow) {
        let limits: Arc<[Limit]> = parse_limits(&row.specs).into();
        self.cached.rcu(|cached| {
            let mut cached = CachedPolicies::clone(cached);
            cached.policies.insert(row.name.clone(), (row.version, Arc::clone(&limits)));
            cached
        });
        self.changes.fetch_add(1, Ordering::Release);
    }
}
