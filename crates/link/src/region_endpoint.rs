//! This region's end of all links: a server opens it if its store is a region.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use larder_types::{LogLimiter, RegionId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::blocking;
#[cfg(feature = "simulated")]
use crate::error::Usage;
use crate::error::{LinkError, Refused};
use crate::limits::{MEMBERS_INTERVAL, POLL_INTERVAL};
use crate::link::Link;
use crate::listener::Listener;
use crate::members::{Members, OwnRegion};
use crate::message::RegionList;
use crate::metrics::Metrics;
use crate::registry::{Registry, identity};
use crate::requests::RequestHandler;
#[cfg(feature = "simulated")]
use crate::simulated::SimulatedLinks;
use crate::source::Source;
use crate::transport::{ListenSocket, Transport};

/// See the module's head.
#[derive(Debug)]
pub struct RegionEndpoint {
    number: RegionId,
    transport: Transport,
    registry: Arc<Registry>,
    metrics: Arc<Metrics>,
    links: Mutex<BTreeMap<RegionId, Arc<Link>>>,
}

impl RegionEndpoint {
    /// Opens the site of the store in a directory; `None` if the store is no region.
    ///
    /// # Errors
    /// If its files cannot be read, or do not belong together.
    pub fn open(dir: &Path) -> Result<Option<Arc<Self>>, LinkError> {
        Self::with(dir, |own| {
            let identity = identity(dir)?;
            if identity.fingerprint() != own.fingerprint {
                let (path, why) =
                    (dir.join("region/identity"), "it is the key of another region".into());
                return Err(LinkError::Damaged { path, why });
            }
            Transport::of(identity)
        })
    }

    /// Opens the site of the region in a directory, whose links are streams of a simulation.
    ///
    /// # Errors
    /// If its files cannot be read, or it is no region.
    #[cfg(feature = "simulated")]
    pub fn simulated(dir: &Path, roads: Arc<dyn SimulatedLinks>) -> Result<Arc<Self>, LinkError> {
        Self::with(dir, |_| Ok(Transport::Simulated(roads)))?
            .ok_or_else(|| Usage::NotRegion(dir.to_owned()).into())
    }

    /// Opens the site of the store in a directory, which speaks over this transport.
    pub(crate) fn with(
        dir: &Path,
        transport: impl FnOnce(&OwnRegion) -> Result<Transport, LinkError>,
    ) -> Result<Option<Arc<Self>>, LinkError> {
        let Some(registry) = Registry::open(dir)? else { return Ok(None) };
        let own = registry.now().own.clone();
        Ok(Some(Arc::new(Self {
            number: own.number,
            transport: transport(&own)?,
            registry: Arc::new(registry),
            metrics: Arc::default(),
            links: Mutex::default(),
        })))
    }

    /// This region's number.
    #[must_use]
    pub fn number(&self) -> RegionId {
        self.number
    }

