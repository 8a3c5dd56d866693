//! Root's keys as requests are checked with them. They change while a service runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::version_4::SigningKey;
use crate::options::OptionsError;

/// The root user's keys.
#[derive(Clone)]
pub struct Credentials {
    /// Access key id: 3 to 128 letters, digits or `_`, `-`, `.`.
    pub access_key: String,
    /// Secret key: at least 8 characters. Never printed.
    pub secret_key: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Refuses keys with which no request can be signed.
    ///
    /// # Errors
    /// [`OptionsError`] names the key that does not do.
    pub fn check(&self) -> Result<(), OptionsError> {
        let key = &self.access_key;
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        if !(3..=128).contains(&key.len()) || !key.bytes().all(plain) {
            return Err(OptionsError::AccessKey);
        }
        if self.secret_key.len() < 8 {
            return Err(OptionsError::SecretKey);
        }
        Ok(())
    }
}

/// The keys that a service takes: the current pair, and for a while the pair before. Clones are of the same keys.
#[derive(Debug, Clone)]
pub struct RootKeys(Arc<RwLock<Arc<Taken>>>);

#[derive(Debug)]
struct Taken {
    current: Arc<Pair>,
    previous: Option<Previous>,
}

/// A pair of keys, and the signing key that was made of it last.
#[derive(Debug)]
struct Pair {
    keys: Credentials,
    signing: Mutex<Option<Made>>,
}

/// A signing key, and what it is for. Nearly all requests of a day are signed with the same.
#[derive(Debug)]
struct Made {
    day: String,
    region: String,
    key: SigningKey,
}

impl Pair {
    fn new(keys: Credentials) -> Self {
        Self { keys, signing: Mutex::default() }
    }

    fn kept(&self, day: &str, region: &str) -> Option<SigningKey> {
        let last = self.signing.lock();
        let made = last.as_ref().filter(|made| made.day == day && made.region == region)?;
        Some(made.key.clone())
    }

    fn keep(&self, day: &str, region: &str, key: SigningKey) {
        let made = Made { day: day.to_owned(), region: region.to_owned(), key };
        *self.signing.lock() = Some(made);
    }
}

/// The signing key of a day and region that somebody named, who may not have the secret.
#[derive(Debug)]
pub(crate) struct NamedKey {
    pair: Arc<Pair>,
    pub(crate) key: SigningKey,
    is_kept: bool,
}

impl NamedKey {
    /// A signature was right that is made with it: keeps it for others of the day (`YYYYMMDD`) and region. Strangers,
    /// whose signatures are wrong, cannot evict a key that clients sign with.
    pub(crate) fn was_right(self, day: &str, region: &str) -> SigningKey {
        if !self.is_kept {
            self.pair.keep(day, region, self.key.clone());
        }
        self.key
    }
}

#[derive(Debug)]
struct Previous {
    pair: Arc<Pair>,
    uses: AtomicU64,
    /// Milliseconds after `since` of the last use.
    last_ms: AtomicU64,
    since: Instant,
}

/// Use of the pair before the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PreviousUse {
    /// Requests signed with it since this service takes both.
    pub requests: u64,
    /// Time since the last of them.
    pub last: Option<Duration>,
}

impl From<Credentials> for RootKeys {
    fn from(current: Credentials) -> Self {
        Self::new(current, None)
    }
}

impl RootKeys {
    /// These keys, of which [`crate::S3Service::new`] checks whether requests can be signed with them.
    #[must_use]
    pub fn new(current: Credentials, previous: Option<Credentials>) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(Taken::new(current, previous)))))
    }

    /// Takes these from now on, and no others. Requests that were let in with others go on.
    ///
    /// # Errors
    /// [`OptionsError`] names the key that requests cannot be signed with; those before are taken then.
    pub fn replace(
        &self,
        current: Credentials,
        previous: Option<Credentials>,
    ) -> Result<(), OptionsError> {
        let taken = Taken::new(current, previous);
        taken.check()?;
        *self.0.write() = Arc::new(taken);
        Ok(())
    }

    /// True if these are taken, and no others.
    #[must_use]
    pub fn are(&self, current: &Credentials, previous: Option<&Credentials>) -> bool {
        let taken = self.0.read();
        let same = |a: &Credentials, b: &Credentials| {
            (&a.access_key, &a.secret_key) == (&b.access_key, &b.secret_key)
        };
        let of_previous = match (&taken.previous, previous) {
            (Some(taken), Some(previous)) => same(&taken.pair.keys, previous),
            (taken, previous) => taken.is_none() && previous.is_none(),
        };
        same(&taken.current.keys, current) && of_previous
    }

    /// The access key of the current pair.
    #[must_use]
    pub fn access_key(&self) -> String {
        self.0.read().current.keys.access_key.clone()
    }

    /// The access key of the pair before, if that is taken, too.
    #[must_use]
    pub fn previous_access_key(&self) -> Option<String> {
        self.0.read().previous.as_ref().map(|previous| previous.pair.keys.access_key.clone())
    }

    /// Use of the pair before; `None` if none is taken.
    #[must_use]
    pub fn previous_use(&self) -> Option<PreviousUse> {
        self.0.read().previous.as_ref().map(Previous::uses)
    }

    pub(crate) fn check(&self) -> Result<(), OptionsError> {
        self.0.read().check()
    }

    /// The secret key that belongs to an access key.
    pub(crate) fn secret_of(&self, access_key: &str) -> Option<String> {
        self.0.read().find(access_key).map(|pair| pair.keys.secret_key.clone())
    }

    /// The key that signatures of version 4 are made with on a day (`YYYYMMDD`) for a region. It is made outside of the
    /// locks.
    pub(crate) fn signing_key(
        &self,
        access_key: &str,
        day: &str,
        region: &str,
    ) -> Option<NamedKey> {
        let pair = Arc::clone(self.0.read().find(access_key)?);
        let kept = pair.kept(day, region);
        let is_kept = kept.is_some();
        let key = kept.unwrap_or_else(|| SigningKey::new(&pair.keys.secret_key, day, region));
        Some(NamedKey { pair, key, is_kept })
    }

    /// A request was let in that was signed with this access key.
    pub(crate) fn used(&self, access_key: &str) {
        let taken = self.0.read();
        if let Some(previous) = &taken.previous
            && previous.pair.keys.access_key == access_key
        {
            previous.used();
        }
    }
}

