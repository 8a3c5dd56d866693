//! The answering end, as a driver implements it.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use larder_protocol::region::Name;
use larder_protocol::region::deletion::CloseAnswer;
use larder_protocol::region::home::HomeAnswer;
use larder_types::RegionId;
use tokio::sync::mpsc;

use crate::error::{Later, LinkError};
use crate::limits::{GATHERED_BYTES_MAX, PIECE_BYTES_MAX};
use crate::message::{
    AskHome, Change, ChangeAnswer, CloseBucket, Declined, EndClosed, FetchRequest, Fetched, Hello,
    IdsQuery, IdsReply, Keys, KeysReply, List, ListAnswer, RegionList, Report, TellHomes, Walk,
    WalkAnswer,
};
use crate::metrics::PeerMetrics;
use crate::{compression, frame};

/// Answers other regions. Requests are within their bounds, and come from regions that are known.
///
/// An answer that takes longer than [`crate::limits::CALL_TIME_MAX`] is dropped.
pub trait Source: Send + Sync + 'static {
    /// This region's own description.
    fn hello(&self, from: RegionId) -> impl Future<Output = Result<Hello, Declined>> + Send;

    /// The ids behind tokens.
    fn query_ids(
        &self,
        from: RegionId,
        ask: IdsQuery,
    ) -> impl Future<Output = Result<IdsReply, Declined>> + Send;

    /// Another region says how far it is.
    fn reported(
        &self,
        from: RegionId,
        report: Report,
    ) -> impl Future<Output = Result<(), Declined>> + Send;

    /// Another region deletes a bucket: closes it here.
    fn close_bucket(
        &self,
        from: RegionId,
        close: CloseBucket,
    ) -> impl Future<Output = Result<CloseAnswer, Declined>> + Send;

    /// Deletes a closed bucket, or opens it again; true if it is as asked.
    fn end_closed(
        &self,
        from: RegionId,
        end: EndClosed,
    ) -> impl Future<Output = Result<bool, Declined>> + Send;

    /// Another region is to become the home of a bucket.
    fn ask_home(
        &self,
        from: RegionId,
        ask: AskHome,
    ) -> impl Future<Output = Result<HomeAnswer, Declined>> + Send;

    /// Another region tells the homes of buckets.
    fn tell_homes(
        &self,
        from: RegionId,
        homes: TellHomes,
    ) -> impl Future<Output = Result<(), Declined>> + Send;

    /// Makes a change of another region's client, in a bucket whose home is here. It has
    /// [`CHANGE_TIME_MAX`](crate::limits::CHANGE_TIME_MAX).
    fn change(
        &self,
        from: RegionId,
        change: Change,
    ) -> impl Future<Output = Result<ChangeAnswer, Declined>> + Send;

    /// The sums of runs.
    fn walk(
        &self,
        from: RegionId,
        walk: Walk,
    ) -> impl Future<Output = Result<WalkAnswer, Declined>> + Send;

    /// The ids of a run.
    fn list(
        &self,
        from: RegionId,
        list: List,
    ) -> impl Future<Output = Result<ListAnswer, Declined>> + Send;

    /// Keys of a bucket.
    fn keys(
        &self,
        from: RegionId,
        keys: Keys,
    ) -> impl Future<Output = Result<KeysReply, Declined>> + Send;

    /// Writes entries into the sink, in the order asked for. The future is dropped when the other region is gone.
    ///
    /// The asking region gets an error before the first entry. After that the stream breaks, as it does if an entry is
    /// missing or has another length than it says: the asking region can use only entries that are complete.
    fn fetch(
        &self,
        from: RegionId,
        fetch: FetchRequest,
        sink: FetchSink,
    ) -> impl Future<Output = Result<(), Declined>> + Send;

    /// The greatest number of another region whose changes are here, or [`RegionId::OWN`]. No number up to it is given again: the list
    /// in the directory may be an older copy.
    fn last_met(&self) -> impl Future<Output = Result<RegionId, Declined>> + Send;

    /// Keeps the list of regions outside the directory, where the store has a place for it. The joiner and all others are told
    /// of its number only afterwards: even if the directory is lost, no other region gets it.
    fn keep(&self, known: RegionList) -> impl Future<Output = Result<(), Declined>> + Send;
}

/// Part of a stream.
pub(crate) enum Piece {
    Bytes(Bytes),
    /// Nothing is missing.
    End,
}

