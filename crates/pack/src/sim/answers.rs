//! Checks what holds at the moment of an answer: a task that the answer wakes may look at it before
//! the committer goes on.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake};

use larder_env::SimDisk;
use larder_types::BucketName;
use tokio::sync::oneshot;

use super::process::{Process, sizes};
use super::{RUNNING, SimStore};
use crate::backend::Backend;
use crate::commit::command::Command;
use crate::commit::committer::Marks;
use crate::commit::queue::Request;
use crate::ids::WorkerId;

/// Looks at the clock that is told to others, when it is woken.
struct Looker {
    marks: Arc<Marks>,
    seen: AtomicU64,
}

impl Wake for Looker {
    fn wake(self: Arc<Self>) {
        self.seen.store(self.marks.clock.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// A worker that handed a completion on waits for the clock that comes with the answer.
#[tokio::test]
async fn the_clock_of_a_change_is_told_with_its_answer() {
    RUNNING.set(true);
    let (store, disk) = (SimStore::new(1), SimDisk::new(1, 1 << 30));
    store.set_calm(true);
    let backend = Backend::over(store);
    let (worker, rows) = (WorkerId(0), Arc::default());
    let started = Process::start(worker, disk, rows, backend, sizes(), None).await;
    let mut process = started.unwrap();
    let looker = Arc::new(Looker { marks: process.marks.clone(), seen: AtomicU64::new(0) });
    let waker = looker.clone().into();
    for name in ["one", "two"] {
        let command = Command::MakeBucket { name: BucketName::new(name).unwrap(), location: None };
        let (reply, answer) = oneshot::channel();
        let mut answer = pin!(answer);
        assert!(answer.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        process.queue.push(Request::Change { command: Box::new(command), reply }).unwrap();
        process.commit().unwrap();
        let reported = process.marks.clock.load(Ordering::Relaxed);
        assert_ne!(reported, 0);
        assert_eq!(looker.seen.load(Ordering::Relaxed), reported, "at the answer, and after it");
    }
    RUNNING.set(false);
}
