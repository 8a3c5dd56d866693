//! The state of the fetches of maps: how far each is, which one gathers pages, and what that means for a start.
//!
//! # Invariants
//!
//! 1. One fetch of a client gathers pages at a time. It keeps its turn while pages come. Once it is late it loses its turn to
//!    another that was asked since its last page. So a slow manager whose pages go on to come is not left for one as slow.
//! 2. A busy manager has sent no page. Behind a page, being busy keeps others from being asked, and a start from giving up,
//!    for a while alone.
//! 3. A manager that says that it has no quorum makes nobody wait longer. Where a command needs the map, that ends its wait
//!    soon, unless another manager has a page or a map.

use std::sync::Arc;
use std::time::Duration;

use larder_protocol::manager::state::MapVersion;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::limits::{
    MAP_BEHIND_MS, MAP_BUSY_MS, MAP_LATE_MS, MAP_PAGE_LATE_MS, MAP_WAIT_MS, NO_QUORUM_MS,
    START_BUSY_MS_MAX, START_MS_MAX,
};

const PAGE_LATE: Duration = Duration::from_millis(MAP_PAGE_LATE_MS);

/// The progress of a manager that was asked.
#[derive(Debug)]
pub(super) struct Progress(Mutex<ProgressState>);

#[derive(Debug)]
struct ProgressState {
    asked_at: Instant,
    late_at: Instant,
    /// The time of the last page.
    page_at: Option<Instant>,
}

impl Progress {
    /// Of one that is asked now. A manager that works has answered before it is late, if only that it knows no newer map.
    pub(super) fn begin() -> Self {
        let asked_at = Instant::now();
        let late_at = asked_at + Duration::from_millis(MAP_WAIT_MS + MAP_LATE_MS);
        Self(Mutex::new(ProgressState { asked_at, late_at, page_at: None }))
    }

    /// Returns when it is late.
    pub(super) async fn late(&self) {
        loop {
            let late_at = self.0.lock().late_at;
            if late_at <= Instant::now() {
                return;
            }
            sleep_until(late_at).await;
        }
    }

    /// Returns true if pages come from it, and it is not late.
    pub(super) fn is_gathering(&self) -> bool {
        let state = self.0.lock();
        state.page_at.is_some() && state.late_at > Instant::now()
    }

    /// Returns true if it is not late, or a page came since another was asked.
    fn keeps_turn(&self, other: &Self) -> bool {
        let asked_at = other.0.lock().asked_at;
        self.is_gathering() || self.0.lock().page_at.is_some_and(|page_at| page_at > asked_at)
    }

    fn page_received(&self) {
        let (mut state, now) = (self.0.lock(), Instant::now());
        (state.late_at, state.page_at) = (now + PAGE_LATE, Some(now));
    }

    /// It says that it has no room for the next page.
    pub(super) fn is_busy(&self) {
        let (mut state, now) = (self.0.lock(), Instant::now());
        let longest = Duration::from_millis(MAP_BUSY_MS);
        if state.page_at.is_some_and(|page_at| now < page_at + longest) {
            state.late_at = now + PAGE_LATE;
        }
    }
}

/// Finds a manager whose pages come to be behind: for long it has not heard of what others told before a page was asked for.
#[derive(Debug, Default)]
pub(super) struct Behind(Option<Instant>);

impl Behind {
    /// A page came, of an earlier map than others told of or not. Returns true if all did for too long.
    pub(super) fn page(&mut self, is_earlier: bool, now: Instant) -> bool {
        let since = is_earlier.then(|| self.0.unwrap_or(now));
        self.0 = since;
        since.is_some_and(|since| now >= since + Duration::from_millis(MAP_BEHIND_MS))
    }
}

/// The signs that managers gave a client of the map that it waits for.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Signs {
    page_at: Option<Instant>,
    busy_at: Option<Instant>,
    /// The time since when managers say that they have no quorum, without a page or a map from any of them.
    no_quorum_at: Option<Instant>,
}

impl Signs {
    /// The time at which a start that began then gives up, if it waits for so long. Before the first page, busy managers do not
    /// extend it: those of earlier releases report the same without a quorum, and have no map to wait for.
    pub(super) fn give_up(self, begun: Instant, max_wait: Duration) -> Instant {
        let Some(page_at) = self.page_at.filter(|page_at| *page_at >= begun) else {
            return begun + max_wait;
        };
        let busy_until = page_at + Duration::from_millis(START_BUSY_MS_MAX);
        let since = self.busy_at.map_or(page_at, |busy_at| busy_at.clamp(page_at, busy_until));
        (since + max_wait).min(begun + Duration::from_millis(START_MS_MAX))
    }

