//! The authority's key: every manager has it, so that servers join and renew their certificates even if
//! some managers are lost ([ADR 21](../../../../docs/adr/0021-every-manager-has-the-authoritys-key.md)).
//!
//! The founder makes it. A manager may lack it, because it has just joined or its release did not
//! get it from others. Such a manager asks the others over TLS until one gives it, and keeps it as the founder
//! does.
//!
//! # Invariants
//!
//! 1. It is kept and used only if it is the one that signed this manager's own certificate.
//! 2. Its file is readable by its owner alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use larder_identity::{Authority, AuthorityCell, Credentials, Identity};
use larder_types::ClusterId;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::AUTHORITY_FILE;
use super::error::ManagerError;
use crate::identity::IDENTITY_FILE;
use crate::limits::{AUTHORITY_PAUSE_MS_MAX, MANAGERS_PAUSE_MS_MIN};
use crate::managers::ManagersClient;
use crate::renewal::{Renewal, Signing};

/// A manager's identity, and the authority if this manager has its key.
pub(super) struct Keeper {
    dir: PathBuf,
    pub(super) identity: Identity,
    pub(super) authority: AuthorityCell,
    life: Duration,
}

impl Keeper {
    /// Reads both. A certificate that is due for renewal or has expired is signed anew at once, if this manager has the
    /// authority's key. So managers that were all off for longer than certificates live come back by themselves.
    pub(super) fn open(dir: &Path, life: Duration) -> Result<Self, ManagerError> {
        let own = dir.join(IDENTITY_FILE);
        let mut identity = Identity::load(&own)?;
        let cluster = identity.subject().cluster;
        let authority = AuthorityCell::default();
        let path = dir.join(AUTHORITY_FILE);
        if path.exists() {
            let found = belongs(Authority::load(cluster, &path)?, &identity)?;
            if identity.renewal_due(SystemTime::now()) {
                let subject = identity.subject();
                identity = found.identity_for(subject.server, subject.roles, life)?;
                identity.save(&own)?;
                tracing::info!(%subject, "this manager has signed a new certificate for itself");
            }
            drop(authority.set(found));
        }
        Ok(Self { dir: dir.to_owned(), identity, authority, life })
    }

    /// Asks the other managers for the key, if this manager lacks it.
    pub(super) fn request(&self, managers: &Arc<ManagersClient>) -> Option<KeyRequest> {
        let missing = self.authority.get().is_none();
        let subject = self.identity.subject();
        let wanted = Wanted {
            cluster: subject.cluster,
            path: self.dir.join(AUTHORITY_FILE),
            own: self.dir.join(IDENTITY_FILE),
            cell: self.authority.clone(),
        };
        let (me, managers) = (subject.server, managers.clone());
        missing.then(|| {
            KeyRequest(tokio::spawn(async move {
                let mut pause = Duration::from_millis(MANAGERS_PAUSE_MS_MIN);
                loop {
                    if let Some(text) = managers.authority(me).await {
                        match wanted.take(&text) {
                            Ok(()) => return,
                            Err(error) => {
                                tracing::error!(%error, "the authority's key could not be saved")
                            }
                        }
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_millis(AUTHORITY_PAUSE_MS_MAX));
                }
            }))
        })
    }

    /// Keeps the certificate valid.
    pub(super) fn renew(
        self,
        credentials: Arc<Credentials>,
        managers: &Arc<ManagersClient>,
    ) -> Renewal {
        let signing = Signing::Here(self.authority, self.life);
        let path = self.dir.join(IDENTITY_FILE);
        Renewal::start(path, self.identity, credentials, managers.clone(), signing)
    }
}

/// Asks for the key until another manager gives it. Dropped, it stops asking.
pub(super) struct KeyRequest(JoinHandle<()>);

impl Drop for KeyRequest {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The place for the key that another manager gives.
struct Wanted {
    cluster: ClusterId,
    path: PathBuf,
    own: PathBuf,
    cell: AuthorityCell,
}

impl Wanted {
    fn take(&self, text: &[u8]) -> Result<(), ManagerError> {
        let authority = Authority::from_pem(self.cluster, text)?;
        let authority = belongs(authority, &Identity::load(&self.own)?)?;
        authority.save(&self.path)?;
        tracing::info!("this manager has the authority's key now, and signs certificates");
        drop(self.cell.set(authority));
        Ok(())
    }
}

/// Returns the authority, or an error if it did not sign this certificate.
fn belongs(authority: Authority, identity: &Identity) -> Result<Authority, ManagerError> {
    if authority.signed(identity) {
        return Ok(authority);
    }
    let why = format!("it did not sign the certificate of {}", identity.subject());
    Err(ManagerError::Unusable { file: AUTHORITY_FILE, why })
}
