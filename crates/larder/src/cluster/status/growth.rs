//! The time when something is full, for the line that says what is wrong.

use larder_roles::observed::Growth;

use crate::quantity::span;

/// A place that will be full later is not worth a word yet.
const FORETOLD_S_MAX: u64 = 30 * 24 * 3600;

/// Says that something fills, if it is full soon.
pub(crate) fn foretold(growth: Option<&Growth>) -> String {
    match growth {
        Some(Growth { full_in_s, within_s, .. }) if *full_in_s <= FORETOLD_S_MAX => {
            format!(", full in {} at the rate of the last {}", span(*full_in_s), span(*within_s))
        }
        _ => String::new(),
    }
}
