//! Catches up with the managers' committed map, before a client hears that there is no such bucket.
//!
//! Another proxy may have answered a CreateBucket, and the map with it is still on its way here.
//!
//! # Invariants
//!
//! 1. A caller relies only on a question that begins after its call. What was answered before the call is in the map then.
//! 2. One question is under way at a time, whatever names callers look for. All who call meanwhile share the next. So unknown
//!    names cost the managers at most one question each [`BUCKET_QUESTION_PAUSE`].
//! 3. No answer is kept: it is true of the time before it alone.
//! 4. A caller that cannot be told by its deadline is told that, and not that there is no bucket.

use std::sync::{Arc, Weak};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use larder_objects::ObjectError;
use larder_protocol::manager::state::Topology;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::super::unavailable;
use super::counters::{ProxyCounters, count};
use super::primaries::Primaries;
use super::route::found;
use super::unavailable_pgs::deadline_of_managers;
use crate::limits::{BUCKET_QUESTION_MAX, BUCKET_QUESTION_PAUSE};
use crate::managers::{Managers, NotProposed};

type Question = Shared<BoxFuture<'static, Result<(), NotProposed>>>;

/// See the module's head.
pub(super) struct CatchUp {
    managers: Arc<dyn Managers>,
    primaries: Arc<Primaries>,
    /// The question that callers may join: it has not begun.
    next: Mutex<Option<Question>>,
    /// The time at which the last question began. Held while one is under way.
    begun: tokio::sync::Mutex<Option<Instant>>,
}

impl CatchUp {
    pub(super) fn new(managers: Arc<dyn Managers>, primaries: Arc<Primaries>) -> Arc<Self> {
        let (next, begun) = (Mutex::default(), tokio::sync::Mutex::default());
        Arc::new(Self { managers, primaries, next, begun })
    }

    fn counters(&self) -> &ProxyCounters {
        self.primaries.counters()
    }

    /// Returns once the map here has everything that the managers answered before this call.
    pub(super) async fn caught_up(self: &Arc<Self>) -> Result<(), ObjectError> {
        let deadline = self.deadline();
        let question = {
            let mut next = self.next.lock();
            let begin = || ask(Arc::downgrade(self)).boxed().shared();
            next.get_or_insert_with(begin).clone()
        };
        match timeout_at(deadline, question).await {
            Ok(Ok(())) => Ok(()),
            // Managers of an earlier release cannot tell: the map here has to do, as before.
            Ok(Err(NotProposed::OlderManager(_))) => Ok(()),
            Ok(Err(NotProposed::Busy)) => Err(ObjectError::SlowDown),
            Ok(Err(_)) | Err(_) => {
                count(&self.counters().bucket_questions_failed);
                Err(unavailable(UNKNOWN))
            }
        }
    }

    fn deadline(&self) -> Instant {
        deadline_of_managers(&*self.managers, Instant::now() + BUCKET_QUESTION_MAX)
    }
}

/// Told to clients while the managers cannot be asked.
const UNKNOWN: &str = "this machine does not know the bucket, and cannot ask the managers now if it was made elsewhere: try again in a moment";

/// Asks the managers once it is this question's turn. From then on nobody joins it.
async fn ask(of: Weak<CatchUp>) -> Result<(), NotProposed> {
    let Some(of) = of.upgrade() else { return Err(NotProposed::NoLeader) };
    let mut begun = of.begun.lock().await;
    if let Some(last) = *begun {
        sleep_until(last + BUCKET_QUESTION_PAUSE).await;
    }
    of.next.lock().take();
    *begun = Some(Instant::now());
    count(&of.counters().bucket_questions);
    let deadline = of.deadline();
    let version = of.managers.committed(deadline).await?;
    of.managers.note_newer_map(version);
    let is_here = |map: &Topology| (map.version >= version).then_some(());
    found(&*of.managers, deadline, is_here).await.ok_or(NotProposed::NoLeader)
}
