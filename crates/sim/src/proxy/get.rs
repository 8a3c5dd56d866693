//! Gets and lists: METAX from the primary, bytes from any holder, verified before they are believed.

use bytes::Bytes;
use larder_types::{Chunk, ObjectKey, rows};
use larder_volume::verify_range;

use super::{PATIENCE_US, REPEAT_US};
use crate::content::{digest_of, tags_number, values_in};
use crate::desk::Desk;
use crate::happening::{Ask, Heard, Located, Piece};
use crate::history::Shown;
use crate::index::BUCKET;
use crate::verdict::Finding;

/// Rounds of finding and reading before a get gives up.
const ROUNDS: u32 = 8;

/// What came of reading a version.
enum Read {
    Whole(Vec<Bytes>),
    /// A holder did not answer: says nothing about the data.
    Unreachable,
    /// No holder has the right bytes of this chunk.
    Bad(Box<Chunk>),
}

impl Desk {
    /// What the key shows, and the values that were read; `None` if there was no answer.
    pub(crate) async fn get(&self, key: &ObjectKey) -> Option<(Option<Shown>, Vec<u64>)> {
        let pg = self.pg_of(key);
        let mut bad_before = None;
        for _ in 0..ROUNDS {
            let asked = self.exchange(pg, Ask::Locate(BUCKET, key.clone())).await?;
            let Heard::Located(found) = asked else { return None };
            let Some(located) = found else { return Some((None, Vec::new())) };
            let shown = shown(&located);
            match self.read(&located).await {
                Read::Whole(pieces) => {
                    let values = values_in(&located.etag, located.size, &pieces);
                    if values.is_none() {
                        let text = format!("{key:?}: {:?} at {:?}", located.etag, located.op);
                        self.find(Finding::WrongBytes(text));
                    }
                    return Some((Some(shown), values.unwrap_or_default()));
                }
                Read::Unreachable => bad_before = None,
                Read::Bad(chunk) if bad_before == Some(chunk.grant) => {
                    self.check_rotten(key, &chunk);
                    return Some((Some(shown), Vec::new()));
                }
                // The extents may belong to another object by now, or it lies elsewhere: the primary knows.
                Read::Bad(chunk) => bad_before = Some(chunk.grant),
            }
        }
        None
    }

    /// The chunk stood where it was while its bytes were read twice: they must have been damaged, or this proxy looks
    /// where the copy was once.
    fn check_rotten(&self, key: &ObjectKey, chunk: &Chunk) {
        for replica in chunk.holders.iter() {
            if !self.may_be_bad(chunk, replica) {
                let text =
                    format!("{key:?}: replica {replica} of {:?} {:?}", chunk.grant, chunk.extents);
                self.find(Finding::LostData(text));
                return;
            }
        }
    }

    async fn read(&self, located: &Located) -> Read {
        let mut pieces = Vec::new();
        for piece in &located.pieces {
            match piece {
                Piece::Inline(bytes) => pieces.push(bytes.clone()),
                Piece::Chunk(chunk) => match self.read_chunk(chunk).await {
                    Ok(bytes) => pieces.push(bytes),
                    Err(read) => return read,
                },
            }
        }
        Read::Whole(pieces)
    }

    async fn read_chunk(&self, chunk: &Chunk) -> Result<Bytes, Read> {
        let holders: Vec<usize> = chunk.holders.iter().collect();
        let first = self.below(holders.len().max(1) as u64) as usize;
        let mut unreachable = false;
        for offset in 0..holders.len() {
            let line = self.open_line();
            line.read(chunk, holders[(first + offset) % holders.len()]);
            let until_us = self.now_us() + REPEAT_US.min(PATIENCE_US);
            match line.hear(until_us).await {
                Some(Heard::Bytes(Some(bytes))) => {
                    if bytes.len() == chunk.len as usize && verify_range(chunk, 0, &bytes).is_ok() {
                        return Ok(bytes);
                    }
                    self.suspect(chunk, holders[(first + offset) % holders.len()]);
                }
                _ => unreachable = true,
            }
        }
        Err(if unreachable { Read::Unreachable } else { Read::Bad(Box::new(chunk.clone())) })
    }

    /// Every key with what it shows; `None` if a PG did not answer.
    pub(crate) async fn list(&self) -> Option<Vec<(ObjectKey, Shown)>> {
        let mut listed = Vec::new();
        for pg in self.pgs() {
            let mut from = Some(rows::bucket(b'V', BUCKET));
            while let Some(first) = from.take() {
                let asked = self.exchange(pg, Ask::List(BUCKET, first)).await?;
                let Heard::Listed(found, next) = asked else {
                    return None;
                };
                listed.extend(found.into_iter().map(|(key, etag, tags, size)| {
                    (key, Shown { value: digest_of(&etag), tags: tags_number(&tags), size })
                }));
                from = next;
            }
        }
        Some(listed)
    }
}

fn shown(located: &Located) -> Shown {
    let (value, tags) = (digest_of(&located.etag), tags_number(&located.tags));
    Shown { value, tags, size: located.size }
}
