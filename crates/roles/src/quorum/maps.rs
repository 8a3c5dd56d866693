//! The map as this manager has applied it, for all who wait for a newer one.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use larder_protocol::manager::state::Topology;
use larder_types::codec::encode;

/// One version of the map.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) map: Topology,
    encoded: OnceLock<Bytes>,
}

impl Published {
    pub(super) fn new(map: Topology) -> Arc<Self> {
        Arc::new(Self { map, encoded: OnceLock::new() })
    }

    /// Its bytes, made for the first who asks.
    pub(super) fn encoded(&self) -> Bytes {
        self.encoded.get_or_init(|| encode(&self.map).into()).clone()
    }
}
