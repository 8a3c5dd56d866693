//! Certificates renew themselves: when a third of its life is left, a server has its own signed anew, and uses the new
//! one for new connections. Connections that are open go on.
//!
//! # Invariants
//!
//! 1. The new certificate is durable before it is used: after a crash there is the old one or the new one, each with
//!    its key.
//! 2. It never stops trying: a certificate that has ended is still good for being renewed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use larder_identity::{AuthorityCell, Credentials, Identity};
use larder_net::{JoinError, renew};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::clock::{now_ms, since_1970_ms};
use crate::limits::{RENEWAL_CHECK_INTERVAL, RENEWAL_PAUSE_MAX, RENEWAL_PAUSE_MIN};
use crate::managers::ManagersClient;

/// Until when this server's certificate is good.
#[derive(Debug)]
pub struct CertificateExpiry {
    /// Milliseconds since 1970.
    ends_ms: AtomicU64,
    /// Renewals of this run.
    renewed: watch::Sender<u64>,
}

impl CertificateExpiry {
    fn of(identity: &Identity) -> Self {
        let ends_ms = AtomicU64::new(since_1970_ms(identity.valid_until()));
        Self { ends_ms, renewed: watch::Sender::new(0) }
    }

    /// Seconds until it ends; negative if it has ended.
    #[must_use]
    pub fn seconds_left(&self) -> f64 {
        (self.ends_ms.load(Ordering::Relaxed) as f64 - now_ms() as f64) / 1e3
    }

    /// The same in days, for people.
    fn days_left(&self) -> f64 {
        (self.seconds_left() / 864.0).round() / 100.0
    }

    /// Times that it was renewed in this run.
    #[must_use]
    pub fn renewals(&self) -> watch::Receiver<u64> {
        self.renewed.subscribe()
    }

    fn renewed(&self, identity: &Identity) {
        self.ends_ms.store(since_1970_ms(identity.valid_until()), Ordering::Relaxed);
        self.renewed.send_modify(|times| *times += 1);
    }
}

/// The authority that signs.
pub(crate) enum Signing {
    /// Any manager.
    There,
    /// This one itself, once it has the authority, for so long; until then another.
    Here(AuthorityCell, Duration),
}

/// Keeps a server's certificate valid. Dropped, it does no more.
pub struct Renewal {
    certificate_expiry: Arc<CertificateExpiry>,
    renewing: JoinHandle<()>,
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Renewal {
    /// Keeps the certificate of a server that is no manager.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn of_member(
        path: PathBuf,
        identity: Identity,
        credentials: Arc<Credentials>,
        managers: Arc<ManagersClient>,
    ) -> Self {
        Self::start(path, identity, credentials, managers, Signing::There)
    }

    pub(crate) fn start(
        path: PathBuf,
        identity: Identity,
        credentials: Arc<Credentials>,
        managers: Arc<ManagersClient>,
        signing: Signing,
    ) -> Self {
        let certificate_expiry = Arc::new(CertificateExpiry::of(&identity));
        let renewer = Renewer {
            path,
            credentials,
            managers,
            signing,
            certificate_expiry: certificate_expiry.clone(),
        };
        Self { certificate_expiry, renewing: tokio::spawn(renewer.run(identity)) }
    }

    /// The time for which the certificate is good.
    #[must_use]
    pub fn certificate_expiry(&self) -> &Arc<CertificateExpiry> {
        &self.certificate_expiry
    }
}

struct Renewer {
    path: PathBuf,
    credentials: Arc<Credentials>,
    managers: Arc<ManagersClient>,
    signing: Signing,
    certificate_expiry: Arc<CertificateExpiry>,
}

impl Renewer {
    async fn run(self, mut identity: Identity) {
        loop {
            // In short steps: the machine's clock may be set, or stand still while the machine sleeps.
            while let Some(wait) = wait_for(&identity, SystemTime::now()) {
                sleep(wait).await;
            }
            match self.renew(&identity).await {
                Ok(renewed) => {
                    let subject = renewed.subject();
                    identity = renewed;
                    self.certificate_expiry.renewed(&identity);
                    let days = self.certificate_expiry.days_left();
                    tracing::info!(%subject, days, "the certificate was renewed");
                }
                Err(error) => {
                    self.complain(&identity, &error);
                    sleep(pause(&identity, SystemTime::now())).await;
                }
            }
        }
    }

    /// The first new certificate that can be had, kept and in use.
    async fn renew(&self, identity: &Identity) -> Result<Identity, JoinError> {
        let renewed = self.signed(identity).await?;
        renewed.save(&self.path)?;
        self.credentials.replace(&renewed)?;
        Ok(renewed)
    }

    async fn signed(&self, identity: &Identity) -> Result<Identity, JoinError> {
        let subject = identity.subject();
        if let Signing::Here(authority, life) = &self.signing
            && let Some(authority) = authority.get()
        {
            return Ok(authority.identity_for(subject.server, subject.roles, *life)?);
        }
        let mut last = JoinError::Unreachable("no manager is known".to_owned());
        for (manager, address) in self.managers.places() {
            match renew(&self.credentials, manager, &address).await {
                Ok(renewed) => return Ok(renewed),
                Err(error) => {
                    tracing::debug!(%manager, %address, %error, "this manager issued no certificate");
                    last = error;
                }
            }
        }
        Err(last)
    }

    fn complain(&self, identity: &Identity, error: &JoinError) {
        let (subject, days) = (identity.subject(), self.certificate_expiry.days_left());
        let now = SystemTime::now();
        if now >= identity.valid_until() {
            tracing::error!(%subject, %error, "the certificate has expired, and no manager has renewed it: other servers refuse this one");
        } else if now >= identity.warning_at() {
            tracing::warn!(%subject, days, %error, "the certificate expires soon, and no manager has renewed it");
        } else {
            tracing::info!(%subject, days, %error, "the certificate was not renewed yet");
        }
    }
}

/// The time to wait until the next look if the certificate is due; `None` if it is.
fn wait_for(identity: &Identity, now: SystemTime) -> Option<Duration> {
    let left = identity.renewal_at().duration_since(now).ok().filter(|left| !left.is_zero())?;
    Some(left.min(RENEWAL_CHECK_INTERVAL))
}

/// The time to wait after a try that failed: a small part of what is left.
fn pause(identity: &Identity, now: SystemTime) -> Duration {
    let left = identity.valid_until().duration_since(now).unwrap_or_default();
    (left / 20).clamp(RENEWAL_PAUSE_MIN, RENEWAL_PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use larder_identity::{Authority, Roles};
    use larder_types::{ClusterId, ServerId};

    use super::*;

    #[test]
    fn a_certificate_is_due_at_two_thirds_of_its_life_and_looked_at_in_between() {
        let day = Duration::from_secs(86_400);
        let authority = Authority::create(ClusterId(7)).unwrap();
        let identity = authority.identity_for(ServerId(1), Roles::all(), 90 * day).unwrap();
        let made = identity.valid_until() - 90 * day;
        assert_eq!(wait_for(&identity, made), Some(RENEWAL_CHECK_INTERVAL));
        let before = made + 60 * day - Duration::from_secs(9);
        assert_eq!(wait_for(&identity, before), Some(Duration::from_secs(9)));
        assert_eq!(wait_for(&identity, made + 60 * day), None);
        assert_eq!(wait_for(&identity, made + 900 * day), None);
        assert_eq!(identity.warning_at(), made + 75 * day);
        assert_eq!(pause(&identity, made + 60 * day), RENEWAL_PAUSE_MAX);
        assert_eq!(pause(&identity, made + 900 * day), RENEWAL_PAUSE_MIN);
    }
}
