use std::sync::Arc;

use super::*;

fn pace(per_second: u32) -> Pace {
    Pace::new(NonZeroU32::new(per_second).unwrap())
}

/// A window that lies in the past, so that nothing has to be waited for.
fn past(warm_up: Duration, duration: Duration) -> Window {
    let start = Instant::now() - warm_up - duration;
    Window { warm_up: start, begin: start + warm_up, end: start + warm_up + duration }
}

#[test]
fn requests_are_evenly_due_and_rounding_does_not_add_up() {
    let pace = pace(3);
    assert_eq!(pace.due(0), Duration::ZERO);
    assert_eq!(pace.due(1), Duration::from_nanos(333_333_334));
    assert_eq!(pace.due(3), Duration::from_secs(1));
    assert_eq!(pace.due(3_000_000), Duration::from_secs(1_000_000));
}

#[test]
fn a_request_is_due_from_its_moment_on_and_not_before() {
    for per_second in [1, 3, 7, 999, 1_000_000, u32::MAX] {
        let pace = pace(per_second);
        for number in [0, 1, 2, 1_000, 123_456_789] {
            let due = pace.due(number);
            assert!(pace.due_after(due) > number, "{per_second} {number}");
            if let Some(before) = due.checked_sub(Duration::from_nanos(1)) {
                assert!(pace.due_after(before) <= number, "{per_second} {number}");
            }
        }
    }
}

#[test]
fn an_open_loop_gives_the_intended_moments_however_late_they_are_taken() {
    let window = past(Duration::from_secs(1), Duration::from_secs(2));
    let starts = Starts::new(window, Some(pace(10)));
    starts.open.as_ref().unwrap().tickets.add_permits(2);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        assert_eq!(starts.next().await, Some(window.warm_up));
        assert_eq!(starts.next().await, Some(window.warm_up + Duration::from_millis(100)));
    });
}

#[test]
fn every_request_due_is_either_taken_or_unsent() {
    let window = past(Duration::ZERO, Duration::from_secs(1));
    let starts = Arc::new(Starts::new(window, Some(pace(10))));
    starts.keep_pace();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(starts.next()), None, "after the end nothing is begun");
    let waited: Vec<Duration> = starts.unsent().collect();
    assert_eq!(waited.len(), 10);
    assert_eq!(waited[0], Duration::from_secs(1));
    assert_eq!(waited[9], Duration::from_millis(100));
}

#[test]
fn a_closed_loop_ends_with_the_window() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let over = Starts::new(past(Duration::ZERO, Duration::from_secs(1)), None);
    assert_eq!(runtime.block_on(over.next()), None);
    let running = Starts::new(Window::after(Duration::ZERO, Duration::from_secs(3600)), None);
    assert!(runtime.block_on(running.next()).is_some());
    assert_eq!(running.unsent().count(), 0);
}

#[test]
fn answers_count_by_when_they_arrive() {
    let now = Instant::now();
    let hour = Duration::from_secs(3600);
    let warming = Window { warm_up: now, begin: now + hour, end: now + 2 * hour };
    let running = Window { warm_up: now, begin: now, end: now + hour };
    let over = Window { warm_up: now, begin: now, end: now };

    let mut tally = Tally::default();
    tally.count(&warming, now, Ok(5));
    assert_eq!((tally.done, tally.latencies.quantile(500_000)), (0, None));
    tally.count(&running, now, Ok(5));
    assert_eq!((tally.done, tally.bytes), (1, 5));
    tally.count(&over, now, Ok(5));
    assert_eq!((tally.done, tally.bytes), (1, 5), "an answer after the end adds no throughput");
    assert_eq!(tally.bytes_moved, 15, "but what it moved was moved");
    tally.count(&warming, now, Err(&CallError::TimedOut));
    assert_eq!(tally.errors["timed out"], 1, "an error counts whenever it happens");
}

#[test]
fn kinds_of_errors_are_bounded_and_none_is_lost() {
    let mut tally = Tally::default();
    for number in 0..100 {
        tally.count_errors(format!("kind {number}"), 2);
    }
    assert_eq!(tally.errors.len(), ERROR_KINDS_MAX + 1);
    assert_eq!(tally.errors.values().sum::<u64>(), 200);
}
