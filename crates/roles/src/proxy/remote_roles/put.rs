//! A put: METAX at the primary and data on the replicas, in parallel; committed when both are durable.
//!
//! # Invariants
//!
//! 1. What is committed is one grant: its METAX is persisted, and as many replicas as the bucket's write policy asks
//!    for have acknowledged its data. Its outcome names those that have.
//! 2. A newer grant of the request takes the place of an older one, and nothing of the older one's data counts.
//! 3. A put that ends in any other way is taken back, if a grant of it is known: no client was told of it.
//! 4. It is begun anew only after its primary has answered that it is revoked, which is not said before that can be
//!    lost no more. If it was rolled forward first, that is the put's outcome.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::{Either, select};
use larder_objects::ObjectError;
use larder_protocol::{Answer, Call, Refusal};
use larder_types::{Grant, Holders, OpId, PgId};
use tokio::time::Instant;

use super::super::role_access::{Data, Ended, Lost};
use super::super::{refused, unavailable};
use super::calling::Calling;
use super::counters::count;
use super::planted::{self, Bug};
use super::primaries::Primaries;
use super::retry::{RetryState, TryError, pause};
use super::route::{Primary, newer};
use super::write::{self, WriteAcks, Written};
use super::{RemoteRoles, unfitting};
use crate::limits::{DISK_FULL_TRIES_MAX, LAST_TRY_MS, LOST_TRIES_MAX, WITHDRAWALS_MAX};
use crate::ticket::Granted;
use crate::wire::{MetaCall, MetaReply};

/// A put under way. If it does not end well, or its caller goes away, it is taken back.
struct Flight<'a> {
    remote: &'a RemoteRoles,
    pg: PgId,
    calling: Calling<'a>,
    /// Replicas that must have the data; 0: all.
    required_copies: u8,
    stage: Stage,
}

/// The stage of a put.
enum Stage {
    /// Its primary was asked for a grant, and has not answered.
    Prepared,
    /// It has this grant's op.
    Granted { op: OpId },
    /// Nothing has to be done for it any more, or ever: it has no data.
    Over,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        match self.stage {
            Stage::Over => {}
            Stage::Granted { op } => {
                self.remote.primaries.notify(self.pg, Call::Withdraw { op, disk_full: false });
            }
            Stage::Prepared => {
                if let Some(put) = self.calling.put() {
                    self.remote.abandon_unknown(self.pg, put);
                }
            }
        }
    }
}

/// The outcome of a grant.
enum AttemptEnd {
    /// METAX is persisted and enough replicas have the data.
    Durable(Written),
    /// Too few replicas have taken it.
    Lost(Lost),
    /// The primary answers something else by now.
    Answered(Answer, Primary),
}

pub(super) async fn put(
    remote: &RemoteRoles,
    pg: PgId,
    call: Call,
    data: Option<Data>,
    by: Instant,
) -> Result<Ended, ObjectError> {
    let data = data.map(|(pieces, len)| joined(pieces, len));
    let required_copies = call.put().map_or(0, |put| put.required_copies);
    let calling = Calling::new(&remote.primaries, pg, call, by);
    let stage = if data.is_some() { Stage::Prepared } else { Stage::Over };
    Flight { remote, pg, calling, required_copies, stage }.fly(data.as_ref()).await
}

