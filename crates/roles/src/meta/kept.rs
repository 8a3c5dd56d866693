//! Reads the rows of keys from the index, many at a time, for the gateway.
//!
//! # Invariants
//!
//! 1. An answer has a key with all changes that were taken before the call, or lacks it: a key in doubt holds up no other.
//! 2. A key's rows leave only if the PG's lease holds after they were read.
//! 3. One answer is bounded in keys and in bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_kv::{KvError, KvReader};
use larder_net::Responder;
use larder_protocol::region::key_rows::tombstone_row;
use larder_protocol::{Call, RowSpan};
use larder_types::codec::encode;
use larder_types::{BucketId, ObjectKey, PgId, View, rows};
use tokio::time::timeout;

use super::Meta;
use super::cluster::Cluster;
use crate::blocking;
use crate::limits::{KEPT_KEYS_MAX, KEPT_SETTLE_MS, ROWS_BYTES_MAX};
use crate::ticket::{Settled, Ticket};
use crate::wire::{KeyReply, MetaReply, MetaService};

/// A key, and the view in which its PG is asked; `None` if the call names no view.
type KeyInView = (BucketId, ObjectKey, Option<View>);

impl Meta {
    /// Answers the gateway's request for keys.
    pub(super) fn serve_kept(
        &self,
        cluster: &Cluster,
        pgs: Vec<(PgId, View)>,
        keys: Vec<(BucketId, ObjectKey)>,
        responder: Responder<MetaService>,
    ) {
        let Some(meta) = cluster.meta() else { return };
        if keys.is_empty() || keys.len() > KEPT_KEYS_MAX {
            // Dropping the responder tells the caller that there is no answer.
            return tracing::error!(
                "refused an invalid request for keys: do all servers run one release?"
            );
        }
        let views: BTreeMap<PgId, View> = pgs.into_iter().collect();
        let asked = keys.into_iter().map(|(bucket, key)| {
            let view = views.get(&self.pg_of(bucket, &key)).copied();
            (bucket, key, view)
        });
        let asked: Vec<KeyInView> = asked.collect();
        cluster.runtime.spawn(async move {
            let settling = asked.iter().map(|asked| meta.settles_key(asked));
            let settled = futures::future::join_all(settling).await;
            let read = blocking::run(move || meta.read_kept(&asked, &settled));
            // It fails if the read panicked, which was logged.
            if let Ok(kept) = read.await {
                responder.answer(&MetaReply::Kept, encode(&kept).into());
            }
        });
    }

    /// Waits a little until the index shows all changes of a key. Returns false if it does not in time.
    async fn settles_key(&self, (bucket, key, view): &KeyInView) -> bool {
        let (Some(view), pg) = (view, self.pg_of(*bucket, key)) else { return true };
        {
            let member = self.lock(pg);
            if member.pg.view() != *view || member.pg.is_quiescent(*bucket, key) {
                // The index shows them, or the answer lacks the key because of its view.
                return true;
            }
        }
        let row = rows::version(*bucket, key, rows::UNVERSIONED);
        let to = Some([&row[..], &[0]].concat());
        let ticket = Arc::new(Ticket::default());
        self.call(pg, Call::Settle(RowSpan { from: row, to }), &ticket);
        let settled = timeout(Duration::from_millis(KEPT_SETTLE_MS), ticket.settled()).await;
        matches!(settled, Ok(Settled::Shows(None)))
    }

    /// Reads the rows of settled keys, as many as fit one answer. Blocks.
    fn read_kept(&self, asked: &[KeyInView], settled: &[bool]) -> Vec<KeyReply> {
        let (mut kept, mut bytes) = (Vec::with_capacity(asked.len()), 0);
        for ((bucket, key, view), settled) in asked.iter().zip(settled) {
            if bytes >= ROWS_BYTES_MAX {
                break;
            }
            let rows = self.rows_of(*bucket, key);
            let tells =
                view.is_some_and(|view| self.lock(self.pg_of(*bucket, key)).accepts_reads(view));
            kept.push(match rows {
                _ if !tells => KeyReply::NotNow,
                Ok((version, tombstone)) if *settled => {
                    let len = |value: &Option<Bytes>| value.as_ref().map_or(0, Bytes::len);
                    bytes += len(&version) + len(&tombstone);
                    let values = |value: Option<Bytes>| value.map(|value| value.to_vec());
                    KeyReply::Rows(values(version), values(tombstone))
                }
                Ok(_) => KeyReply::Unknown,
                Err(error) => {
                    tracing::error!(?key, %error, "rows of the index cannot be read");
                    KeyReply::Unknown
                }
            });
        }
        kept
    }

    fn rows_of(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
    ) -> Result<(Option<Bytes>, Option<Bytes>), KvError> {
        let version = self.index.kv.get(&rows::version(bucket, key, rows::UNVERSIONED))?;
        Ok((version, self.index.kv.get(&tombstone_row(bucket, key))?))
    }
}
