//! Buckets: the managers agree on them, and their map shows what came of it.

use larder_objects::ObjectError;
use larder_protocol::manager::state::{
    Applied, Command, GatewayRecord, Outcome, Refusal, Topology,
};
use larder_types::{BucketName, BucketRecord, CorsRules, Home, HomeNotSet, RegionId, Sharing};
use tokio::time::{Instant, timeout_at};

use super::super::{max_wait, unavailable};
use super::retry::pause;
use super::route::{found, newer};
use super::unavailable_pgs::{UNLED, are_led, deadline_of_managers};
use super::unfitting;
use crate::clock::now_ms;
use crate::limits::BUSY_TRIES_MAX;
use crate::managers::{Managers, NotProposed};

/// The outcome that the managers agreed on.
struct Agreed {
    applied: Applied,
    /// They may have agreed on the same before, without this proxy's knowing.
    may_be_second: bool,
}

pub(super) async fn create(
    managers: &dyn Managers,
    name: &BucketName,
    location: Option<String>,
) -> Result<BucketRecord, ObjectError> {
    let (deadline, created_ms) = (deadline_of_managers(managers, max_wait()), now_ms());
    let command = Command::CreateBucket(name.clone(), location.clone(), created_ms);
    let agreed = agree(managers, [command], deadline).await?;
    let record = match agreed.applied {
        Ok(outcome) => record_of(outcome)?,
        Err(Refusal::BucketExists) if agreed.may_be_second => {
            let theirs = found(managers, deadline, |map| map.buckets.get(name).cloned()).await;
            let is_own = |it: &BucketRecord| it.created_ms == created_ms && it.location == location;
            theirs.filter(is_own).ok_or(ObjectError::BucketExists)?
        }
        Err(refusal) => return Err(not_agreed(refusal)),
    };
    // Ids are given out in order.
    let shown = |map: &Topology| (map.next.bucket >= record.id).then_some(());
    match found(managers, deadline, shown).await {
        Some(()) => Ok(record),
        None => Err(unavailable("the bucket is made, but does not show here yet")),
    }
}

pub(super) async fn set_cors(
    managers: &dyn Managers,
    name: &BucketName,
    rules: Option<CorsRules>,
) -> Result<(), ObjectError> {
    let deadline = deadline_of_managers(managers, max_wait());
    let before = managers.map().buckets.get(name).and_then(|record| record.cors.clone());
    let command = Command::SetCors(name.clone(), rules.clone());
    let agreed = agree(managers, [command], deadline).await?;
    agreed.applied.map_err(not_agreed)?;
    // Others may have set other rules since.
    let shown = |map: &Topology| {
        let record = map.buckets.get(name);
        record.is_none_or(|it| it.cors == rules || it.cors != before).then_some(())
    };
    match found(managers, deadline, shown).await {
        Some(()) => Ok(()),
        None => Err(unavailable("the CORS rules are set, but do not show here yet")),
    }
}

pub(super) async fn begin_deletion(
    managers: &dyn Managers,
    name: &BucketName,
    region: RegionId,
) -> Result<BucketRecord, ObjectError> {
    let deadline = deadline_of_managers(managers, max_wait());
    let command = match region {
        RegionId::OWN => Command::BeginDeletion(name.clone()),
        _ => Command::CloseBucket(name.clone()),
    };
    let agreed = agree(managers, [command], deadline).await?;
    let marked = record_of(agreed.applied.map_err(not_agreed)?)?;
    // Rows that are scanned from now on are scanned under a map with the mark.
    let shown = |map: &Topology| {
        let record = map.buckets.get(name);
        record
            .is_none_or(|record| (record.id, record.epoch) >= (marked.id, marked.epoch))
            .then_some(())
    };
    match found(managers, deadline, shown).await {
        Some(()) => Ok(marked),
        None => {
            Err(unavailable("the bucket is marked for deletion, but that does not show here yet"))
        }
    }
}

