//! Starts a worker that shares its bucket: it announces itself, reads all that the others have, and only then serves.

use std::sync::Arc;
use std::time::Duration;

use larder_net::Endpoint;
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use super::feed::{Caller, FeedSource, Handed, identity};
use super::index_store::Directory;
use super::tasks::{Tasks, open_feed};
use super::version_gc::VersionGc;
use super::{Others, Reads, Sharing};
use crate::backend::Backend;
use crate::clock::{now_ms, uptime};
use crate::commit::committer::Marks;
use crate::commit::queue::Queue;
use crate::commit::spool::Spool;
use crate::error::PackError;
use crate::ids::WorkerId;
use crate::index::Index;
use crate::owner::announce::Announcement;
use crate::owner::naming::Named;
use crate::owner::ownership::Ownership;

/// A worker that knows the others, and does not serve yet.
pub(crate) struct Joined {
    pub(crate) others: Arc<Others>,
    socket: Option<TcpListener>,
    endpoint: Arc<Endpoint>,
    worker: WorkerId,
}

/// The work that goes on while it serves.
pub(crate) struct Shares {
    pub(crate) version_gc: Arc<Mutex<VersionGc>>,
    pub(crate) tasks: Tasks,
    pub(crate) handed: Arc<Handed>,
}

impl Joined {
    /// Joins the others over the bucket `root`, as the owner of its claim. `grace` is how long what nothing needs stays
    /// there.
    ///
    /// # Errors
    /// [`PackError`], also if what one of the others has cannot be read.
    pub(crate) async fn join(
        named: Named,
        worker: WorkerId,
        root: Backend,
        (sharing, grace): (Option<Sharing>, Duration),
        reads: Reads,
    ) -> Result<Self, PackError> {
        let sharing = sharing.unwrap_or_else(|| Sharing::new(named.name.clone()));
        sharing.check(grace)?;
        let secret = identity::secret_of(&root).await?;
        let endpoint = Endpoint::new(identity::credentials(&secret, worker)?);
        let (socket, address) = open_feed(&sharing).await?;
        let Named { name, prefix } = named;
        let me = Announcement { name, prefix, worker, address, announced_ms: now_ms() };
        let index_store = Box::new(Directory::of(&reads.dir)?);
        let caller = Caller::new(endpoint.clone());
        let others = Others::new(me, root, sharing, index_store, reads, caller, uptime);
        others.announce().await?;
        others.poll_first().await?;
        Ok(Self { others: Arc::new(others), socket, endpoint, worker })
    }

    /// Begins what goes on while the worker serves.
    ///
    /// # Errors
    /// If the socket for the others has no address.
    pub(crate) fn start(
        self,
        index: &Arc<Index>,
        spool: &Arc<Spool>,
        queue: &Arc<Queue>,
        marks: &Arc<Marks>,
        owner: &Arc<Ownership>,
    ) -> Result<Shares, PackError> {
        let Self { others, socket, endpoint, worker } = self;
        let handed = Arc::new(Handed::new(marks.clone()));
        let listener = socket.map(|socket| {
            let feed = FeedSource::new(worker, spool.clone(), index.clone(), handed.clone());
            Arc::new(feed.owned(owner.clone())).listen(&endpoint, socket)
        });
        let version_gc =
            VersionGc::new(others.clone(), index.clone(), queue.clone(), marks.clone());
        let version_gc = Arc::new(Mutex::new(version_gc));
        let tasks = Tasks::start(others, listener.transpose()?, version_gc.clone());
        Ok(Shares { version_gc, tasks, handed })
    }
}
