use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use larder_env::SimDisk;
use object_store::memory::InMemory;

use super::*;
use crate::backend::Backend;
use crate::clock::uptime;
use crate::commit::queue::Request;
use crate::ids::WorkerId;
use crate::limits::OWN_NUMBER_SEEN_MAX;

const WORKER: WorkerId = WorkerId(1);
const SUCCESSOR_CLAIM: &str = "claims/0000000000000002";

type Fatal = watch::Receiver<Option<String>>;

fn backend() -> Backend {
    Backend::over(Arc::new(InMemory::new()))
}

fn owner_of(backend: &Backend, uptime: Uptime) -> (Arc<Ownership>, Arc<Queue>, Fatal) {
    let (queue, fatal) = (Arc::<Queue>::default(), watch::Sender::new(None));
    let (fatal_error, owned) = (fatal.subscribe(), SuspendAwareInstant::now(uptime));
    let disk = SimDisk::new(1, 1 << 20);
    let spool = Arc::new(Spool::new(disk.clone(), WORKER).unwrap());
    let numbering = Arc::new(Numbering::new(backend.clone(), WORKER, disk, uptime));
    let owner = Ownership::new((numbering, spool), owned, queue.clone(), fatal, uptime);
    (Arc::new(owner), queue, fatal_error)
}

async fn take_over(backend: &Backend) {
    assert!(backend.put_new(SUCCESSOR_CLAIM, Bytes::from_static(b"a claim")).await.unwrap());
}

fn questions(backend: &Backend) -> u64 {
    backend.counters().owner_questions.load(Ordering::Relaxed)
}