pub(super) async fn end_deletion(
    managers: &dyn Managers,
    marked: BucketRecord,
    empty: bool,
) -> Result<(), ObjectError> {
    let deadline = max_wait();
    let (id, name, epoch) = (marked.id, marked.name.clone(), marked.epoch);
    let earlier = Command::EndDeletion(name.clone(), epoch, empty);
    let forms = [Command::EndDeletionOf(id, name, epoch, empty), earlier];
    let agreed = agree(managers, forms, deadline).await?;
    ended(managers, &marked, (agreed, empty), deadline).await
}

/// Deletes a bucket of a region that all regions have closed.
pub(super) async fn delete_closed(
    managers: &dyn Managers,
    gateway: GatewayRecord,
    marked: BucketRecord,
) -> Result<(), ObjectError> {
    let deadline = max_wait();
    let (id, name, epoch) = (marked.id, marked.name.clone(), marked.epoch);
    let command = Command::DeleteClosed(gateway, id, name, epoch);
    let agreed = agree(managers, [command], deadline).await?;
    ended(managers, &marked, (agreed, true), deadline).await
}

/// Sets a bucket's home; `false` if it is not the expected one, or the bucket is being deleted.
pub(super) async fn set_home(
    managers: &dyn Managers,
    gateway: GatewayRecord,
    name: &BucketName,
    (expected, next): (Option<Home>, Home),
) -> Result<bool, ObjectError> {
    let deadline = max_wait();
    let command = Command::SetHome(gateway, name.clone(), expected, next);
    let agreed = agree(managers, [command], deadline).await?;
    let is_next = |map: &Topology| {
        let record = map.buckets.get(name)?;
        (record.home == Some(next)).then_some(())
    };
    match agreed.applied {
        Ok(_) => {}
        // By the one that was proposed before, if it is so now.
        Err(Refusal::Home(HomeNotSet::Changed)) if agreed.may_be_second => {
            return Ok(found(managers, deadline, is_next).await.is_some());
        }
        Err(Refusal::Home(_)) => return Ok(false),
        Err(refusal) => return Err(not_agreed(refusal)),
    }
    match found(managers, deadline, is_next).await {
        Some(()) => Ok(true),
        None => Err(unavailable("the bucket's home is set, but does not show here yet")),
    }
}

/// Goes on to the next step of sharing a bucket, if it is still as in this record.
pub(super) async fn share(
    managers: &dyn Managers,
    gateway: GatewayRecord,
    was: &BucketRecord,
    next: Sharing,
) -> Result<(), ObjectError> {
    let (deadline, name) = (max_wait(), was.name.clone());
    let command = Command::ShareBucket(gateway, was.id, name, was.epoch, next);
    let agreed = agree(managers, [command], deadline).await?;
    agreed.applied.map_err(not_agreed)?;
    let is_shown = |map: &Topology| (map.buckets.get(&was.name) != Some(was)).then_some(());
    match found(managers, deadline, is_shown).await {
        Some(()) => Ok(()),
        None => Err(unavailable("the bucket is shared, but does not show so here yet")),
    }
}

/// Makes a bucket that another region has, with the home that it has there.
pub(super) async fn adopt(
    managers: &dyn Managers,
    gateway: GatewayRecord,
    name: &BucketName,
    home: Home,
) -> Result<(), ObjectError> {
    let deadline = max_wait();
    let command = Command::AdoptBucket(gateway, name.clone(), now_ms(), home);
    let agreed = agree(managers, [command], deadline).await?;
    agreed.applied.map_err(not_agreed)?;
    let is_there = |map: &Topology| map.buckets.contains_key(name).then_some(());
    match found(managers, deadline, is_there).await {
        Some(()) => Ok(()),
        None => Err(unavailable("the bucket is made, but does not show here yet")),
    }
}