impl Flight<'_> {
    async fn fly(mut self, data: Option<&Bytes>) -> Result<Ended, ObjectError> {
        let mut tries = RetryState::default();
        let (mut answer, mut at) = match self.calling.answer().await {
            Ok(answered) => answered,
            Err(error) => return Err(self.unanswered(error)),
        };
        loop {
            let granted = match answer {
                Answer::Done { clock, .. } => {
                    self.stage = Stage::Over;
                    return Ok(Ended::Done(clock));
                }
                Answer::Refused(refusal) => return self.refused(refusal, data.is_some()),
                Answer::Granted { grant, lv, extents, replicas, clock, as_of } => {
                    Granted { grant, lv, extents, replicas, clock, as_of }
                }
                // The outcome was decided without this proxy: the index shows it soon.
                Answer::Persisted { .. } => {
                    let managers = &*self.remote.managers;
                    let pause = tries.pause_after(&TryError::NotPrimary).unwrap_or_default();
                    newer(managers, managers.map().version, pause).await;
                    (answer, at) = self.calling.answer().await?;
                    continue;
                }
                other => return Err(unfitting(&other)),
            };
            let Some(data) = data else { return Err(unfitting(&granted)) };
            let op = granted.grant.op;
            self.stage = Stage::Granted { op };
            let by = self.calling.deadline();
            let written = write::write(self.remote, &granted, data, self.required_copies, by);
            match drive(&mut self.calling, self.pg, granted.grant, at, written).await? {
                AttemptEnd::Durable(written) => {
                    self.stage = Stage::Over;
                    commit(self.remote, self.pg, granted.grant, written);
                    return Ok(Ended::Done(granted.clock));
                }
                AttemptEnd::Lost(lost) if planted::has(Bug::BeginsAnewAtOnce) => {
                    self.stage = Stage::Over;
                    return Ok(Ended::Lost(lost));
                }
                AttemptEnd::Lost(lost) => {
                    report_full(&self.remote.primaries, self.pg, op, lost.full);
                    match self.take_back(op).await? {
                        (Answer::Refused(Refusal::Revoked), _) => {
                            self.stage = Stage::Over;
                            return Ok(Ended::Lost(lost));
                        }
                        (next, by) => (answer, at) = (next, by),
                    }
                }
                AttemptEnd::Answered(next, by) => (answer, at) = (next, by),
            }
        }
    }

    /// Takes the put back, and waits for what its primary answers then. The put is revoked, or was rolled
    /// forward before, or has another grant if a new primary knew nothing of it.
    async fn take_back(&mut self, op: OpId) -> Result<(Answer, Primary), ObjectError> {
        for tries in 1.. {
            let primaries = &self.remote.primaries;
            primaries.notify(self.pg, Call::Withdraw { op, disk_full: false });
            if tries > WITHDRAWALS_MAX {
                // One of an earlier release knows of no other way.
                primaries.notify(self.pg, Call::Abandon { op, disk_full: false });
            }
            let version = self.remote.managers.map().version;
            match self.calling.answer().await? {
                (Answer::Granted { grant, .. } | Answer::Persisted { grant }, _)
                    if grant.op == op => {}
                answered => return Ok(answered),
            }
            if Instant::now() >= self.calling.deadline() {
                break;
            }
            newer(&*self.remote.managers, version, pause(tries)).await;
        }
        Err(unavailable("a put that was given up is not revoked yet"))
    }

    /// There was no answer to the first question.
    fn unanswered(&mut self, error: ObjectError) -> ObjectError {
        if error == ObjectError::SlowDown {
            // To find out what became of it would be more to do.
            self.stage = Stage::Over;
        }
        error
    }

    /// The put was refused. One with data may be begun anew where that may help.
    fn refused(&mut self, refusal: Refusal, has_data: bool) -> Result<Ended, ObjectError> {
        let was_granted = matches!(self.stage, Stage::Granted { .. });
        match refusal {
            Refusal::Revoked | Refusal::DiskFailed if has_data => {
                self.stage = Stage::Over;
                Ok(Ended::Lost(Lost::default()))
            }
            // Refused before the primary looked whether it has it.
            Refusal::Busy | Refusal::Full if was_granted => {
                Err(unavailable("a put under way was refused, and is given up"))
            }
            refusal => {
                self.stage = Stage::Over;
                Err(refused(refusal))
            }
        }
    }
}

/// A put that was given up may begin anew, a little later or by a newer map.
pub(super) async fn again(
    remote: &RemoteRoles,
    tries: u32,
    lost: Lost,
    by: Instant,
) -> Result<(), ObjectError> {
    let has_room = lost.full.is_empty();
    let tries_max = if has_room { LOST_TRIES_MAX } else { DISK_FULL_TRIES_MAX };
    let begins = Instant::now() + pause(tries);
    if tries >= tries_max || begins + Duration::from_millis(LAST_TRY_MS) > by {
        return Err(match has_room {
            true => unavailable("a data server does not take the data"),
            // Only the primary knows whether there is no room elsewhere either.
            false => unavailable("disks had no room for the data wherever it was tried"),
        });
    }
    count(&remote.counters().begun_anew);
    newer(&*remote.managers, remote.managers.map().version, pause(tries)).await;
    Ok(())
}

