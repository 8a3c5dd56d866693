//! Whom a connection is to.

use larder_types::ServerId;

use larder_identity::Role;

/// A server in a role, and where it is called.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) server: ServerId,
    pub(crate) role: Role,
    pub(crate) address: String,
}
