//! Gets and lists: METAX from the primary, bytes from any holder, verified before they are believed.

use bytes::Bytes;
use larder_protocol::scheduler::Reading;
use larder_protocol::scheduler::reads::PendingRead;
use larder_types::{Chunk, ObjectKey, rows};
use larder_volume::verify_range;

use super::{REPEAT_US, TIMEOUT_US};
use crate::content::{digest_of, tags_number, values_in};
use crate::event::{Located, PgRequest, Piece, ProxyEvent};
use crate::history::Shown;
use crate::index::BUCKET;
use crate::proxy_context::{Line, ProxyContext};
use crate::verdict::Finding;

/// Rounds of finding and reading before a get gives up.
const ROUNDS: u32 = 8;

/// The result of reading a version.
enum Read {
    Whole(Vec<Bytes>),
    /// A holder did not answer: says nothing about the data.
    Unreachable,
    /// No holder has the right bytes of this chunk.
    Bad(Box<Chunk>),
}

impl ProxyContext {
    /// The object that the key shows, and the values that were read; `None` if there was no answer.
    pub(crate) async fn get(&self, key: &ObjectKey) -> Option<(Option<Shown>, Vec<u64>)> {
        let pg = self.pg_of(key);
        let mut bad_before = None;
        for _ in 0..ROUNDS {
            let asked = self.exchange(pg, PgRequest::Locate(BUCKET, key.clone())).await?;
            let ProxyEvent::Located(found) = asked else { return None };
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

    /// The bytes of a version piece by piece, if all are to be had now.
    pub(crate) async fn read_pieces(&self, located: &Located) -> Option<Vec<Bytes>> {
        if let Read::Whole(pieces) = self.read(located).await { Some(pieces) } else { None }
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

    /// Asks one holder after the other, and another beside one that takes long, until one has the right bytes.
    async fn read_chunk(&self, chunk: &Chunk) -> Result<Bytes, Read> {
        let mut draw = self.below(u64::MAX);
        let mut reading = self.with_choices(|choices, map, _| choices.begin(map, chunk));
        let mut unreachable = false;
        while let Some(asked) =
            self.with_choices(|choices, _, now_us| choices.next(now_us, &mut reading, draw))
        {
            draw = draw.rotate_left(7);
            match self.read_holders(chunk, asked, &mut reading).await {
                Ok(bytes) => return Ok(bytes),
                Err(is_unreachable) => unreachable |= is_unreachable,
            }
        }
        Err(if unreachable { Read::Unreachable } else { Read::Bad(Box::new(chunk.clone())) })
    }

    /// The answer of a holder, or of another that is asked beside it; and whether one did not
    /// answer.
    async fn read_holders(
        &self,
        chunk: &Chunk,
        asked: PendingRead,
        reading: &mut Reading,
    ) -> Result<Bytes, bool> {
        let patience_us = REPEAT_US.min(TIMEOUT_US);
        let hedge_us = self.now_us() + asked.hedge_after_us.min(patience_us);
        let mut until_us = self.now_us() + patience_us;
        let (mut may_hedge, mut unreachable) = (!reading.is_over(), false);
        let mut under_way = vec![self.read_from_holder(chunk, asked)];
        while !under_way.is_empty() {
            let lines: Vec<u64> = under_way.iter().map(|(_, line)| line.token()).collect();
            let received =
                self.receive_on(&lines, if may_hedge { hedge_us } else { until_us }).await;
            let Some((at, received)) = received else {
                if std::mem::take(&mut may_hedge) {
                    let beside =
                        self.with_choices(|choices, _, now_us| choices.hedge(now_us, reading));
                    if let Some(beside) = beside {
                        self.count("a hedged read");
                        until_us = self.now_us() + patience_us;
                        under_way.push(self.read_from_holder(chunk, beside));
                    }
                    continue;
                }
                unreachable = true;
                break;
            };
            may_hedge = false;
            let (asked, _line) = under_way.remove(at);
            let replica = asked.replica.index;
            let ProxyEvent::Bytes(Some(bytes)) = received else {
                self.with_choices(|choices, _, _| choices.gave_up(asked));
                unreachable = true;
                continue;
            };
            self.with_choices(|choices, _, now_us| choices.answered(now_us, asked));
            let is_bad = bytes.len() != chunk.len as usize
                || verify_range(chunk, 0, &bytes).is_err() && !self.bug().reads_unverified();
            if is_bad {
                self.suspect(chunk, replica);
                continue;
            }
            for (asked, _line) in under_way {
                self.with_choices(|choices, _, now_us| match at {
                    0 => choices.gave_up(asked),
                    _ => choices.outrun(now_us, asked),
                });
            }
            return Ok(bytes);
        }
        for (asked, _line) in under_way {
            self.with_choices(|choices, _, _| choices.gave_up(asked));
        }
        Err(unreachable)
    }

    /// Asks a holder; where its answer arrives.
    fn read_from_holder(&self, chunk: &Chunk, asked: PendingRead) -> (PendingRead, Line) {
        let replica = asked.replica.index;
        if !chunk.holders.has(replica) {
            let text = format!("{:?} is read from replica {replica}, no holder", chunk.grant);
            self.find(Finding::Contradiction(text));
        }
        let line = self.open_line();
        line.read(chunk, replica);
        (asked, line)
    }

    /// Keys behind `after` with what they show, in order, and so many at most if a page is asked for; whether there may be
    /// more. `None` if a PG did not answer.
    pub(crate) async fn list(
        &self,
        after: Option<ObjectKey>,
        page: Option<usize>,
    ) -> Option<(Vec<(ObjectKey, Shown)>, bool)> {
        let behind = |key: &ObjectKey| {
            let mut row = rows::version(BUCKET, key, rows::UNVERSIONED);
            row.push(0);
            row
        };
        let begin = after.as_ref().map_or_else(|| rows::bucket(b'V', BUCKET), behind);
        let mut listed = Vec::new();
        for pg in self.pgs() {
            let mut from = Some(begin.clone());
            while let Some(first) = from.take() {
                let asked = self.exchange(pg, PgRequest::List(BUCKET, first)).await?;
                let ProxyEvent::Listed(found, next) = asked else {
                    return None;
                };
                listed.extend(found.into_iter().map(|(key, etag, tags, size)| {
                    (key, Shown { value: digest_of(&etag), tags: tags_number(&tags), size })
                }));
                from = next.filter(|_| !self.bug().lists_first_part());
            }
        }
        let Some(page) = page.filter(|page| *page < listed.len()) else {
            return Some((listed, false));
        };
        // One that is listed twice stays so.
        listed.sort_by(|(one, _), (other, _)| one.cmp(other));
        listed.truncate(page);
        Some((listed, true))
    }
}

fn shown(located: &Located) -> Shown {
    let (value, tags) = (digest_of(&located.etag), tags_number(&located.tags));
    Shown { value, tags, size: located.size }
}
