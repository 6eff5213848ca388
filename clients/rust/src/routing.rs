//! Routing of calls in a cluster, where redis-rs does not know the key.

#[cfg(feature = "cluster")]
mod found {
    use std::any::Any;

    use redis::cluster_async::ClusterConnection;
    use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, Slot, SlotAddr};

    /// Returns the connection of a cluster and the node of the first key, for a call over several keys. redis-rs would
    /// take the number of keys for the key, and each call would be redirected.
    pub(crate) fn elsewhere<'c, C: 'static>(
        connection: &'c mut C,
        words: &[String],
    ) -> Option<(&'c mut ClusterConnection, RoutingInfo)> {
        let [name, _, key, ..] = words else { return None };
        let role = match name.as_str() {
            "RL.MTAKE" | "RL.MPEEK" => SlotAddr::Master,
            _ => return None,
        };
        let cluster = (connection as &mut dyn Any).downcast_mut::<ClusterConnection>()?;
        let route = SingleNodeRoutingInfo::SpecificNode(Route::with_slot(Slot::for_key(key), role));
        Some((cluster, RoutingInfo::SingleNode(route)))
    }
}

#[cfg(not(feature = "cluster"))]
mod found {
    /// Returns `None`: without the feature for clusters the server redirects calls.
    pub(crate) fn elsewhere<C>(_: &mut C, _: &[String]) -> Option<(Nowhere, ())> {
        None
    }

    /// Connection of a cluster, which does not exist without the feature.
    pub(crate) enum Nowhere {}

    impl Nowhere {
        pub(crate) async fn route_command(self, _: redis::Cmd, (): ()) -> redis::RedisResult<redis::Value> {
            match self {}
        }
    }
}

pub(crate) use found::elsewhere;
