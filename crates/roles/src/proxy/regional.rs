//! The regions' driver's access to other roles, beside [`RoleAccess`]: to keys as the index keeps them, and to journals.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use larder_kv::KvReader;
use larder_link::{Setting, SharingSetting};
use larder_objects::ObjectError;
use larder_protocol::region::key_rows::tombstone_row;
use larder_protocol::region::{KeyRows, Token};
use larder_types::{
    BucketId, BucketName, BucketRecord, Home, NotShared, ObjectKey, PgId, ServerId, Sharing, View,
    rows,
};
use tokio::time::Instant;

use super::local_roles::LocalRoles;
use super::role_access::RoleAccess;
use super::unavailable;
use crate::clock::now_ms;
use crate::manager::{LocalManager, LocalManagerError};
use crate::meta::JournalCall;
use crate::notifier::Notifier;
use crate::wire::{JournalShown, Position};

/// A request for journals.
#[derive(Debug, Clone)]
pub struct JournalRequest {
    /// PGs, and the tokens behind which outcomes are wanted.
    pub pgs: Vec<(PgId, Token)>,
    /// Most outcomes of all PGs together; 0 asks only whether there are any.
    pub ids_max: usize,
    /// True if everything that these PGs had taken must show first.
    pub settled: bool,
}

/// The other roles, as the driver of regions uses them.
pub trait RegionAccess: RoleAccess {
    /// The version of the map from which [`RoleAccess`] knows buckets.
    fn map_version(&self) -> u64;

    /// Number of PGs.
    fn pg_count(&self) -> u32;

    /// Reads keys as the index keeps them, in the given order, with all that was acknowledged and
    /// [shows](RegionAccess::shows). `None` for a key that is unknown by the deadline, in doubt, or unreadable.
    fn kept(
        &self,
        keys: &[(BucketId, ObjectKey)],
        deadline: Instant,
    ) -> impl Future<Output = Vec<Option<KeyRows>>> + Send;

