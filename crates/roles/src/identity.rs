//! The identity of this process: in its directory, from when it joined.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use larder_identity::{Identity, IdentityError, JoinToken, Refusal, Role, Roles};
use larder_net::{JoinError, join};
use larder_protocol::manager::state::ServerRole;
use tokio::time::{Instant, sleep};

use crate::limits::{JOIN_PAUSE_MS, JOIN_WAIT_MS};

/// Key and certificates of a server, in its directory.
pub const IDENTITY_FILE: &str = "identity.pem";

/// The reason why a process has no identity.
#[derive(Debug, thiserror::Error)]
pub enum Nobody {
    /// Get a token from a manager.
    #[error("this server has not joined a cluster: it needs a join token")]
    NoToken,
    /// Name a manager.
    #[error("this server has not joined a cluster: it needs the address of a manager")]
    NoManager,
    /// As it says, of the manager that was asked last.
    #[error("joining at {address}: {source}")]
    NotJoined {
        /// Where.
        address: String,
        /// The reason.
        source: JoinError,
    },
    /// Fix the file.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// As it says.
    #[error("the directory is not ready for the server: {0}")]
    NotReady(#[source] Unready),
}

/// The reason why a directory is not ready for an identity.
pub type Unready = Box<dyn Error + Send + Sync>;

/// The identity in a directory that is there. Without one this server joins with the token, through the first of
/// these managers that lets it, and keeps what it gets. It waits for managers that are not there yet, for
/// [`JOIN_WAIT_MS`].
///
/// # Errors
/// [`Nobody`], by what to do.
pub async fn identity_in(
    dir: &Path,
    managers: &[String],
    token: Option<&JoinToken>,
) -> Result<Identity, Nobody> {
    identity_prepared(dir, managers, token, |_| Ok(())).await
}

/// As [`identity_in`]; `prepare` makes what has to be in the directory before a new identity is.
pub(crate) async fn identity_prepared(
    dir: &Path,
    managers: &[String],
    token: Option<&JoinToken>,
    prepare: impl FnOnce(&Identity) -> Result<(), Unready> + Send,
) -> Result<Identity, Nobody> {
    let path = dir.join(IDENTITY_FILE);
    if path.exists() {
        return Ok(Identity::load(&path)?);
    }
    let token = token.ok_or(Nobody::NoToken)?;
    let deadline = Instant::now() + Duration::from_millis(JOIN_WAIT_MS);
    let pause = Duration::from_millis(JOIN_PAUSE_MS);
    loop {
        let error = match join_through(managers, token).await {
            Ok(identity) => {
                prepare(&identity).map_err(Nobody::NotReady)?;
                identity.save(&path)?;
                tracing::info!(subject = %identity.subject(), "this server has joined");
                return Ok(identity);
            }
            Err(error) => error,
        };
        if !is_passing(&error) || Instant::now() + pause >= deadline {
            return Err(error);
        }
        tracing::debug!(%error, "joining failed: retrying");
        sleep(pause).await;
    }
}

/// Returns true if it may be otherwise in a while.
fn is_passing(error: &Nobody) -> bool {
    let Nobody::NotJoined { source, .. } = error else { return false };
    matches!(source, JoinError::Unreachable(_) | JoinError::Refused(Refusal::NotNow))
}

/// Asks each manager once: only the one that made a token has it. The token counts as unknown only if all managers
/// answered so; otherwise the last error is returned.
async fn join_through(managers: &[String], token: &JoinToken) -> Result<Identity, Nobody> {
    let mut last = Nobody::NoManager;
    for address in managers {
        let address = address.clone();
        match join(&address, token).await {
            Ok(identity) => return Ok(identity),
            Err(source @ JoinError::Refused(Refusal::Expired)) => {
                return Err(Nobody::NotJoined { address, source });
            }
            Err(_) if is_passing(&last) => {}
            Err(source) => last = Nobody::NotJoined { address, source },
        }
    }
    Err(last)
}

/// Roles as a certificate has them.
#[must_use]
pub fn roles_of(roles: &BTreeSet<ServerRole>) -> Roles {
    let role = |role: &ServerRole| match role {
        ServerRole::Manager => Role::Manager,
        ServerRole::Meta => Role::Meta,
        ServerRole::Data => Role::Data,
        ServerRole::Proxy => Role::Proxy,
    };
    Roles::of(&roles.iter().map(role).collect::<Vec<_>>())
}