/// Reports a committed put to its primary. The report names the replicas that have the data, so writes on their way to
/// others are awaited briefly.
fn commit(remote: &RemoteRoles, pg: PgId, grant: Grant, written: Written) {
    let Written { mut seen, rest } = written;
    let Some(rest) = rest else { return report_committed(&remote.primaries, pg, grant, &seen) };
    let primaries = remote.primaries.clone();
    remote.runtime.spawn(async move {
        rest.join(&mut seen, primaries.counters()).await;
        report_committed(&primaries, pg, grant, &seen);
    });
}

/// Says which replicas had no room: before the put's outcome, by which its space is forgotten.
fn report_full(primaries: &Primaries, pg: PgId, op: OpId, replicas: Holders) {
    if !replicas.is_empty() {
        primaries.notify(pg, Call::NoRoom { op, replicas });
    }
}

fn report_committed(primaries: &Primaries, pg: PgId, grant: Grant, seen: &WriteAcks) {
    let (op, attempt, holders) = (grant.op, grant.attempt, seen.holders);
    report_full(primaries, pg, op, seen.full);
    primaries.notify(pg, Call::Commit { op, attempt, holders });
}

/// Has the data written while the primary makes METAX durable.
async fn drive(
    calling: &mut Calling<'_>,
    pg: PgId,
    grant: Grant,
    at: Primary,
    written: impl Future<Output = Result<Written, Lost>>,
) -> Result<AttemptEnd, ObjectError> {
    let written = pin!(written);
    let persisted = pin!(persisted(calling, pg, grant, at));
    Ok(match select(written, persisted).await {
        Either::Left((Err(lost), _)) => AttemptEnd::Lost(lost),
        Either::Left((Ok(written), _)) if planted::has(Bug::AnswersUnpersisted) => {
            AttemptEnd::Durable(written)
        }
        Either::Left((Ok(written), persisted)) => match persisted.await? {
            None => AttemptEnd::Durable(written),
            Some((answer, by)) => AttemptEnd::Answered(answer, by),
        },
        Either::Right((persisted, written)) => match persisted? {
            None => match written.await {
                Ok(written) => AttemptEnd::Durable(written),
                Err(lost) => AttemptEnd::Lost(lost),
            },
            Some((answer, by)) => AttemptEnd::Answered(answer, by),
        },
    })
}

/// Waits until METAX of the grant is persisted: `None`; or another outcome of the request. The put is sent again to a
/// new primary, which has it or makes it anew.
async fn persisted(
    calling: &mut Calling<'_>,
    pg: PgId,
    grant: Grant,
    mut at: Primary,
) -> Result<Option<(Answer, Primary)>, ObjectError> {
    let (primaries, deadline) = (calling.primaries(), calling.deadline());
    let mut tries = RetryState::default();
    loop {
        let version = primaries.managers().map().version;
        let wait = MetaCall::Await { pg, view: at.view, op: grant.op };
        let trouble = match primaries.call_once(pg, at, &wait, deadline).await {
            Ok(said) => match said.reply {
                MetaReply::Answered(Answer::Persisted { grant: of }) if of == grant => {
                    return Ok(None);
                }
                MetaReply::Answered(answer) => return Ok(Some((answer, at))),
                MetaReply::Refused(refusal) => return Ok(Some((Answer::Refused(refusal), at))),
                other => return Err(unfitting(&other)),
            },
            Err(trouble) => trouble,
        };
        let Some(pause) = tries.pause_after(&trouble) else { return Err(trouble.final_error()) };
        count(&primaries.counters().retries);
        if newer(primaries.managers(), version, pause).await {
            tries.cut_short();
        }
        match calling.answer().await? {
            (Answer::Granted { grant: of, .. }, by) if of == grant => at = by,
            (Answer::Persisted { grant: of }, _) if of == grant => return Ok(None),
            (answer, by) => return Ok(Some((answer, by))),
        }
    }
}

/// The pieces in one, as they go over the net.
fn joined(mut pieces: Vec<Bytes>, len: u32) -> Bytes {
    if pieces.len() == 1 {
        return pieces.remove(0);
    }
    let mut joined = BytesMut::with_capacity(len as usize);
    pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
    joined.freeze()
}
