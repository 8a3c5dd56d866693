//! Calls of clients and their answers, for the history checker of the store's own simulator: it
//! looks for an order of the calls that explains all that was shown. [`super::model`] says more, of
//! one order that it knows; this one believes nobody.

use std::collections::BTreeSet;

use larder_sim::history::{CallCondition, CallId, CallResult, History, Invocation, Shown};

use super::model::{Effect, State};

/// The calls of one directory's life.
pub(super) struct Calls {
    history: History,
    /// Keys and the values that were put there.
    put: BTreeSet<(usize, u64)>,
    /// Keys of which nothing more is told. The checker wants to know by a value which call put it.
    /// A copy, or an upload that is completed twice, has put a value there again.
    repeated: BTreeSet<usize>,
}

impl Calls {
    /// Of a store that shows this, and has so many keys.
    pub(super) fn of(state: &State, keys: u64) -> Self {
        let history = History::new(keys as usize);
        let mut calls = Self { history, put: BTreeSet::new(), repeated: BTreeSet::new() };
        for (key, values) in &state.objects {
            let call = calls.begin_put(number_of(key), only(values));
            calls.end(call, true);
        }
        calls
    }

    /// A change begins, if it is one of an object.
    pub(super) fn begin(&mut self, effect: &Effect) -> Option<CallId> {
        match effect {
            Effect::Set { key, values } | Effect::Complete { key, values, .. } => {
                self.begin_put(number_of(key), only(values))
            }
            Effect::Remove { key } => {
                let key = number_of(key);
                let is_told = !self.repeated.contains(&key);
                is_told.then(|| self.history.begin(key, Invocation::Delete(CallCondition::Always)))
            }
            Effect::Begin { .. } | Effect::Part { .. } | Effect::Abort { .. } => None,
        }
    }

    fn begin_put(&mut self, key: usize, value: u64) -> Option<CallId> {
        if !self.put.insert((key, value)) {
            self.repeated.insert(key);
        }
        let is_told = !self.repeated.contains(&key);
        is_told.then(|| self.history.begin(key, Invocation::Put(value, CallCondition::Always)))
    }

    /// It was answered. One that never is may take effect at any time, or never.
    pub(super) fn end(&mut self, call: Option<CallId>, is_done: bool) {
        if let Some(call) = call {
            self.history.end(call, if is_done { CallResult::Done } else { CallResult::Refused });
        }
    }

    /// Everything was looked at.
    pub(super) fn saw(&mut self, state: &State, keys: u64) {
        let begun = self.history.now();
        for number in (0..keys).filter(|number| !self.repeated.contains(&(*number as usize))) {
            let values = state.objects.get(&key_of(number));
            let shown = values.map(|values| Shown::put(only(values)));
            self.history.saw(number as usize, begun, shown);
        }
    }

    pub(super) fn check(&self) {
        self.history.check().unwrap_or_else(|fault| panic!("{fault}"));
    }
}

/// A client's key.
pub(super) fn key_of(number: u64) -> String {
    format!("k{number}")
}

fn number_of(key: &str) -> usize {
    key[1..].parse().expect("keys are numbered")
}

fn only(values: &[u64]) -> u64 {
    let [value] = values else { panic!("an object has one value") };
    *value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: u64) -> Effect {
        Effect::Set { key: key_of(0), values: vec![value] }
    }

    fn showing(value: u64) -> State {
        let mut state = State::default();
        state.objects.insert(key_of(0), vec![value]);
        state
    }

    #[test]
    fn what_was_answered_is_seen_and_what_was_not_may_be() {
        let mut calls = Calls::of(&showing(1), 1);
        let second = calls.begin(&set(2));
        calls.saw(&showing(1), 1);
        calls.end(second, true);
        calls.saw(&showing(2), 1);
        let _unanswered = calls.begin(&set(3));
        calls.saw(&showing(2), 1);
        calls.saw(&showing(3), 1);
        calls.check();
    }

    #[test]
    fn a_key_that_gets_a_value_again_reports_no_deletion() {
        let mut calls = Calls::of(&showing(1), 1);
        let second = calls.begin(&set(2));
        calls.end(second, true);
        assert!(calls.begin(&set(1)).is_none());
        calls.saw(&showing(1), 1);
        calls.check();
    }

    #[test]
    #[should_panic(expected = "no order explains")]
    fn what_goes_back_is_found() {
        let mut calls = Calls::of(&showing(1), 1);
        let second = calls.begin(&set(2));
        calls.end(second, true);
        calls.saw(&showing(1), 1);
        calls.check();
    }
}