    /// The list of regions, and its changes from now on.
    #[must_use]
    pub fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.registry.subscribe()
    }

    /// The list of regions, in the form in which regions exchange it and a cluster's managers keep it. Once they have it,
    /// [`RegionEndpoint::is_kept`] is to be called.
    #[must_use]
    pub fn known(&self) -> RegionList {
        RegionList { regions: self.registry.now().exchanged() }
    }

    /// Notes that this list is kept outside the directory: other regions may be told of its numbers.
    pub fn is_kept(&self, known: &RegionList) {
        self.registry.are_kept(&known.regions);
    }

    /// Joins in a list that was kept elsewhere: the directory's may be an older copy. Waits for the disk.
    ///
    /// # Errors
    /// If the lists contradict each other, and if the file cannot be written.
    pub fn learn(&self, known: &RegionList) -> Result<(), LinkError> {
        self.registry.merge(&known.regions)
    }

    /// Counters of its links.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The link to another region; `None` if no region has that number, or it was removed.
    ///
    /// # Errors
    /// If TLS cannot use the key.
    pub fn link_to(&self, number: RegionId) -> Result<Option<Arc<Link>>, LinkError> {
        let members = self.registry.now();
        let mut links = self.links.lock();
        let Some(peer) = members.peer(number) else {
            links.remove(&number);
            return Ok(None);
        };
        let link = match links.get(&number) {
            Some(link) => link.clone(),
            None => {
                let way = self.transport.connector_to(peer.fingerprint)?;
                let link = Arc::new(Link::to(peer, way, self.metrics.of(number)));
                links.insert(number, link.clone());
                link
            }
        };
        link.compress(members.is_compressed(number));
        Ok(Some(link))
    }

    /// Answers other regions where this one listens: at a socket that is bound to [`crate::OwnRegion::listen`].
    ///
    /// # Errors
    /// If the socket has no address.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn listen<S: Source>(
        &self,
        listen_socket: impl Into<ListenSocket>,
        source: Arc<S>,
    ) -> std::io::Result<Listener> {
        let (registry, metrics) = (self.registry.clone(), self.metrics.clone());
        let listen_socket = listen_socket.into();
        let address = listen_socket.address()?;
        let handler = RequestHandler { registry, metrics, source };
        Ok(Listener::start(address, self.transport.acceptor(listen_socket), handler))
    }

    /// Takes up changes that commands make, and exchanges lists with the other regions. Does not end.
    pub async fn tend(self: Arc<Self>) {
        let looking = self.clone();
        tokio::join!(looking.keep_reloading(), self.keep_exchanging());
    }

    async fn keep_reloading(&self) {
        let (since, mut lines) = (Instant::now(), LogLimiter::default());
        loop {
            sleep(POLL_INTERVAL).await;
            let registry = self.registry.clone();
            let looked = blocking::run(move || registry.reload()).await;
            if let Ok(Err(error)) = looked
                && lines.happens(since.elapsed().as_millis() as u64).is_some()
            {
                tracing::error!(%error, "the list of regions cannot be read: the last one read stays in use");
            }
            self.links.lock().values().for_each(|link| link.tend());
        }
    }

    #[cfg(test)]
    pub(crate) fn answering(&self) -> &Arc<rustls::ServerConfig> {
        self.transport.answering()
    }

    #[cfg(test)]
    pub(crate) fn exchanged(&self) -> Vec<crate::members::Known> {
        self.registry.exchanged()
    }

    #[cfg(test)]
    pub(crate) fn reload_once(&self) -> Result<(), LinkError> {
        self.registry.reload()
    }

    /// Exchanges lists with all other regions from time to time, and when this one's has changed.
    async fn keep_exchanging(&self) {
        let mut members = self.members();
        loop {
            members.mark_unchanged();
            self.exchange_lists().await;
            // The registry keeps the sender: it does not end.
            let news = async {
                tokio::select! {
                    biased;
                    _changed = members.changed() => {}
                    () = self.registry.publishes_more() => {}
                }
            };
            let _news = timeout(MEMBERS_INTERVAL, news).await;
        }
    }

    /// Exchanges lists with all other regions once.
    pub(crate) async fn exchange_lists(&self) {
        let members = self.registry.now();
        if members.own.removed {
            return;
        }
        let mut asked = JoinSet::new();
        for peer in members.live() {
            let (number, known) = (peer.number, self.registry.exchanged());
            if let Ok(Some(link)) = self.link_to(number) {
                asked.spawn(async move { (number, link.members(known).await) });
            }
        }
        while let Some(Ok((number, reported))) = asked.join_next().await {
            let registry = self.registry.clone();
            let taken = match reported {
                Ok(reported) => blocking::run(move || registry.merge(&reported)).await,
                Err(LinkError::Refused(Refused::Removed)) => {
                    tracing::error!(%number, "this region was removed: it neither sends nor receives changes any more");
                    blocking::run(move || registry.change(Members::note_own_removal)).await
                }
                Err(error) => Ok(Err(error)),
            };
            match taken {
                Ok(Err(error @ LinkError::Unsound(_))) => {
                    tracing::error!(%number, %error, "a region's list of regions was rejected");
                }
                Ok(Err(error)) => {
                    tracing::debug!(%number, %error, "a region did not send its list of regions")
                }
                Ok(Ok(())) | Err(_) => {}
            }
        }
    }
}
