//! The driver of a region: answers other regions, and takes what they have (ADR 42, ADR 43).
//!
//! ```text
//!  another region ──ask, walk, list, fetch──▶ answering.rs ──▶ rows of the store (shown.rs), bytes through the proxy
//!  another region ◀──ask, walk, list, fetch── puller.rs, which steps the machine ──▶ taking.rs ──▶ the proxy's told puts
//! ```
//!
//! | file | what |
//! |---|---|
//! | `shown.rs` | reads entries from the index |
//! | `runs.rs` | reads keys of a range, for comparisons |
//! | `names.rs` | maps buckets there to buckets here |
//! | `sharing.rs` | shares buckets that this region had alone |
//! | `deletions.rs` | deletes buckets in all regions |
//! | `homes.rs`, `homes/run.rs` | makes one region the home of a bucket |
//! | `clients.rs` | knows how busy the machines of the store are |
//! | `changes.rs` | has the home of a bucket make clients' changes |
//! | `source.rs` | knows what other regions may be told, and how far they are |
//! | `answering.rs` | answers other regions |
//! | `fetches.rs` | sends them entries and their bytes |
//! | `echo_filter.rs` | tells no region what it told itself |
//! | `journal.rs` | forgets outcomes that all regions have |
//! | `inbox.rs`, `puller.rs` | steps the machine, and carries out its effects |
//! | `reported.rs` | knows how far the others reported to be |
//! | `reports.rs` | tells other regions how far this one is |
//! | `positions.rs` | tells this store's primaries how far the others are |
//! | `local_entries.rs` | reads what the machine looks up |
//! | `misses.rs` | asks for keys that clients read and are not here |
//! | `places.rs` | gives buckets places for that by turns |
//! | `settings.rs` | takes up settings of buckets that a command asked for |
//! | `lists.rs` | lists the keys of all regions |
//! | `tombstones.rs` | frees tombstones that all regions have passed |
//! | `taking.rs` | puts entries and their bytes into the store |
//! | `watch.rs` | shows the status to operators |
//!
//! The store is a single node or a cluster: [`RegionAccess`] hides which. In a cluster one proxy runs the driver: the
//! *gateway*. The other servers know from the map that the cluster is a region.
//!
//! # Invariants
//!
//! 1. A token moves, and is noted, only once each change that it covers was acknowledged as durable.
//! 2. The link checks another region's answers, and `taking.rs` its entries, before they are used.
//! 3. The driver tells a PG's journal only once all puts from before the store had a number show.
//! 4. Buckets of two regions are the same if their names are. The driver makes buckets that only other regions have, and a bucket is
//!    deleted in all of them. One that a region has alone is none of theirs.

mod answering;
mod changes;
mod clients;
mod deletions;
mod echo_filter;
mod fetches;
mod homes;
mod in_flight;
mod inbox;
mod journal;
mod lists;
mod local_entries;
mod misses;
mod names;
mod parts;
mod places;
mod positions;
mod puller;
mod remote;
mod reported;
mod reports;
mod runs;
mod settings;
mod sharing;
mod shown;
mod source;
mod taking;
mod tombstones;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use larder_env::threads::JoinHandle;
use larder_link::{Link, LinkError, ListenSocket, Listener, RegionEndpoint, RegionStatus};
use larder_types::{PgId, RegionId};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::sync::watch::Sender;

use crate::clock::StoreClock;
use crate::limits::{REGION_CHANGES_MADE_MAX, REGION_LISTED_MAX, REGION_LISTS_MAX};
use crate::notifier::Notifier;
use crate::proxy::{OtherRegions, Proxy, RegionAccess};
use answering::Answering;
use clients::Clients;
use deletions::Deletions;
use echo_filter::EchoFilter;
use homes::Homes;
use in_flight::InFlight;
use inbox::Inbox;
use misses::Misses;
use names::BucketIds;
use parts::Partials;
use puller::Puller;
use reports::Reports;
use runs::Unreadable;
use sharing::Unshared;
use shown::PublishedState;
use source::SourceState;
use watch::Watch;

/// The PG that keeps the tokens of other regions' journals. It is always the same one, so that each journal has one row.
const TOKENS_PG: PgId = PgId(0);