/// Waits until a region's gateway has ended a deletion. Where none does, the bucket is opened again.
pub(super) async fn deleted_by_gateway(
    managers: &dyn Managers,
    marked: BucketRecord,
    deadline: Instant,
) -> Result<(), ObjectError> {
    let shown = |map: &Topology| {
        let record = map.buckets.get(&marked.name).filter(|record| record.id == marked.id);
        let is_going = record.is_some_and(|record| record.epoch <= marked.epoch);
        (!is_going).then_some(record.is_none())
    };
    match found(managers, deadline, shown).await {
        Some(true) => Ok(()),
        Some(false) => Err(unavailable(
            "the bucket stays: a region has objects in it, or does not answer; the log of the gateway's machine says which",
        )),
        None => {
            end_deletion(managers, marked, false).await?;
            Err(unavailable(
                "a bucket is deleted in all regions at once, and the gateway of this one is away",
            ))
        }
    }
}

/// Waits until it shows that a deletion has ended.
async fn ended(
    managers: &dyn Managers,
    marked: &BucketRecord,
    (agreed, empty): (Agreed, bool),
    deadline: Instant,
) -> Result<(), ObjectError> {
    match agreed.applied {
        Ok(_) => {}
        // The first was applied before this: the bucket is gone, or lives on under another epoch.
        Err(Refusal::NoSuchBucket) if agreed.may_be_second && empty => {}
        Err(Refusal::OtherEpoch) if agreed.may_be_second && !empty => {}
        Err(refusal) => return Err(not_agreed(refusal)),
    }
    let shown = |map: &Topology| {
        let record = map.buckets.get(&marked.name);
        record
            .is_none_or(|record| (record.id, record.epoch) > (marked.id, marked.epoch))
            .then_some(())
    };
    match found(managers, deadline, shown).await {
        Some(()) => Ok(()),
        None => Err(unavailable("the bucket is deleted, but still shows here")),
    }
}

/// Has the managers agree on a command, through the one that leads them by then: in the first of these
/// forms that all of them know. Only the first may be proposed where one may be in effect already, or
/// twice: the others say less of what they are about.
async fn agree<const N: usize>(
    managers: &dyn Managers,
    forms: [Command; N],
    deadline: Instant,
) -> Result<Agreed, ObjectError> {
    let (mut form, mut may_be_second, mut busy) = (0, false, 0);
    for tries in 1.. {
        let version = managers.map().version;
        let proposed = timeout_at(deadline, managers.propose(forms[form].clone())).await;
        let failed = match proposed {
            Ok(Ok(applied)) => return Ok(Agreed { applied, may_be_second }),
            Ok(Err(NotProposed::OlderManager(_))) if form + 1 < N && !may_be_second => {
                form += 1;
                continue;
            }
            Ok(Err(failed)) => failed,
            Err(_elapsed) => NotProposed::Unknown,
        };
        may_be_second |= failed == NotProposed::Unknown;
        if failed == NotProposed::Unknown && form > 0 {
            return Err(ObjectError::Unavailable { reason: failed.to_string() });
        }
        busy += u32::from(failed == NotProposed::Busy);
        if busy >= BUSY_TRIES_MAX {
            return Err(ObjectError::SlowDown);
        }
        if failed != NotProposed::NotAllowed && Instant::now() >= deadline && !are_led(managers) {
            return Err(unavailable(UNLED));
        }
        if failed == NotProposed::NotAllowed || Instant::now() >= deadline {
            return Err(ObjectError::Unavailable { reason: failed.to_string() });
        }
        newer(managers, version, pause(tries)).await;
    }
    unreachable!("the deadline comes before the last number")
}

fn record_of(outcome: Outcome) -> Result<BucketRecord, ObjectError> {
    match outcome {
        Outcome::Bucket(record) => Ok(*record),
        other => Err(unfitting(&other)),
    }
}

fn not_agreed(refusal: Refusal) -> ObjectError {
    match refusal {
        Refusal::BucketExists => ObjectError::BucketExists,
        Refusal::NoSuchBucket => ObjectError::NoSuchBucket,
        Refusal::OtherEpoch => {
            unavailable("another deletion of the bucket has begun, or this one took too long")
        }
        Refusal::TooMany => ObjectError::TooManyBuckets,
        Refusal::TooMuchCors => ObjectError::TooMuchCors,
        Refusal::HasHome => ObjectError::HasHome,
        refusal => ObjectError::Unavailable { reason: refusal.to_string() },
    }
}
