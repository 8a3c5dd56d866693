//! Behaviour of a manager: its disk, who is a manager, one without connections, and several with them.

mod cluster;
mod disk;
mod joining;
mod member;
pub(crate) mod support;
mod tokens;