/// State shared by the parts of a region's driver.
struct Shared<R: RegionAccess> {
    shown: PublishedState<R>,
    proxy: Arc<Proxy<R>>,
    region_endpoint: Arc<RegionEndpoint>,
    names: BucketIds,
    deletions: Deletions,
    homes: Arc<Homes>,
    unshared: Unshared,
    /// The thread that pulls.
    inbox: Inbox,
    /// Places for changes of other regions' clients.
    made: Semaphore,
    /// Places for lists of all regions.
    lists: Semaphore,
    /// Places for reading keys for lists, of this region and others.
    listed: Arc<Semaphore>,
    echo_filter: EchoFilter,
    watch: Arc<Watch>,
    in_flight: Arc<InFlight>,
    partials: Partials<R>,
    clients: Clients,
    reports: Reports,
    /// Tells when journals may show more.
    notifier: Notifier,
    /// True once each other region was asked for its clock, or it is time to do without.
    clocks: Sender<bool>,
    /// True once the driver is to stop: waits for other servers end then.
    stops: Sender<bool>,
    runtime: Handle,
}

impl<R: RegionAccess> Shared<R> {
    /// The other regions' numbers; `None` if the list lacks a region whose changes are here: it is an old copy, and
    /// other regions that it lacks may lack changes.
    async fn others(&self) -> Result<Option<Vec<RegionId>>, Unreadable> {
        let known = self.shown.passed().await?;
        let members = self.region_endpoint.members().borrow().clone();
        if let Some(stranger) = known.iter().find(|it| !members.has_number(it.region)) {
            self.watch.report_unlisted(stranger.region);
            return Ok(None);
        }
        Ok(Some(members.live().map(|peer| peer.number).collect()))
    }

    /// The time by which this store dates changes, and judges those of others.
    fn clock(&self) -> &StoreClock {
        self.shown.access().clock()
    }

    /// The link to another region.
    fn link_to(&self, region: RegionId) -> Result<Arc<Link>, LinkError> {
        let gone = || LinkError::Unsound("a region that is no more".to_owned());
        self.region_endpoint.link_to(region)?.ok_or_else(gone)
    }
}

/// A region's driver. It works until it is stopped, or dropped.
pub struct Regions {
    region_endpoint: Arc<RegionEndpoint>,
    watch: Arc<Watch>,
    homes: Arc<Homes>,
    inbox: Inbox,
    clocks: Sender<bool>,
    stops: Sender<bool>,
    running: Mutex<Option<Running>>,
}

/// Thread and tasks that end when the driver stops.
struct Running {
    pulling: JoinHandle<()>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    _listening: Listener,
    /// For the proxy, which does not keep the driver.
    _misses: Arc<dyn OtherRegions>,
}