/// Takes the answer to a fetch. A write waits until the asking region has taken what was written before.
///
/// Small entries are gathered, so that many leave as one piece: at the end, when there is enough, or when the writer is
/// about to wait ([`FetchSink::flush`]).
#[derive(Debug)]
pub struct FetchSink {
    /// None once something was wrong: the stream is broken then.
    pieces: Option<mpsc::Sender<Piece>>,
    /// Entries that were asked for and not written yet.
    names: std::vec::IntoIter<(Name, bool)>,
    /// Bytes of the last entry that were not written yet.
    left: u64,
    /// Bytes that are written and were not sent yet.
    gathered: Vec<u8>,
    /// The asking region wants pieces compressed.
    compresses: bool,
    metrics: Arc<PeerMetrics>,
}

impl FetchSink {
    pub(crate) fn new(
        fetch: &FetchRequest,
        pieces: mpsc::Sender<Piece>,
        compresses: bool,
        metrics: Arc<PeerMetrics>,
    ) -> Self {
        let names = fetch.names().into_iter();
        Self { pieces: Some(pieces), names, left: 0, gathered: Vec::new(), compresses, metrics }
    }

    /// Begins the next entry.
    ///
    /// # Errors
    /// If it is not the one that is due, or bytes of the one before are missing: the stream breaks. If the other region
    /// is gone.
    pub async fn entry(&mut self, fetched: Fetched) -> Result<(), LinkError> {
        let due = self.names.next();
        let is_due = due.as_ref().is_some_and(|(name, with_bytes)| {
            *name == fetched.name && (*with_bytes || fetched.bytes == 0)
        });
        if self.left > 0 || !is_due {
            return Err(self.broken("an entry that is not due".into()));
        }
        let head = frame::head(&fetched).map_err(|why| self.broken(why))?;
        self.left = fetched.bytes;
        self.write(head).await?;
        self.end_if_whole().await
    }

    /// Adds bytes to the last entry.
    ///
    /// # Errors
    /// If there are more than it says: the stream breaks. If the other region is gone.
    pub async fn bytes(&mut self, bytes: Bytes) -> Result<(), LinkError> {
        let Some(left) = self.left.checked_sub(bytes.len() as u64) else {
            return Err(self.broken("an entry with more bytes than it says".into()));
        };
        if bytes.is_empty() {
            return Ok(());
        }
        self.write(bytes).await?;
        self.left = left;
        self.end_if_whole().await
    }

    /// Sends the entries that were gathered.
    ///
    /// # Errors
    /// If the other region is gone, or the stream is broken.
    pub async fn flush(&mut self) -> Result<(), LinkError> {
        match std::mem::take(&mut self.gathered) {
            gathered if gathered.is_empty() => Ok(()),
            gathered => self.send_bytes(gathered.into()).await,
        }
    }

    async fn write(&mut self, mut bytes: Bytes) -> Result<(), LinkError> {
        self.open()?;
        if self.gathered.len() + bytes.len() <= GATHERED_BYTES_MAX {
            self.gathered.extend_from_slice(&bytes);
            return Ok(());
        }
        self.flush().await?;
        if bytes.len() <= GATHERED_BYTES_MAX / 2 {
            self.gathered.extend_from_slice(&bytes);
            return Ok(());
        }
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES_MAX));
            self.send_bytes(piece).await?;
        }
        Ok(())
    }

    async fn send_bytes(&self, piece: Bytes) -> Result<(), LinkError> {
        if !self.compresses {
            return self.send(Piece::Bytes(piece)).await;
        }
        let sent = compression::compressed(&piece);
        self.metrics.bytes_spared.add(piece.len().saturating_sub(sent.len()) as u64);
        self.send(Piece::Bytes(sent)).await
    }

    async fn end_if_whole(&mut self) -> Result<(), LinkError> {
        if self.left == 0 && self.names.as_slice().is_empty() {
            self.flush().await?;
            return self.send(Piece::End).await;
        }
        Ok(())
    }

    async fn send(&self, piece: Piece) -> Result<(), LinkError> {
        self.open()?.send(piece).await.map_err(|_| gone())
    }

    /// The stream, unless it is broken.
    fn open(&self) -> Result<&mpsc::Sender<Piece>, LinkError> {
        self.pieces.as_ref().ok_or_else(gone)
    }

    fn broken(&mut self, why: String) -> LinkError {
        self.pieces = None;
        LinkError::Unsound(why)
    }
}

fn gone() -> LinkError {
    Later::Broken("the other region is gone".into()).into()
}

#[cfg(test)]
mod tests {
    use larder_protocol::region::Slot;
    use larder_types::{BucketId, ObjectKey};

