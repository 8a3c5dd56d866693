//! Chooses the request that may begin. Pure: no clock, no network.
//!
//! # Invariants
//! - Requests on one name are made one at a time and in the order of the file.
//! - A request waits for nothing but an earlier one on its name.
//! - Each request is given out exactly once.
//!
//! A request whose name is busy is parked with that name; the worker that finishes the one before
//! it gets it. So a worker that finds nothing to take may end: what is parked belongs to another.

use std::collections::VecDeque;

use super::parse::NameIndex;

/// An index into the trace's requests.
pub(crate) type RequestIndex = usize;

/// Deals out a trace's requests. It parks at most the whole trace, which is in memory anyway.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// Each request's name.
    names: Vec<NameIndex>,
    /// The first request not looked at yet.
    next: RequestIndex,
    lanes: Vec<Lane>,
}

/// The requests of one name.
#[derive(Debug, Default, Clone)]
struct Lane {
    busy: Option<RequestIndex>,
    parked: VecDeque<RequestIndex>,
}

impl Schedule {
    /// A schedule of requests on these names, each below `name_count`.
    pub(crate) fn new(names: Vec<NameIndex>, name_count: usize) -> Self {
        Self { names, next: 0, lanes: vec![Lane::default(); name_count] }
    }

    /// The next request whose name is free; `None` if every request not given out is parked.
    pub(crate) fn take(&mut self) -> Option<RequestIndex> {
        while self.next < self.names.len() {
            let request = self.next;
            self.next += 1;
            let lane = &mut self.lanes[self.names[request]];
            match lane.busy {
                None => {
                    lane.busy = Some(request);
                    return Some(request);
                }
                Some(_) => lane.parked.push_back(request),
            }
        }
        None
    }

    /// Ends a request that was handed out. The one that it returns is handed out too.
    ///
    /// # Panics
    /// If the request is not the one under way on its name.
    pub(crate) fn finish(&mut self, request: RequestIndex) -> Option<RequestIndex> {
        let lane = &mut self.lanes[self.names[request]];
        assert_eq!(lane.busy, Some(request), "only the request under way on a name can end");
        lane.busy = lane.parked.pop_front();
        assert!(lane.busy.is_none_or(|next| next > request), "a name's requests keep their order");
        lane.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_name_holds_up_no_other() {
        let mut schedule = Schedule::new(vec![0, 0, 1, 0, 2], 3);
        assert_eq!(
            [schedule.take(), schedule.take(), schedule.take()],
            [Some(0), Some(2), Some(4)]
        );
        assert_eq!(schedule.take(), None);
        assert_eq!(schedule.finish(4), None);
        assert_eq!(schedule.finish(0), Some(1));
        assert_eq!(schedule.finish(1), Some(3));
        assert_eq!(schedule.finish(3), None);
    }

    #[test]
    fn a_name_is_free_again_after_its_last_request() {
        let mut schedule = Schedule::new(vec![0, 0], 1);
        assert_eq!(schedule.take(), Some(0));
        assert_eq!(schedule.finish(0), None, "the second was not looked at yet");
        assert_eq!(schedule.take(), Some(1));
    }

    #[test]
    #[should_panic(expected = "only the request under way")]
    fn a_parked_request_cannot_end() {
        let mut schedule = Schedule::new(vec![0, 0], 1);
        schedule.take();
        schedule.take();
        schedule.finish(1);
    }

    /// Twenty workers that finish in an arbitrary order; `choose` picks who is next.
    fn run(
        names: &[NameIndex],
        name_count: usize,
        mut choose: impl FnMut(usize) -> usize,
    ) -> Vec<usize> {
        let mut schedule = Schedule::new(names.to_vec(), name_count);
        let mut workers: Vec<RequestIndex> = (0..20).filter_map(|_| schedule.take()).collect();
        let mut finished = Vec::new();
        while !workers.is_empty() {
            let mut on: Vec<NameIndex> = workers.iter().map(|&request| names[request]).collect();
            on.sort_unstable();
            on.dedup();
            assert_eq!(on.len(), workers.len(), "one request at a time on a name");
            let worker = choose(workers.len());
            let request = workers.swap_remove(worker);
            finished.push(request);
            workers.extend(schedule.finish(request).or_else(|| schedule.take()));
        }
        finished
    }

    #[test]
    fn every_request_is_made_once_and_each_name_in_order() {
        let mut state = 7u64;
        let mut random = move |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % bound
        };
        for name_count in [1, 3, 30, 1000] {
            let names: Vec<NameIndex> = (0..2000).map(|_| random(name_count)).collect();
            let finished = run(&names, name_count, &mut random);
            let mut sorted = finished.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..2000).collect::<Vec<_>>());
            let mut last = vec![None; name_count];
            for request in finished {
                assert!(last[names[request]] < Some(request));
                last[names[request]] = Some(request);
            }
        }
    }
}
