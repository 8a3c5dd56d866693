//! Requests of pages of other origins: the rule that allows one is found in [`matching`], and browsers are answered in
//! [`crossing`]. Nothing here knows of the store: callers look up a bucket's rules.
//!
//! # Invariants
//!
//! 1. A request without `Origin` costs one look for that header.
//! 2. A preflight is answered from memory, without a turn and without its body: strangers send them.
//! 3. A stranger does not learn from a preflight which buckets there are.

pub(crate) mod headers;
mod matching;
