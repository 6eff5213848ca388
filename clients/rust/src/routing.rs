//! Which node of a cluster a call goes to, where redis-rs does not see it.

#[cfg(feature = "cluster")]
mod found {
    use std::any::Any;

    use redis::cluster_async::ClusterConnection;
    use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, Slot, SlotAddr};

    /// A cluster's connection, and the node of the first key of a call over several: behind their number, where
    /// redis-rs takes the number for the key, and would be sent on at each call.
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
    /// Nothing is: the server says where the keys are.
    pub(crate) fn elsewhere<C>(_: &mut C, _: &[String]) -> Option<(Nowhere, ())> {
        None
    }

    /// There is none.
    pub(crate) enum Nowhere {}

    impl Nowhere {
        pub(crate) async fn route_command(self, _: redis::Cmd, (): ()) -> redis::RedisResult<redis::Value> {
            match self {}
        }
    }
}

pub(crate) use found::elsewhere;