    /// Returns once all changes taken of a key show to each later read.
    fn shows(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;

    /// Reads journals of PGs, without those for which no primary answers now.
    fn journals(
        &self,
        ask: &JournalRequest,
    ) -> impl Future<Output = Result<Vec<(PgId, JournalShown)>, ObjectError>> + Send;

    /// Keeps the list of regions outside the gateway's directory, where the store has such a place. Once it returns, no
    /// later run begins with less.
    /// `known` grows with what the list knows.
    fn keep_regions(
        &self,
        known: u32,
        list: Vec<u8>,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;

    /// Returns true if a bucket of this id was made, as far as this process knows.
    fn was_given(&self, id: BucketId) -> bool;

    /// Deletes a bucket here that is marked so, once all regions have closed it.
    fn delete_closed(
        &self,
        marked: BucketRecord,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;

    /// Sets a bucket's home, and returns once this process knows it; `false` if it was not the expected one, or the bucket is being
    /// deleted.
    fn set_home(
        &self,
        bucket: &BucketName,
        expected: Option<Home>,
        next: Home,
    ) -> impl Future<Output = Result<bool, ObjectError>> + Send;

    /// Makes a bucket that another region has, with the home that it has there.
    fn adopt_bucket(
        &self,
        bucket: &BucketName,
        home: Home,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;

    /// Takes up settings of buckets; returns those that are settled, as they hold now or cannot. A cluster's managers have
    /// theirs, and are told otherwise.
    fn take_settings(&self, settings: Vec<Setting>) -> impl Future<Output = Vec<Setting>> + Send;

    /// The same of settings that say which regions have buckets.
    fn take_sharing(
        &self,
        settings: Vec<SharingSetting>,
    ) -> impl Future<Output = Vec<SharingSetting>> + Send;

    /// Goes on to the next step of sharing a bucket, and returns once this process knows it, or that the bucket is not as in this record
    /// any more.
    fn share_bucket(
        &self,
        was: &BucketRecord,
        next: Sharing,
    ) -> impl Future<Output = Result<(), ObjectError>> + Send;

    /// The server that leads a PG, and its view, if there is one.
    fn led_by(&self, pg: PgId) -> Option<(ServerId, View)>;

    /// Requests of clients that are under way at the busiest of the store's other machines; of one that does not answer, none.
    fn clients_elsewhere(&self) -> impl Future<Output = u32> + Send;

    /// Returns true if changes of some bucket wait for other regions.
    fn waits_for_regions(&self) -> bool;

    /// Returns once the map is a later one than that.
    fn map_passes(&self, version: u64) -> impl Future<Output = ()> + Send;

    /// Tells a server how far other regions are in the journals of PGs that it leads, at most
    /// [`POSITIONS_MAX`](crate::limits::POSITIONS_MAX); returns whether it has heard.
    fn tell_positions(
        &self,
        server: ServerId,
        positions: &[(PgId, Vec<Position>)],
    ) -> impl Future<Output = bool> + Send;

    /// Counts `notifier` up whenever a journal may show more. Does not end.
    fn watch_journals(&self, notifier: &Notifier) -> impl Future<Output = ()> + Send;
}

/// Decodes the values of a key's rows; `None` if they cannot be used.
pub(super) fn kept_of(
    key: &ObjectKey,
    version: Option<&[u8]>,
    tombstone: Option<&[u8]>,
) -> Option<KeyRows> {
    match KeyRows::of_values(version, tombstone) {
        Ok(kept) => Some(kept),
        Err(error) => {
            tracing::error!(?key, %error, "rows of the index cannot be used");
            None
        }
    }
}

impl RegionAccess for LocalRoles {
    fn map_version(&self) -> u64 {
        self.manager().map().map.version
    }

    fn pg_count(&self) -> u32 {
        self.meta().pg_ids().count() as u32
    }

    async fn kept(&self, keys: &[(BucketId, ObjectKey)], _: Instant) -> Vec<Option<KeyRows>> {
        let kv = self.meta().kv();
        let kept = keys.iter().map(|(bucket, key)| {
            let version = kv.get(&rows::version(*bucket, key, rows::UNVERSIONED));
            let tombstone = kv.get(&tombstone_row(*bucket, key));
            match (version, tombstone) {
                (Ok(version), Ok(tombstone)) => {
                    kept_of(key, version.as_deref(), tombstone.as_deref())
                }
                (Err(error), _) | (_, Err(error)) => {
                    tracing::error!(?key, %error, "rows of the index cannot be read");
                    None
                }
            }
        });
        kept.collect()
    }

    async fn shows(&self, bucket: BucketId, key: &ObjectKey) -> Result<(), ObjectError> {
        let pg = self.pg_of(bucket, key);
        if self.meta().is_quiescent(pg, bucket, key) {
            return Ok(());
        }
        let row = rows::version(bucket, key, rows::UNVERSIONED);
        self.settled_row(pg, &row).await.map(|_row| ())
    }

    async fn journals(
        &self,
        ask: &JournalRequest,
    ) -> Result<Vec<(PgId, JournalShown)>, ObjectError> {
        let mut pgs = ask.pgs.clone();
        if ask.settled {
            let settling = pgs.iter().map(|(pg, _)| self.meta().settles(*pg));
            let mut settled = futures::future::join_all(settling).await.into_iter();
            pgs.retain(|_| settled.next().unwrap_or(false));
        }
        // A single node leads for ever: views are of no use.
        let pgs = pgs.into_iter().map(|(pg, token)| (pg, View(0), token)).collect();
        let (ids_max, settled) = (ask.ids_max, ask.settled);
        let call = JournalCall { pgs, ids_max, settled, wait: Duration::ZERO };
        self.meta().journals_now(&call).map_err(|error| {
            tracing::error!(%error, "the journals of outcomes cannot be read");
            unavailable("the index cannot be read: see the log")
        })
    }

    /// Keeps nothing: a single node's directory is lost with all its data, and not before.
    async fn keep_regions(&self, _: u32, _: Vec<u8>) -> Result<(), ObjectError> {
        Ok(())
    }

    fn was_given(&self, id: BucketId) -> bool {
        id < self.manager().map().map.next_bucket
    }

    async fn delete_closed(&self, marked: BucketRecord) -> Result<(), ObjectError> {
        self.end_deletion(marked, true).await
    }

    async fn set_home(
        &self,
        bucket: &BucketName,
        expected: Option<Home>,
        next: Home,
    ) -> Result<bool, ObjectError> {
        let bucket = bucket.clone();
        // That it is another one is no error.
        let set = move |manager: &LocalManager| match manager.set_home(&bucket, expected, next) {
            Ok(()) => Ok(true),
            Err(LocalManagerError::Home(_)) => Ok(false),
            Err(error) => Err(error),
        };
        self.manage(set).await
    }

    async fn adopt_bucket(&self, bucket: &BucketName, home: Home) -> Result<(), ObjectError> {
        let bucket = bucket.clone();
        let made = move |manager: &LocalManager| {
            manager.create_bucket(&bucket, (None, Some(home)), now_ms()).map(|_made| ())
        };
        self.manage(made).await
    }

    async fn take_settings(&self, settings: Vec<Setting>) -> Vec<Setting> {
        let mut settled = Vec::new();
        for setting in settings {
            let Setting { bucket, regions } = setting.clone();
            match self.manage(move |manager| manager.set_regions(&bucket, regions)).await {
                Ok(()) | Err(ObjectError::NoSuchBucket) => settled.push(setting),
                Err(error) => tracing::warn!(?setting, %error, "a setting will be applied later"),
            }
        }
        settled
    }

    async fn take_sharing(&self, settings: Vec<SharingSetting>) -> Vec<SharingSetting> {
        let mut settled = Vec::new();
        for setting in settings {
            let SharingSetting { bucket, is_local } = setting.clone();
            let set = move |manager: &LocalManager| match manager.set_local(
                &bucket,
                is_local,
                now_ms(),
            ) {
                // It cannot be.
                Err(LocalManagerError::NotShared(NotShared::HasHome)) => {
                    tracing::warn!(%bucket, "a bucket with a home cannot be changed: release the home first");
                    Ok(())
                }
                set => set,
            };
            match self.manage(set).await {
                Ok(()) | Err(ObjectError::NoSuchBucket) => settled.push(setting),
                Err(error) => {
                    tracing::warn!(bucket = %setting.bucket, is_local, %error, "a setting will be applied later");
                }
            }
        }
        settled
    }

    async fn share_bucket(&self, was: &BucketRecord, next: Sharing) -> Result<(), ObjectError> {
        let was = was.clone();
        self.manage(move |manager| manager.share(&was, next)).await
    }

    fn led_by(&self, _: PgId) -> Option<(ServerId, View)> {
        Some((ServerId(0), View(0)))
    }

    async fn clients_elsewhere(&self) -> u32 {
        0
    }

    fn waits_for_regions(&self) -> bool {
        self.manager().map().map.buckets.values().any(|bucket| bucket.regions > 1)
    }

    /// Here the map does not decide which server gets the report.
    async fn map_passes(&self, _: u64) {
        std::future::pending().await
    }

    async fn tell_positions(&self, _: ServerId, positions: &[(PgId, Vec<Position>)]) -> bool {
        self.meta().receive_positions(positions);
        true
    }

    async fn watch_journals(&self, notifier: &Notifier) {
        let mut more = self.meta().shows_more();
        while more.changed().await.is_ok() {
            notifier.notify();
        }
    }
}

impl<R: RegionAccess> super::Proxy<R> {
    /// The access to the other roles.
    pub(crate) fn access(&self) -> &Arc<R> {
        &self.access
    }
}