impl Taken {
    fn new(current: Credentials, previous: Option<Credentials>) -> Self {
        let current = Arc::new(Pair::new(current));
        Self { current, previous: previous.map(Previous::new) }
    }

    fn find(&self, access_key: &str) -> Option<&Arc<Pair>> {
        let previous = self.previous.as_ref().map(|previous| &previous.pair);
        let pairs = std::iter::once(&self.current).chain(previous);
        pairs.into_iter().find(|pair| pair.keys.access_key == access_key)
    }

    fn check(&self) -> Result<(), OptionsError> {
        self.current.keys.check()?;
        self.previous.as_ref().map_or(Ok(()), |previous| previous.pair.keys.check())
    }
}

impl Previous {
    fn new(keys: Credentials) -> Self {
        let (uses, last_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        let pair = Arc::new(Pair::new(keys));
        Self { pair, uses, last_ms, since: Instant::now() }
    }

    fn used(&self) {
        let now_ms = self.since.elapsed().as_millis() as u64;
        self.last_ms.fetch_max(now_ms, Ordering::Relaxed);
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    fn uses(&self) -> PreviousUse {
        let requests = self.uses.load(Ordering::Relaxed);
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        let last = (requests > 0).then(|| self.since.elapsed().saturating_sub(last));
        PreviousUse { requests, last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str) -> Credentials {
        Credentials { access_key: format!("{name}-key"), secret_key: format!("{name}-secret") }
    }

    #[test]
    fn uses_of_the_pair_before_are_counted_until_it_is_retired() {
        let keys = RootKeys::new(pair("a"), None);
        keys.used("a-key");
        assert_eq!(keys.previous_use(), None);
        keys.replace(pair("b"), Some(pair("a"))).unwrap();
        assert_eq!(keys.previous_use(), Some(PreviousUse::default()));
        for access_key in ["a-key", "b-key", "other", "a-key"] {
            keys.used(access_key);
        }
        let used = keys.previous_use().unwrap();
        assert_eq!((used.requests, used.last.is_some()), (2, true));
        assert_eq!(keys.secret_of("a-key").as_deref(), Some("a-secret"));
        keys.replace(pair("b"), None).unwrap();
        assert!(keys.secret_of("a-key").is_none() && keys.secret_of("b-key").is_some());
    }

    #[test]
    fn a_signing_key_is_of_its_day_region_and_secret() {
        let keys = RootKeys::new(pair("a"), Some(pair("b")));
        let sign = |access_key, day, region| {
            let key = keys.signing_key(access_key, day, region)?.was_right(day, region);
            Some(key.sign(b"text").as_str().to_owned())
        };
        let all =
            [("a-key", "1", "r"), ("a-key", "2", "r"), ("a-key", "2", "s"), ("b-key", "2", "s")];
        let first: Vec<_> = all.map(|(key, day, region)| sign(key, day, region).unwrap()).into();
        let again: Vec<_> = all.map(|(key, day, region)| sign(key, day, region).unwrap()).into();
        assert_eq!(first, again);
        assert_eq!(std::collections::BTreeSet::from_iter(&first).len(), all.len());
        assert_eq!(sign("c-key", "1", "r"), None);
    }

    #[test]
    fn a_signing_key_is_kept_once_a_signature_was_right() {
        let keys = RootKeys::new(pair("a"), None);
        let is_kept = |region| keys.signing_key("a-key", "1", region).unwrap().is_kept;
        assert!(!is_kept("r") && !is_kept("r"), "somebody named it, and signed nothing");
        keys.signing_key("a-key", "1", "r").unwrap().was_right("1", "r");
        assert!(is_kept("r"));
        assert!(!is_kept("s") && is_kept("r"), "a stranger's region evicts no key");
    }

    #[test]
    fn keys_that_nobody_can_sign_with_are_not_taken() {
        let keys = RootKeys::new(pair("a"), None);
        let wrong = Credentials { access_key: "x/y".into(), ..pair("b") };
        assert_eq!(keys.replace(wrong.clone(), None), Err(OptionsError::AccessKey));
        assert_eq!(keys.replace(pair("b"), Some(wrong)), Err(OptionsError::AccessKey));
        assert_eq!(keys.access_key(), "a-key");
    }

    #[test]
    fn keys_that_do_not_do_are_named() {
        let keys = |access: &str, secret: &str| Credentials {
            access_key: access.into(),
            secret_key: secret.into(),
        };
        assert_eq!(keys("a/b", "12345678").check(), Err(OptionsError::AccessKey));
        assert_eq!(keys("abc", "1234567").check(), Err(OptionsError::SecretKey));
        assert_eq!(keys("abc", "12345678").check(), Ok(()));
    }

    #[test]
    fn a_secret_is_never_printed() {
        let keys = Credentials { access_key: "abc".into(), secret_key: "hush-hush".into() };
        assert!(!format!("{keys:?}").contains("hush"));
    }
}
