//! What clients asked and were answered, for the history checker of the store's own simulator: whether any order of the
//! calls explains all that was shown. [`super::model`] says more, of one order that it knows; this one believes nobody.

use larder_sim::history::{Answered, Asked, CallId, History, If, Shown};

use super::model::{Effect, State};

/// The calls of one directory's life.
pub(super) struct Calls {
    history: History,
}

impl Calls {
    /// Of a store that shows this, and has so many keys.
    pub(super) fn of(state: &State, keys: u64) -> Self {
        let mut calls = Self { history: History::new(keys as usize) };
        for (key, values) in &state.objects {
            let put = calls.history.begin(number_of(key), Asked::Put(only(values), If::Always));
            calls.history.end(put, Answered::Done);
        }
        calls
    }

    /// A change begins, if it is one of an object.
    pub(super) fn begin(&mut self, effect: &Effect) -> Option<CallId> {
        let (key, asked) = match effect {
            Effect::Set { key, values } | Effect::Complete { key, values, .. } => {
                (key, Asked::Put(only(values), If::Always))
            }
            Effect::Remove { key } => (key, Asked::Delete(If::Always)),
            Effect::Begin { .. } | Effect::Part { .. } | Effect::Abort { .. } => return None,
        };
        Some(self.history.begin(number_of(key), asked))
    }

    /// It was answered. One that never is may take effect at any time, or never.
    pub(super) fn end(&mut self, call: Option<CallId>, is_done: bool) {
        if let Some(call) = call {
            self.history.end(call, if is_done { Answered::Done } else { Answered::Refused });
        }
    }

    /// Everything was looked at.
    pub(super) fn saw(&mut self, state: &State, keys: u64) {
        let begun = self.history.now();
        for number in 0..keys {
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
    #[should_panic(expected = "no order explains")]
    fn what_goes_back_is_found() {
        let mut calls = Calls::of(&showing(1), 1);
        let second = calls.begin(&set(2));
        calls.end(second, true);
        calls.saw(&showing(1), 1);
        calls.check();
    }
}