    /// The time at which managers have said for longer than an election takes that they have no quorum.
    pub(super) fn without_quorum(self) -> Option<Instant> {
        self.no_quorum_at.map(|at| at + Duration::from_millis(NO_QUORUM_MS))
    }
}

/// The state that all fetches of a client share.
#[derive(Debug)]
pub(super) struct FetchState {
    /// The latest version that somebody told of.
    newest: watch::Sender<MapVersion>,
    /// The fetch that gathers pages.
    gathers: Mutex<Option<Arc<Progress>>>,
    signs: Mutex<Signs>,
    /// Changes when managers begin to say that they have no quorum, and when that ends.
    quorum: watch::Sender<bool>,
}

impl Default for FetchState {
    fn default() -> Self {
        let newest = watch::Sender::new(MapVersion(0));
        let (gathers, signs, quorum) =
            (Mutex::default(), Mutex::default(), watch::Sender::new(true));
        Self { newest, gathers, signs, quorum }
    }
}

impl FetchState {
    /// Somebody told of a map of this version.
    pub(super) fn note_newer_map(&self, version: MapVersion) {
        self.newest.send_if_modified(|newest| {
            let is_later = version > *newest;
            *newest = (*newest).max(version);
            is_later
        });
    }

    /// The latest version that somebody told of.
    pub(super) fn newest(&self) -> watch::Receiver<MapVersion> {
        self.newest.subscribe()
    }

    /// A page came to a fetch. Returns true if it gathers pages from now on: no other keeps its turn.
    pub(super) fn page_received(&self, progress: &Arc<Progress>) -> bool {
        self.signs.lock().page_at = Some(Instant::now());
        self.has_quorum();
        let mut gathers = self.gathers.lock();
        let is_anothers =
            |it: &Arc<Progress>| !Arc::ptr_eq(it, progress) && it.keeps_turn(progress);
        if gathers.as_ref().is_some_and(is_anothers) {
            return false;
        }
        progress.page_received();
        *gathers = Some(progress.clone());
        true
    }

    /// A fetch gathers no more.
    pub(super) fn leave(&self, progress: &Arc<Progress>) {
        let mut gathers = self.gathers.lock();
        *gathers = gathers.take().filter(|it| !Arc::ptr_eq(it, progress));
    }

    /// A manager says that it has no room for a page.
    pub(super) fn is_busy(&self) {
        self.signs.lock().busy_at = Some(Instant::now());
    }

    /// A manager says that it has no quorum.
    pub(super) fn has_no_quorum(&self) {
        self.signs.lock().no_quorum_at.get_or_insert_with(Instant::now);
        self.quorum.send_if_modified(|has| std::mem::replace(has, false));
    }

    /// A page or a map came, or a manager says that there is no later one.
    pub(super) fn has_quorum(&self) {
        self.signs.lock().no_quorum_at = None;
        self.quorum.send_if_modified(|has| !std::mem::replace(has, true));
    }

