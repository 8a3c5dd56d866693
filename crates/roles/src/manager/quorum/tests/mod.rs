//! Behaviour of a manager: its disk, who is a manager, one without connections, and several with them.

mod cluster;
mod disk;
mod fetching;
mod hostile;
mod inbox;
mod joining;
mod member;
#[path = "../../../../tests/raw/mod.rs"]
pub(crate) mod raw;
mod releases;
pub(crate) mod support;
mod tokens;
