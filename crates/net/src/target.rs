//! The server, role and address that a connection is opened to.

use larder_types::ServerId;

use larder_identity::Role;

/// A server in a role, and its address.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) server: ServerId,
    pub(crate) role: Role,
    pub(crate) address: String,
}
