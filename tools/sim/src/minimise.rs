//! The minimiser: removes from a failing run everything that the failure does not need.
//!
//! A cut is kept if the run still fails in the same way. The largest cuts come first, then faults and calls in pieces
//! that are halved until single ones are left (delta debugging). All is repeated until nothing more goes.

use crate::reduction::Reduction;

/// Tries a run with less; whether it still fails, and after how many calls.
pub type Fails<'a> = dyn FnMut(&Reduction) -> Option<u32> + 'a;

/// The tries, and the findings so far.
struct Minimiser<'a> {
    fails: &'a mut Fails<'a>,
    best: Reduction,
    /// Calls made by the shortest run that failed.
    calls: u32,
    tries_left: u32,
}

/// Leaves out of a run of so many calls and faults what it fails without, in so many tries at most.
pub fn minimise<'a>(
    (calls, faults): (u32, usize),
    tries_max: u32,
    fails: &'a mut Fails<'a>,
) -> Reduction {
    let mut minimiser =
        Minimiser { fails, best: Reduction::default(), calls, tries_left: tries_max };
    minimiser.simplify();
    loop {
        let before = minimiser.best.clone();
        minimiser.shorten();
        minimiser.avert(faults);
        minimiser.skip();
        if minimiser.best == before || minimiser.tries_left == 0 {
            return minimiser.best;
        }
    }
}

impl Minimiser<'_> {
    /// Takes it if the run fails without it.
    fn try_less(&mut self, change: impl FnOnce(&mut Reduction)) -> bool {
        let mut less = self.best.clone();
        change(&mut less);
        if less == self.best || self.tries_left == 0 {
            return false;
        }
        self.tries_left -= 1;
        let Some(calls) = (self.fails)(&less) else { return false };
        self.calls = calls.min(less.calls.unwrap_or(calls));
        self.best = less;
        true
    }

    fn simplify(&mut self) {
        self.try_less(|less| less.is_fair = true);
        for few in 1..=3 {
            if self.try_less(|less| less.pgs = Some(few)) {
                break;
            }
        }
        for few in 1..=3 {
            if self.try_less(|less| less.clients = Some(few)) {
                break;
            }
        }
    }

    /// Ends the calls earlier.
    fn shorten(&mut self) {
        let mut step = self.calls;
        self.try_less(|less| less.calls = Some(step));
        while step > 0 {
            let fewer = self.calls.saturating_sub(step);
            if fewer == 0 || !self.try_less(|less| less.calls = Some(fewer)) {
                step /= 2;
            }
        }
    }

    fn avert(&mut self, faults: usize) {
        let mut piece = faults;
        while piece > 0 {
            for first in (0..faults).step_by(piece) {
                let some = first..(first + piece).min(faults);
                self.try_less(|less| less.averted.extend(some));
            }
            piece /= 2;
        }
    }

    fn skip(&mut self) {
        let mut piece = self.calls / 2;
        while piece > 0 {
            for first in (0..self.calls).step_by(piece as usize) {
                let some = first..(first + piece).min(self.calls);
                self.try_less(|less| less.skipped.extend(some));
            }
            piece /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_failure_needs_is_left() {
        let needs_calls = [3, 17, 40];
        let mut tries = 0;
        let mut fails = |less: &Reduction| {
            tries += 1;
            let calls = less.calls.unwrap_or(500);
            let has_calls =
                needs_calls.iter().all(|call| *call < calls && !less.skipped.contains(call));
            let fails = has_calls && !less.averted.contains(&5) && !less.averted.contains(&6);
            fails.then_some(calls)
        };
        let less = minimise((500, 13), 2_000, &mut fails);
        assert_eq!(less.calls, Some(41));
        let made = (0..41).filter(|call| !less.skipped.contains(call)).collect::<Vec<u32>>();
        assert_eq!(made, needs_calls);
        let come = (0..13).filter(|fault| !less.averted.contains(fault)).collect::<Vec<usize>>();
        assert_eq!(come, [5, 6]);
        assert!(less.is_fair && less.pgs == Some(1) && less.clients == Some(1));
        assert!(tries < 300, "{tries} tries");
    }

    #[test]
    fn no_more_is_tried_than_is_allowed() {
        let mut tries = 0;
        let mut fails = |_: &Reduction| {
            tries += 1;
            Some(500)
        };
        minimise((500, 13), 7, &mut fails);
        assert_eq!(tries, 7);
    }
}