    use super::*;
    use crate::message::FetchSince;

    fn name(key: &str) -> Name {
        Name { bucket: BucketId(1), key: ObjectKey::new(key).unwrap(), slot: Slot::Null }
    }

    fn fetched(key: &str, bytes: u64) -> Fetched {
        Fetched { name: name(key), entry: None, bytes, is_withheld: false }
    }

    fn asked(names: Vec<(Name, bool)>) -> FetchRequest {
        FetchRequest::Entries(FetchSince { names, bases: Vec::new() })
    }

    fn sink() -> (FetchSink, mpsc::Receiver<Piece>) {
        let (pieces, received) = mpsc::channel(16);
        let names = vec![(name("a"), true), (name("b"), false)];
        let fetch = asked(names);
        (FetchSink::new(&fetch, pieces, false, Arc::default()), received)
    }

    /// True for a stream that ends as complete.
    fn is_whole(mut received: mpsc::Receiver<Piece>) -> bool {
        std::iter::from_fn(|| received.try_recv().ok()).any(|piece| matches!(piece, Piece::End))
    }

    #[tokio::test]
    async fn a_stream_ends_when_all_entries_have_all_of_their_bytes() {
        let (mut sink, received) = sink();
        sink.entry(fetched("a", 5)).await.unwrap();
        sink.bytes(Bytes::from_static(b"abc")).await.unwrap();
        sink.bytes(Bytes::new()).await.unwrap();
        sink.bytes(Bytes::from_static(b"de")).await.unwrap();
        sink.entry(fetched("b", 0)).await.unwrap();
        assert!(is_whole(received));
    }

    #[tokio::test]
    async fn small_entries_leave_together() {
        let keys: Vec<String> = (0..100).map(|number| format!("key-{number}")).collect();
        let (pieces, mut received) = mpsc::channel(1000);
        let names = keys.iter().map(|key| (name(key), true)).collect();
        let mut sink = FetchSink::new(&asked(names), pieces, false, Arc::default());
        let mut count = |sink: &FetchSink| {
            let left = std::iter::from_fn(|| received.try_recv().ok());
            let bytes = left.filter(|piece| matches!(piece, Piece::Bytes(_))).count();
            assert!(sink.gathered.len() <= GATHERED_BYTES_MAX);
            bytes
        };
        for key in &keys[..50] {
            sink.entry(fetched(key, 100)).await.unwrap();
            sink.bytes(Bytes::from(vec![1; 100])).await.unwrap();
        }
        assert_eq!(count(&sink), 0, "nothing leaves alone");
        sink.flush().await.unwrap();
        sink.flush().await.unwrap();
        assert_eq!(count(&sink), 1, "before a wait what was gathered leaves, once");
        for key in &keys[50..] {
            sink.entry(fetched(key, 1024)).await.unwrap();
            sink.bytes(Bytes::from(vec![1; 1024])).await.unwrap();
        }
        let most = 50 * 1200_usize.div_ceil(GATHERED_BYTES_MAX / 2);
        assert!(
            (1..=most).contains(&count(&sink)),
            "what is enough leaves, and all of it at the end"
        );
        assert!(sink.gathered.is_empty());
    }

    #[tokio::test]
    async fn a_stream_that_was_written_wrongly_never_looks_whole() {
        // Each is written after two of the first entry's five bytes, and then all the rest, as if nothing had been.
        for wrong in [fetched("b", 0), fetched("a", 5), fetched("c", 0)] {
            let (mut sink, received) = sink();
            sink.entry(fetched("a", 5)).await.unwrap();
            sink.bytes(Bytes::from_static(b"ab")).await.unwrap();
            assert!(sink.entry(wrong).await.is_err());
            assert!(sink.bytes(Bytes::from_static(b"cde")).await.is_err());
            assert!(sink.entry(fetched("b", 0)).await.is_err());
            assert!(!is_whole(received));
        }
        let (mut sink, received) = sink();
        sink.entry(fetched("a", 1)).await.unwrap();
        assert!(sink.bytes(Bytes::from_static(b"ab")).await.is_err(), "more than it says");
        assert!(sink.bytes(Bytes::from_static(b"a")).await.is_err());
        assert!(!is_whole(received));
        let (mut sink, received) = self::sink();
        sink.entry(fetched("a", 0)).await.unwrap();
        assert!(sink.entry(fetched("b", 1)).await.is_err(), "bytes that were not asked for");
        assert!(!is_whole(received));
    }
}