impl Regions {
    /// Begins to answer other regions where this one listens, and to pull from them. Writes its status to `dir` regularly, for
    /// `larder region status`.
    ///
    /// # Errors
    /// If the socket has no address, or no thread can be had.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or if the store has another number.
    pub fn start<R: RegionAccess>(
        region_endpoint: Arc<RegionEndpoint>,
        proxy: &Arc<Proxy<R>>,
        listen_socket: impl Into<ListenSocket>,
        dir: PathBuf,
    ) -> std::io::Result<Self> {
        let shown = PublishedState::new(proxy.clone());
        assert_eq!(shown.own(), region_endpoint.number(), "a store knows its number among regions");
        let (seen, stops) = (Arc::new(Watch::new()), Sender::new(false));
        let clocks = Sender::new(false);
        let homes = Arc::new(Homes::default());
        let (inbox, messages) = Inbox::new();
        let shared = Arc::new(Shared {
            shown,
            proxy: proxy.clone(),
            region_endpoint: region_endpoint.clone(),
            names: BucketIds::default(),
            deletions: Deletions::default(),
            homes: homes.clone(),
            unshared: Unshared::default(),
            inbox: inbox.clone(),
            made: Semaphore::new(REGION_CHANGES_MADE_MAX),
            lists: Semaphore::new(REGION_LISTS_MAX),
            listed: Arc::new(Semaphore::new(REGION_LISTED_MAX)),
            echo_filter: EchoFilter::default(),
            watch: seen.clone(),
            in_flight: Arc::default(),
            partials: Partials::default(),
            clients: Clients::default(),
            reports: Reports::default(),
            notifier: Notifier::default(),
            clocks: clocks.clone(),
            stops: stops.clone(),
            runtime: Handle::current(),
        });
        let state = Arc::new(SourceState::new(shared.clone()));
        let listening =
            region_endpoint.listen(listen_socket, Arc::new(Answering::new(state.clone())))?;
        let members = region_endpoint.members();
        let puller = Puller::new(shared.clone(), inbox.clone());
        let pulling = larder_env::threads::spawn("regions", move || puller.run(&messages))?;
        // Nothing after this fails: the proxy can be told only once.
        let misses: Arc<dyn OtherRegions> = Arc::new(Misses::new(shared.clone()));
        proxy.set_other_regions(&misses);
        let notifier = shared.clone();
        let tasks = vec![
            tokio::spawn(region_endpoint.clone().tend()),
            tokio::spawn(source::settle(shared.clone(), state.clone())),
            tokio::spawn(source::keep_list(shared.clone())),
            tokio::spawn(journal::shorten(shared.clone(), state.clone())),
            tokio::spawn(tombstones::free(shared.clone(), state.clone(), inbox.clone())),
            tokio::spawn(positions::report_loop(shared.clone(), state.clone())),
            tokio::spawn(sharing::follow(shared.clone(), state)),
            tokio::spawn(clients::watch(shared.clone())),
            tokio::spawn(reports::send(shared.clone())),
            tokio::spawn(deletions::follow(shared.clone())),
            tokio::spawn(homes::follow(shared.clone(), dir.clone())),
            tokio::spawn(homes::report_loop(shared.clone())),
            tokio::spawn(settings::take_up(shared.clone(), dir.clone())),
            tokio::spawn(watch::keep_writing_status(shared.clone(), dir)),
            tokio::spawn(puller::watch_members(members, inbox.clone())),
            tokio::spawn(async move {
                notifier.shown.access().watch_journals(&notifier.notifier).await
            }),
        ];
        let running =
            Mutex::new(Some(Running { pulling, tasks, _listening: listening, _misses: misses }));
        Ok(Self { region_endpoint, watch: seen, homes, inbox, clocks, stops, running })
    }

    /// Returns once each other region was asked what its clock says, after
    /// [`REGION_CLOCKS_MS`](crate::limits::REGION_CLOCKS_MS) at the latest: changes that clients make before are dated by a clock that
    /// nobody has judged.
    pub async fn clocks_are_known(&self) {
        // The sender lives as long as this.
        let mut clocks = self.clocks.subscribe();
        let _known = clocks.wait_for(|are_known| *are_known).await;
    }

    /// The status for operators.
    #[must_use]
    pub fn status(&self) -> RegionStatus {
        self.watch.status(&self.region_endpoint)
    }

    /// Returns true if the other regions have removed this one, as far as it has heard.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.region_endpoint.members().borrow().own.removed
    }

    /// Counters of entries, for metrics.
    #[must_use]
    pub fn counters(&self) -> &RegionCounters {
        self.watch.counters()
    }

    /// Counters of homes of buckets, for metrics.
    #[must_use]
    pub fn homes(&self) -> &HomeCounters {
        self.homes.counters()
    }

    /// Counters of the links, for metrics.
    #[must_use]
    pub fn links(&self) -> &Arc<larder_link::Metrics> {
        self.region_endpoint.metrics()
    }

    /// Stops pulling and answering. The next run asks again for what has not come.
    pub fn stop(&self) {
        let Some(running) = self.running.lock().take() else { return };
        running.tasks.into_iter().for_each(|task| task.abort());
        self.stops.send_replace(true);
        self.inbox.stop();
        if running.pulling.join().is_err() {
            tracing::error!("the thread that pulls from other regions panicked");
        }
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        self.stop();
    }
}

pub use homes::HomeCounters;
pub use watch::RegionCounters;
