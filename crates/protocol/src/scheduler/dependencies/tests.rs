//! The order of requests on a key, alone and beside the paper's.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A request of a schedule: it arrives at a time and takes so long.
#[derive(Debug, Clone, Copy)]
struct Request {
    arrives: u64,
    takes: u64,
    key: u8,
    access: Access,
}

/// The time at which each begins.
type Begins = Vec<u64>;

fn one(takes: u64, key: u8, access: Access) -> Request {
    Request { arrives: 0, takes, key, access }
}

/// Returns the time at which each begins by the machine. Requests are given in the order of their arrival; what ends at
/// a moment has ended for those who arrive at it.
fn by_queues(requests: &[Request], read_write: ReadWrite) -> Begins {
    let mut machine = Dependencies::<u8, usize>::new(read_write);
    let mut begins = vec![0; requests.len()];
    let mut ends = BTreeSet::<(u64, usize)>::new();
    let mut begin = |at: usize, now, ends: &mut BTreeSet<(u64, usize)>| {
        begins[at] = now;
        assert!(ends.insert((now + requests[at].takes, at)), "each begins once");
    };
    let mut begun = 0;
    let mut arrivals = requests.iter().enumerate().peekable();
    loop {
        let arrives = arrivals.peek().map(|(_, request)| request.arrives);
        match ends.first().copied() {
            Some((now, at)) if arrives.is_none_or(|arrives| now <= arrives) => {
                ends.remove(&(now, at));
                for next in machine.finished(&requests[at].key, requests[at].access) {
                    begin(next, now, &mut ends);
                    begun += 1;
                }
            }
            _ => {
                let Some((at, request)) = arrivals.next() else { break };
                match machine.arrived(&request.key, at, request.access) {
                    Arrived::Begins => {
                        begin(at, request.arrives, &mut ends);
                        begun += 1;
                    }
                    Arrived::Waits => {}
                    Arrived::Full => unreachable!("so few fit"),
                }
            }
        }
    }
    assert!(machine.is_empty() && begun == requests.len(), "all begin, once");
    begins
}

fn conflict(one: &Request, other: &Request) -> bool {
    one.key == other.key && (one.access == Access::Write || other.access == Access::Write)
}

/// The paper's priorities are `window × R + depth`. In the window in which a request arrives its depth is one more than
/// the greatest of those before it in the window that it depends on.
fn priorities(requests: &[Request], window: u64) -> Vec<u64> {
    let r = requests.len() as u64 + 1;
    let mut depths: Vec<u64> = Vec::new();
    for (at, request) in requests.iter().enumerate() {
        let before = requests[..at].iter().zip(&depths).filter(|(other, _)| {
            other.arrives / window == request.arrives / window && conflict(other, request)
        });
        depths.push(before.map(|(_, depth)| depth + 1).max().unwrap_or(0));
    }
    assert!(depths.iter().all(|depth| *depth < r), "depths stay below R");
    requests.iter().zip(depths).map(|(it, depth)| it.arrives / window * r + depth).collect()
}

/// Returns the time at which each begins by the priorities: in the window's end, and not before all of its key that have
/// a lower priority are finished. Those of the same priority begin together.
fn by_priorities(requests: &[Request], window: u64) -> Begins {
    let priorities = priorities(requests, window);
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|at| (priorities[*at], *at));
    let mut begins = vec![0; requests.len()];
    for (place, at) in order.iter().enumerate() {
        let closes = (requests[*at].arrives / window + 1) * window;
        let lower = order[..place].iter().filter(|other| {
            requests[**other].key == requests[*at].key && priorities[**other] < priorities[*at]
        });
        let ends = lower.map(|other| begins[*other] + requests[*other].takes);
        begins[*at] = ends.max().unwrap_or(0).max(closes);
    }
    begins
}

/// The write that each read sees: the last of its key that was finished when it began.
fn seen(requests: &[Request], begins: &Begins) -> Vec<Option<usize>> {
    let of_read = |(at, read): (usize, &Request)| {
        let writes = requests.iter().enumerate().filter(|(_, it)| it.access == Access::Write);
        let done = writes
            .filter(|(other, it)| it.key == read.key && begins[*other] + it.takes <= begins[at]);
        done.max_by_key(|(other, it)| (begins[*other] + it.takes, *other)).map(|(other, _)| other)
    };
    let reads = requests.iter().enumerate().filter(|(_, it)| it.access == Access::Read);
    reads.map(of_read).collect()
}

