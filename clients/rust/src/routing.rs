//! Routing of calls over several keys in a cluster, whose keys redis-rs does not find.

#[cfg(feature = "cluster")]
mod implementation {
    use std::any::Any;

    use redis::cluster_async::ClusterConnection;
    use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, Slot, SlotAddr};

    /// Returns the connection to a cluster and the node of the first key, for a call over several keys. redis-rs itself
    /// would mistake the number of keys for the key, so that the cluster would redirect each call.
    pub(crate) fn cluster_route<'c, C: 'static>(
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
mod implementation {
    /// Returns `None`, because without the feature for clusters there is no connection to a cluster.
    pub(crate) fn cluster_route<C>(_: &mut C, _: &[String]) -> Option<(NoCluster, ())> {
        None
    }

    /// Connection to a cluster, which does not exist without the feature.
    pub(crate) enum NoCluster {}

    impl NoCluster {
        pub(crate) async fn route_command(self, _: redis::Cmd, (): ()) -> redis::RedisResult<redis::Value> {
            match self {}
        }
    }
}

pub(crate) use implementation::cluster_route;
