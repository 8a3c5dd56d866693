//! Windows: requests that arrive at a loaded primary are gathered and merged together. While it is not loaded, each begins
//! without a wait.
//!
//! # Invariants
//!
//! 1. A request that finds fewer than `loaded_from` others under way, and no open window, begins at once.
//! 2. No request waits for longer than the window's length.
//! 3. While a window is open every request joins it, so that requests leave in the order in which they came.
//! 4. A window closes early when fewer than `loaded_from` requests are under way: then waiting gains nothing.

/// The effect of a request's arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Begins at once.
    AtOnce,
    /// Opens a window, which closes at this time.
    Opens(u64),
    /// Joins the one that is open.
    Joins,
}

/// The window of one primary, open or not.
#[derive(Debug)]
pub struct Window {
    length_us: u64,
    loaded_from: usize,
    closes_us: Option<u64>,
    under_way: usize,
}

impl Window {
    /// A window of this length, which opens when at least `loaded_from` requests are under way. With a length of 0
    /// no request ever waits.
    ///
    /// # Panics
    /// If `loaded_from` is 0: a request that is alone would wait.
    #[must_use]
    pub fn new(length_us: u64, loaded_from: usize) -> Self {
        assert!(loaded_from > 0, "a request that is alone does not wait");
        Self { length_us, loaded_from, closes_us: None, under_way: 0 }
    }

    /// Takes a request that arrives.
    pub fn arrived(&mut self, now_us: u64) -> Arrival {
        if self.closes_us.is_some() {
            return Arrival::Joins;
        }
        if self.length_us == 0 || self.under_way < self.loaded_from {
            return Arrival::AtOnce;
        }
        let closes_us = now_us + self.length_us;
        self.closes_us = Some(closes_us);
        Arrival::Opens(closes_us)
    }

    /// Counts requests that begin, at once or from the window, as under way.
    pub fn left(&mut self, requests: usize) {
        self.under_way += requests;
    }

    /// Ends the count of so many requests.
    ///
    /// # Panics
    /// If they were not under way.
    pub fn ended(&mut self, requests: usize) {
        self.under_way = self.under_way.checked_sub(requests).expect("what ends has left");
    }

    /// Returns true if a window is open that is to be closed now.
    #[must_use]
    pub fn is_due(&self, now_us: u64) -> bool {
        self.closes_us
            .is_some_and(|closes_us| now_us >= closes_us || self.under_way < self.loaded_from)
    }

    /// Closes the window, because it is due or full.
    pub fn close(&mut self) {
        self.closes_us = None;
    }

    /// The number of requests that have begun and not ended.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_flight_never_waits() {
        let mut window = Window::new(500, 1);
        for now_us in 0..1000 {
            assert_eq!(window.arrived(now_us), Arrival::AtOnce);
            window.left(1);
            window.ended(1);
        }
    }

    #[test]
    fn under_load_requests_wait_for_company_but_no_longer_than_the_window() {
        let mut window = Window::new(500, 2);
        assert_eq!(window.arrived(0), Arrival::AtOnce);
        window.left(1);
        assert_eq!(window.arrived(10), Arrival::AtOnce, "one is under way: no load yet");
        window.left(1);
        assert_eq!(window.arrived(20), Arrival::Opens(520));
        assert_eq!(window.arrived(300), Arrival::Joins);
        assert!(!window.is_due(519) && window.is_due(520));
        window.close();
        window.left(2);
        assert_eq!(window.arrived(521), Arrival::Opens(1021), "the next window");
    }

    #[test]
    fn a_window_closes_early_when_the_load_is_gone() {
        let mut window = Window::new(500, 1);
        assert_eq!(window.arrived(0), Arrival::AtOnce);
        window.left(1);
        assert_eq!(window.arrived(1), Arrival::Opens(501));
        assert!(!window.is_due(2));
        window.ended(1);
        assert!(window.is_due(2));
    }

    #[test]
    fn who_arrives_while_a_window_is_open_overtakes_nobody_in_it() {
        let mut window = Window::new(500, 1);
        window.arrived(0);
        window.left(1);
        window.arrived(1);
        window.ended(1);
        assert_eq!(window.arrived(2), Arrival::Joins, "although nothing is under way");
    }

    #[test]
    fn without_a_length_there_are_no_windows() {
        let mut window = Window::new(0, 1);
        window.left(100);
        assert_eq!(window.arrived(7), Arrival::AtOnce);
        assert_eq!(window.under_way(), 100);
    }
}
