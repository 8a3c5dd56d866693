//! Root's keys as a process that serves takes them: of a single node from its file ([`store`]), at a proxy from the managers' map
//! ([`proxy`]). The commands that change keys are above.

pub(crate) mod proxy;
mod store;

pub(crate) use store::{KeysStatus, StoreKeys};
