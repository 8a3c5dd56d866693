//! The program around a server, as the server sees it: the state that probes ask for, and where ended requests are reported.

use bytes::Bytes;
use http::HeaderMap;

use super::finished_request::FinishedRequest;

/// The program's side of the server: what it gives and what it learns. `()` does nothing and is
/// always ready.
pub trait ServerHooks: Send + Sync + 'static {
    /// True if `/readyz` is to answer 200, else 503.
    fn ready(&self) -> bool {
        true
    }

    /// A word on what the server does not do, though it is ready, for `/readyz` and `/healthz/cluster`.
    fn caveat(&self) -> Option<&'static str> {
        None
    }

    /// The state of the cluster, for `/healthz/cluster`. A server that is alone is its own cluster, which nothing is left of without it.
    fn cluster(&self) -> ClusterHealth {
        ClusterHealth { takes_writes: self.ready(), can_spare_this: false, write_quorum: 1 }
    }

    /// The state of the store or its cluster, as `larder status --json` prints it; `None` of what has none. Only asked for who has
    /// root's keys, and never twice at once.
    fn status(&self) -> impl Future<Output = Option<Bytes>> + Send {
        std::future::ready(None)
    }

    /// The same as MinIO's client reads it, made of the JSON that [`ServerHooks::status`] gave.
    fn minio_info(&self, status: &[u8]) -> Option<Bytes> {
        let _ = status;
        None
    }

    /// The metrics of this process, in a form that the headers accept, with its content type.
    fn metrics(&self, headers: &HeaderMap) -> Option<(&'static str, String)> {
        let _ = headers;
        None
    }

    /// A request has ended. Called from the connection's task: it must not block.
    fn done(&self, ended: &FinishedRequest<'_>) {
        let _ = ended;
    }
}

impl ServerHooks for () {}

/// The state of the whole cluster, which `/healthz/cluster` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterHealth {
    /// True if puts are taken now.
    pub takes_writes: bool,
    /// True if they still would be, and everything could still be read, were this machine taken away.
    pub can_spare_this: bool,
    /// Servers that a put needs at least.
    pub write_quorum: u8,
}