    /// Returns once managers have said for long enough that they have no quorum.
    pub(super) async fn without_quorum(&self) {
        let mut quorum = self.quorum.subscribe();
        loop {
            quorum.mark_unchanged();
            let until = self.signs().without_quorum();
            if until.is_some_and(|until| until <= Instant::now()) {
                return;
            }
            let passed = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Ok(()) = quorum.changed() => {}
                () = passed => {}
            }
        }
    }

    pub(super) fn signs(&self) -> Signs {
        *self.signs.lock()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_manager_whose_pages_come_is_not_late() {
        let (begun, progress) = (Instant::now(), Arc::new(Progress::begin()));
        assert!(!progress.is_gathering());
        let late = tokio::spawn({
            let progress = progress.clone();
            async move { progress.late().await }
        });
        let pages = 5;
        for _ in 0..pages {
            sleep(Duration::from_millis(MAP_WAIT_MS)).await;
            progress.page_received();
        }
        assert!(progress.is_gathering() && !late.is_finished());
        late.await.unwrap();
        assert!(!progress.is_gathering());
        let passed = Duration::from_millis(pages * MAP_WAIT_MS + MAP_PAGE_LATE_MS);
        assert_eq!(begun.elapsed().as_millis(), passed.as_millis());
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_is_busy_for_long_is_late() {
        let progress = Progress::begin();
        progress.is_busy();
        advance(Duration::from_millis(MAP_WAIT_MS + MAP_LATE_MS)).await;
        progress.late().await;
        progress.page_received();
        let page_at = Instant::now();
        while progress.is_gathering() {
            progress.is_busy();
            advance(100 * MS).await;
        }
        let late = Duration::from_millis(MAP_BUSY_MS) + PAGE_LATE;
        assert!((late - 100 * MS..=late).contains(&page_at.elapsed()), "{:?}", page_at.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn one_fetch_gathers_pages_until_none_come_to_it() {
        let (fetches, begin) = (FetchState::default(), || Arc::new(Progress::begin()));
        let (one, other) = (begin(), begin());
        assert!(fetches.page_received(&one) && fetches.page_received(&one));
        advance(PAGE_LATE - MS).await;
        assert!(!fetches.page_received(&other), "pages come to another");
        assert!(!other.is_gathering());
        advance(MS).await;
        assert!(!one.is_gathering());
        let other = begin();
        advance(MS).await;
        assert!(fetches.page_received(&other), "that one is late, and none has come since");
        assert!(!fetches.page_received(&one), "and has lost its turn");
        fetches.leave(&one);
        assert!(!fetches.page_received(&one), "it was not its turn");
        fetches.leave(&other);
        assert!(fetches.page_received(&one));
    }

    #[tokio::test(start_paused = true)]
    async fn slow_managers_do_not_take_the_turn_from_each_other() {
        let (fetches, begin) = (FetchState::default(), || Arc::new(Progress::begin()));
        let slow = PAGE_LATE + 200 * MS;
        let one = begin();
        assert!(fetches.page_received(&one));
        for _ in 0..20 {
            advance(PAGE_LATE).await;
            let other = begin();
            advance(slow - PAGE_LATE).await;
            assert!(fetches.page_received(&one), "no page has come to another");
            advance(PAGE_LATE).await;
            assert!(!one.is_gathering());
            assert!(!fetches.page_received(&other), "it was asked before the last page");
            fetches.leave(&other);
            advance(slow - PAGE_LATE).await;
            assert!(fetches.page_received(&one));
        }
        advance(PAGE_LATE).await;
        let quicker = begin();
        advance(100 * MS).await;
        assert!(fetches.page_received(&quicker));
        assert!(!fetches.page_received(&one));
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_does_not_hear_of_what_others_tell_is_left_after_a_while() {
        let (begun, mut behind) = (Instant::now(), Behind::default());
        let late = Duration::from_millis(MAP_BEHIND_MS);
        assert!(!behind.page(true, begun));
        assert!(!behind.page(true, begun + late - MS));
        assert!(!behind.page(false, begun + late), "it has heard of it");
        assert!(!behind.page(true, begun + late));
        assert!(behind.page(true, begun + 2 * late));
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_longer_while_its_map_comes_and_not_for_ever() {
        let (begun, max_wait) = (Instant::now(), Duration::from_secs(30));
        let fetches = FetchState::default();
        let waits = || fetches.signs().give_up(begun, max_wait) - begun;
        assert_eq!(waits(), max_wait);
        let busy = Duration::from_millis(START_BUSY_MS_MAX);
        fetches.is_busy();
        assert_eq!(waits(), max_wait, "no page has come: it may have no quorum");
        assert!(fetches.page_received(&Arc::new(Progress::begin())));
        advance(busy / 2).await;
        fetches.is_busy();
        assert_eq!(waits(), busy / 2 + max_wait);
        advance(busy).await;
        fetches.is_busy();
        assert_eq!(waits(), busy + max_wait, "no other page has come");
        assert!(fetches.page_received(&Arc::new(Progress::begin())));
        assert_eq!(waits(), 3 * busy / 2 + max_wait);
        advance(Duration::from_millis(START_MS_MAX)).await;
        assert!(fetches.page_received(&Arc::new(Progress::begin())));
        assert_eq!(waits(), Duration::from_millis(START_MS_MAX), "pages that never end");
    }

    #[tokio::test(start_paused = true)]
    async fn that_there_is_no_quorum_ends_a_wait_soon_unless_a_manager_has_the_map() {
        let (begun, fetches) = (Instant::now(), FetchState::default());
        let long = Duration::from_millis(NO_QUORUM_MS);
        fetches.is_busy();
        assert_eq!(fetches.signs().without_quorum(), None, "a busy manager may have one");
        fetches.has_no_quorum();
        advance(long / 2).await;
        fetches.has_no_quorum();
        fetches.without_quorum().await;
        assert_eq!(begun.elapsed().as_millis(), long.as_millis(), "counted from the first");
        let max_wait = Duration::from_secs(30);
        assert_eq!(
            fetches.signs().give_up(begun, max_wait),
            begun + max_wait,
            "no start waits for it"
        );
        fetches.has_no_quorum();
        assert!(fetches.page_received(&Arc::new(Progress::begin())));
        assert_eq!(fetches.signs().without_quorum(), None, "the map comes");
        fetches.has_no_quorum();
        fetches.has_quorum();
        let waited = tokio::time::timeout(10 * long, fetches.without_quorum()).await;
        assert!(waited.is_err(), "another manager has one");
    }
}
