//! Threads that wait for each other and for time.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::simulated::begin;
use crate::threads as port;

/// A clock that moves to the next due wait once no thread can run.
#[derive(Default)]
struct Clock(Arc<AtomicU64>);

/// Runs threads until each has ended, or waits for what never comes.
fn run(seed: u64, start: impl FnOnce(&Arc<Mutex<Vec<String>>>)) -> (Vec<String>, Vec<String>) {
    let clock = Clock::default();
    let shared = clock.0.clone();
    let simulation = begin(seed, move || Duration::from_millis(shared.load(Ordering::Relaxed)));
    let threads = simulation.threads(seed, |run| run());
    let log = Arc::default();
    start(&log);
    loop {
        while threads.run_one() {}
        let Some(due) = threads.next_due() else { break };
        clock.0.store(due.as_millis() as u64, Ordering::Relaxed);
    }
    let left = threads.left();
    let panics = threads.panics().into_iter().map(|name| format!("{name} panicked"));
    let mut log = log.lock().clone();
    log.extend(panics);
    (log, left)
}

/// Starts a giver of numbers, two takers, and a thread that logs when the giver has ended.
fn hand_over(log: &Arc<Mutex<Vec<String>>>) {
    let queue = Arc::new((Mutex::new(Vec::new()), port::Condvar::new()));
    for taker in 0..2 {
        let (queue, log) = (queue.clone(), log.clone());
        let run = move || {
            let (numbers, ready) = &*queue;
            for _ in 0..5 {
                let mut numbers = numbers.lock();
                while numbers.is_empty() {
                    ready.wait(&mut numbers);
                }
                let number: u64 = numbers.remove(0);
                log.lock().push(format!("{taker} took {number}"));
            }
        };
        drop(port::spawn("taker", run).unwrap());
    }
    let log = log.clone();
    let giver = port::spawn("giver", move || {
        for number in 0..10 {
            sleep(Duration::from_millis(number));
            queue.0.lock().push(number);
            queue.1.notify_one();
            port::switch_point();
        }
    });
    drop(port::spawn("joiner", move || {
        giver.unwrap().join().unwrap();
        log.lock().push(format!("over at {:?}", elapsed().unwrap()));
    }));
}

#[test]
fn the_same_seed_has_threads_run_in_the_same_order_and_others_in_other_orders() {
    let (first, left) = run(1, hand_over);
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(first.iter().filter(|line| line.contains("took")).count(), 10);
    assert!(first.contains(&"over at 45ms".to_owned()), "{first:?}");
    assert_eq!(run(1, hand_over).0, first);
    assert!((2..20).any(|seed| run(seed, hand_over).0 != first));
}

#[test]
fn a_wait_ends_with_its_time_and_one_that_nobody_ends_shows() {
    let (log, left) = run(1, |log| {
        let log = log.clone();
        let run = move || {
            let (lock, ready) = (Mutex::new(()), port::Condvar::new());
            ready.wait_for(&mut lock.lock(), Duration::from_millis(70));
            log.lock().push(format!("{:?}", elapsed().unwrap()));
            ready.wait(&mut lock.lock());
            log.lock().push("never".to_owned());
        };
        drop(port::spawn("waits", run).unwrap());
    });
    assert_eq!(log, ["70ms"]);
    assert!(left.len() == 1 && left[0].starts_with("waits"), "{left:?}");
}

#[test]
fn a_threads_panic_is_reported_and_others_continue() {
    let (log, left) = run(3, |log| {
        drop(port::spawn("unwell", || resume_unwind(Box::new("it is unwell"))).unwrap());
        let log = log.clone();
        drop(port::spawn("well", move || log.lock().push("well".to_owned())).unwrap());
    });
    assert_eq!((log, left), (vec!["well".to_owned(), "unwell panicked".to_owned()], Vec::new()));
}

#[test]
fn the_thread_that_began_the_simulation_has_others_run_while_it_waits_for_one() {
    let simulation = begin(1, || Duration::ZERO);
    let _threads = simulation.threads(1, |run| run());
    let seen = Arc::new(AtomicU64::new(0));
    let sees = seen.clone();
    let first = port::spawn("first", move || {
        sees.store(1, Ordering::Relaxed);
    });
    first.unwrap().join().unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}

#[test]
fn threads_outside_of_simulations_are_those_of_the_system() {
    let queue = Arc::new((Mutex::new(false), port::Condvar::new()));
    let shared = queue.clone();
    let thread = port::spawn("plain", move || {
        *shared.0.lock() = true;
        shared.1.notify_all();
    });
    let mut is_told = queue.0.lock();
    while !*is_told {
        queue.1.wait(&mut is_told);
    }
    drop(is_told);
    thread.unwrap().join().unwrap();
}