#[test]
fn what_is_done_follows_from_what_was_seen_and_when() {
    let known = |owned, failed: Option<Duration>| OwnerState { owned, failed };
    let (none, moment) = (Duration::ZERO, Duration::from_millis(1));
    let (period, most) = (OWNER_PERIOD, OWNER_UNSEEN_MAX);
    for (known, stand, due_in) in [
        (known(none, None), ServeDecision::Owner, period),
        (known(period - moment, None), ServeDecision::Owner, moment),
        (known(period, None), ServeDecision::Owner, none),
        (known(most, None), ServeDecision::Owner, none),
        (known(most + moment, None), ServeDecision::Unasked, none),
        (known(Duration::MAX, None), ServeDecision::Unasked, none),
        // Asked in vain: again after a period, and a request that comes meanwhile is let in.
        (known(period, Some(moment)), ServeDecision::Owner, period - moment),
        (known(Duration::MAX, Some(none)), ServeDecision::Unanswered, period),
        (known(Duration::MAX, Some(most)), ServeDecision::Unanswered, none),
        (known(Duration::MAX, Some(most + moment)), ServeDecision::Unasked, none),
    ] {
        assert_eq!((known.decision(), known.due_in()), (stand, due_in), "{known:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_idle_asks_at_every_period_until_another_has_taken_over() {
    let backend = backend();
    let (owner, queue, mut fatal) = owner_of(&backend, || Duration::ZERO);
    let watching = tokio::spawn(owner.clone().watch());
    tokio::time::sleep(OWNER_PERIOD * 3 + OWNER_PERIOD / 2).await;
    // The first time it had no number, and asked for that besides.
    assert_eq!(questions(&backend), 4);
    // A question for another reason puts that off.
    owner.ask().await.unwrap();
    tokio::time::sleep(OWNER_PERIOD - Duration::from_secs(1)).await;
    assert_eq!(questions(&backend), 5);
    take_over(&backend).await;
    owner.admit().await.unwrap();
    let reason = fatal.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert!(reason.contains("has taken over"), "{reason}");
    watching.await.unwrap();
    assert_eq!(questions(&backend), 6);
    for refused in [owner.admit().await, owner.refuse_superseded()] {
        let Err(ObjectError::Unavailable { reason: said }) = refused else {
            panic!("it answers all the same: {refused:?}");
        };
        assert_eq!(said, reason);
    }
    let (reply, _nobody_waits) = tokio::sync::oneshot::channel();
    assert!(queue.push(Request::Seal { reply }).is_err(), "nothing is taken any more");
    assert!(owner.status().superseded);
}

#[tokio::test]
async fn a_withdrawn_claim_admits_nobody() {
    let backend = backend();
    let (owner, ..) = owner_of(&backend, uptime);
    take_over(&backend).await;
    let superseded = |answer| matches!(answer, Err(PackError::Superseded { .. }));
    assert!(superseded(owner.ask().await));
    backend.remove(SUCCESSOR_CLAIM).await.unwrap();
    assert!(superseded(owner.ask().await));
    owner.admit().await.unwrap_err();
}

/// Hours of uptime, suspended ones among them.
static HOURS: AtomicU64 = AtomicU64::new(0);

#[tokio::test(start_paused = true)]
async fn a_resumed_worker_checks_ownership_before_it_answers() {
    let backend = backend();
    let night = || Duration::from_secs(3600 * HOURS.load(Ordering::Relaxed));
    let (owner, ..) = owner_of(&backend, night);
    owner.admit().await.unwrap();
    assert_eq!(questions(&backend), 0);
    HOURS.fetch_add(8, Ordering::Relaxed);
    let (one, two) = tokio::join!(owner.admit(), owner.admit());
    one.and(two).unwrap();
    assert_eq!(questions(&backend), 1, "one asks for both");
    let process = ProcessId::UNNUMBERED;
    assert_eq!(owner.status(), OwnerStatus { unseen: Duration::ZERO, superseded: false, process });
    HOURS.fetch_add(8, Ordering::Relaxed);
    take_over(&backend).await;
    owner.admit().await.unwrap_err();
}

#[tokio::test]
async fn requests_are_let_in_without_a_number_and_changes_are_not() {
    let backend = backend();
    let (owner, ..) = owner_of(&backend, uptime);
    owner.refresh().await.unwrap();
    let numbers = || backend.names("incarnations");
    assert!(numbers().await.unwrap().is_empty(), "a request waits for nothing that is written");
    owner.ask().await.unwrap();
    let names: Vec<_> = numbers().await.unwrap().into_iter().map(|(name, _)| name).collect();
    let number = "0000000000000001-00000001".to_owned();
    assert_eq!(names, [number.clone(), number + "-from"]);
}

#[tokio::test]
async fn of_two_processes_with_one_claim_the_earlier_answers_nothing_any_more() {
    let backend = backend();
    let (first, _queue, fatal) = owner_of(&backend, uptime);
    first.ask().await.unwrap();
    let (second, ..) = owner_of(&backend, uptime);
    second.ask().await.unwrap();
    // The question that lets requests in finds out, and not only that of an upload.
    assert!(matches!(first.refresh().await, Err(PackError::Copied { .. })));
    first.admit().await.unwrap_err();
    assert!(fatal.borrow().is_some());
    second.admit().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_process_whose_number_was_removed_has_been_superseded_if_there_is_a_greater_one() {
    let backend = backend();
    let (owner, ..) = owner_of(&backend, uptime);
    owner.ask().await.unwrap();
    let number = |process: u64| format!("incarnations/0000000000000001-{process:08}");
    let bytes = backend.whole(&number(1), 100).await;
    let Ok(bytes) = bytes else { panic!("it has a number") };
    backend.remove(&number(1)).await.unwrap();
    owner
        .check_before_begin()
        .await
        .expect("it is looked at once in a while: it goes long after others came");
    tokio::time::advance(OWN_NUMBER_SEEN_MAX + Duration::from_secs(1)).await;
    assert!(matches!(owner.ask().await, Err(PackError::Backend { .. })), "nobody took its place");
    // There were many after it, of which the first are forgotten too.
    assert!(backend.put_new(&number(9), bytes).await.unwrap());
    assert!(matches!(owner.ask().await, Err(PackError::Copied { .. })));
}

#[tokio::test]
async fn a_process_that_was_paused_past_many_others_acknowledges_nothing() {
    let backend = backend();
    // Neither clock goes on while the machine is paused.
    let (owner, ..) = owner_of(&backend, || Duration::ZERO);
    owner.ask().await.unwrap();
    let number = |process: u64| format!("incarnations/0000000000000001-{process:08x}");
    backend.remove(&number(1)).await.unwrap();
    backend.remove(&(number(1) + "-from")).await.unwrap();
    assert!(backend.put_new(&number(600), Bytes::from_static(b"later")).await.unwrap());
    // The numbers between have come, and gone as they were old.
    let answer = owner.ask().await;
    assert!(matches!(answer, Err(PackError::Copied { .. })), "{answer:?}");
}
