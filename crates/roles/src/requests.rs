//! Numbers of a session's requests, and the floor below which all are finished.

use std::collections::BTreeSet;
use std::sync::Arc;

use larder_types::{Request, SessionId};
use parking_lot::Mutex;

use crate::limits::OPEN_REPORTED_MAX;

#[derive(Debug)]
struct Numbers {
    session: SessionId,
    next: u64,
    open: BTreeSet<u64>,
    /// Requests whose callers went away before it was known what became of them.
    kept: BTreeSet<u64>,
}

impl Numbers {
    fn floor(&self) -> u64 {
        let open = self.open.first().copied().unwrap_or(self.next);
        self.kept.first().map_or(open, |kept| open.min(*kept))
    }
}

/// The requests of one session, and of the next if it is closed.
#[derive(Debug)]
pub(crate) struct Requests {
    numbers: Mutex<Numbers>,
}

/// A request that goes on without its caller; finished when dropped.
#[derive(Debug)]
pub(crate) struct KeptRequest {
    requests: Arc<Requests>,
    number: u64,
}

impl Drop for KeptRequest {
    fn drop(&mut self) {
        self.requests.numbers.lock().kept.remove(&self.number);
    }
}

/// A request that is under way; finished when dropped.
#[derive(Debug)]
pub(crate) struct OpenRequest<'a> {
    requests: &'a Requests,
    id: Request,
}

impl Requests {
    pub(crate) fn new(session: SessionId) -> Self {
        Self {
            numbers: Mutex::new(Numbers {
                session,
                next: 1,
                open: BTreeSet::new(),
                kept: BTreeSet::new(),
            }),
        }
    }

    pub(crate) fn session(&self) -> SessionId {
        self.numbers.lock().session
    }

    /// Goes on in another session; requests that are open stay of the one in which they began.
    pub(crate) fn begin_session(&self, session: SessionId) {
        self.numbers.lock().session = session;
    }

    /// Every number below it is finished.
    pub(crate) fn floor(&self) -> u64 {
        self.numbers.lock().floor()
    }

    /// A number below which all are finished, but for these, in order.
    pub(crate) fn finished(&self) -> (u64, Vec<u64>) {
        let numbers = self.numbers.lock();
        let mut open: Vec<u64> = numbers.open.union(&numbers.kept).copied().collect();
        let beyond = open.get(OPEN_REPORTED_MAX).copied();
        open.truncate(OPEN_REPORTED_MAX);
        (beyond.unwrap_or(numbers.next), open)
    }

    /// Keeps a request open after the one that began it has finished it.
    pub(crate) fn keep(self: &Arc<Self>, number: u64) -> KeptRequest {
        self.numbers.lock().kept.insert(number);
        KeptRequest { requests: self.clone(), number }
    }

    pub(crate) fn begin(&self) -> OpenRequest<'_> {
        let mut numbers = self.numbers.lock();
        let number = numbers.next;
        numbers.next += 1;
        numbers.open.insert(number);
        let floor = numbers.floor();
        let id = Request { session: numbers.session, number, floor };
        OpenRequest { requests: self, id }
    }
}

impl OpenRequest<'_> {
    pub(crate) fn id(&self) -> Request {
        self.id
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.requests.numbers.lock().open.remove(&self.id.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_in_another_session() {
        let requests = Requests::new(SessionId(1));
        let first = requests.begin();
        requests.begin_session(SessionId(2));
        let second = requests.begin();
        assert_eq!(first.id().session, SessionId(1));
        assert_eq!(second.id(), Request { session: SessionId(2), number: 2, floor: 1 });
    }

    #[test]
    fn a_request_that_is_kept_is_not_finished() {
        let requests = Arc::new(Requests::new(SessionId(1)));
        let first = requests.begin();
        let kept = requests.keep(first.id().number);
        drop(first);
        assert_eq!((requests.floor(), requests.begin().id().floor), (1, 1));
        drop(kept);
        assert_eq!(requests.floor(), 3);
    }

    #[test]
    fn what_is_finished_is_told_but_for_what_is_open_or_kept() {
        let requests = Arc::new(Requests::new(SessionId(1)));
        let [first, second, third] = std::array::from_fn(|_| requests.begin());
        let kept = requests.keep(second.id().number);
        drop(second);
        assert_eq!(requests.finished(), (4, vec![1, 2, 3]));
        drop(third);
        assert_eq!(requests.finished(), (4, vec![1, 2]));
        drop((first, kept));
        assert_eq!(requests.finished(), (4, vec![]));
        let open: Vec<_> = (0..=OPEN_REPORTED_MAX).map(|_| requests.begin()).collect();
        let (below, reported) = requests.finished();
        assert_eq!(
            (below, reported.len()),
            (open[OPEN_REPORTED_MAX].id().number, OPEN_REPORTED_MAX)
        );
    }

    #[test]
    fn the_floor_is_the_oldest_open_request() {
        let requests = Requests::new(SessionId(1));
        let first = requests.begin();
        let second = requests.begin();
        assert_eq!((first.id().floor, second.id().floor), (1, 1));
        drop(first);
        assert_eq!(requests.begin().id().floor, 2);
        assert_eq!(requests.floor(), 2);
        drop(second);
        assert_eq!(requests.floor(), 4, "none is open");
        assert_eq!(requests.begin().id(), Request { session: SessionId(1), number: 4, floor: 4 });
    }
}