fn any_requests() -> impl Strategy<Value = Vec<Request>> {
    let one =
        (0_u64..40, 1_u64..60, 0_u8..3, prop::bool::ANY).prop_map(|(gap, takes, key, reads)| {
            Request {
                arrives: gap,
                takes,
                key,
                access: if reads { Access::Read } else { Access::Write },
            }
        });
    prop::collection::vec(one, 1..40).prop_map(|mut requests| {
        let mut now = 0;
        for request in &mut requests {
            now += request.arrives;
            request.arrives = now;
        }
        requests
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn queues_give_the_order_of_the_papers_priorities(requests in any_requests()) {
        let (ours, papers) = (by_queues(&requests, ReadWrite::Waits), by_priorities(&requests, 50));
        for (second, request) in requests.iter().enumerate() {
            for (first, other) in requests[..second].iter().enumerate() {
                if conflict(other, request) {
                    prop_assert!(ours[first] + other.takes <= ours[second], "{first} {second}");
                    prop_assert!(papers[first] + other.takes <= papers[second], "{first} {second}");
                }
            }
        }
        prop_assert_eq!(seen(&requests, &ours), seen(&requests, &papers), "reads see the same writes");
        for (at, (ours, papers)) in ours.iter().zip(&papers).enumerate() {
            prop_assert!(ours <= papers, "{at} begins later than by priorities");
        }
    }

    #[test]
    fn reads_that_are_passed_see_the_same_writes(requests in any_requests()) {
        let waits = by_queues(&requests, ReadWrite::Waits);
        let passes = by_queues(&requests, ReadWrite::Passes);
        // A read finds the version when it begins, so a write beside it changes nothing for it.
        prop_assert_eq!(seen(&requests, &waits), seen(&requests, &passes));
        for (waits, passes) in waits.iter().zip(&passes) {
            prop_assert!(passes <= waits);
        }
    }
}

#[test]
fn reads_without_a_write_wait_for_nothing() {
    let reads = [one(9, 0, Access::Read); 5];
    assert_eq!(by_queues(&reads, ReadWrite::Waits), [0; 5]);
}

#[test]
fn a_read_waits_for_the_write_that_is_pending_when_it_comes() {
    let requests = [one(9, 0, Access::Write), one(5, 0, Access::Read), one(5, 1, Access::Read)];
    assert_eq!(by_queues(&requests, ReadWrite::Passes), [0, 9, 0], "another key waits for nothing");
}

#[test]
fn a_read_does_not_wait_for_writes_that_come_after_it() {
    let requests = [one(9, 0, Access::Read), one(5, 0, Access::Write)];
    assert_eq!(by_queues(&requests, ReadWrite::Waits), [0, 9]);
    assert_eq!(by_queues(&requests, ReadWrite::Passes), [0, 0]);
}

#[test]
fn writes_of_a_key_follow_each_other() {
    let requests = [one(9, 0, Access::Write), one(5, 0, Access::Write), one(1, 0, Access::Write)];
    assert_eq!(by_queues(&requests, ReadWrite::Passes), [0, 9, 14]);
}

#[test]
fn reads_between_two_writes_begin_together() {
    let requests = [
        one(10, 0, Access::Write),
        one(3, 0, Access::Read),
        one(4, 0, Access::Read),
        one(1, 0, Access::Write),
    ];
    assert_eq!(by_queues(&requests, ReadWrite::Waits), [0, 10, 10, 14]);
}

#[test]
fn what_waits_is_bounded() {
    let mut machine = Dependencies::new(ReadWrite::Passes);
    assert_eq!(machine.arrived(&0, 0, Access::Write), Arrived::Begins);
    for token in 1..=DEPENDENT_REQUESTS_MAX {
        assert_eq!(machine.arrived(&0, token, Access::Read), Arrived::Waits);
    }
    assert_eq!(machine.arrived(&0, usize::MAX, Access::Read), Arrived::Full);
    assert_eq!(machine.arrived(&1, usize::MAX, Access::Read), Arrived::Begins, "of another key");
    assert_eq!(machine.finished(&0, Access::Write).len(), DEPENDENT_REQUESTS_MAX);
    assert_eq!(machine.waiting(), 0);
}

#[test]
#[should_panic(expected = "a write was under way")]
fn nothing_is_finished_that_was_not_under_way() {
    let mut machine = Dependencies::<u8, u8>::new(ReadWrite::Passes);
    machine.arrived(&0, 0, Access::Read);
    machine.finished(&0, Access::Write);
}
