//! `larder region bucket`: which buckets this region alone has, and which all regions have.
//!
//! Of a single node the running server takes the setting up; in a cluster the managers agree on it. Whether other regions can have a
//! bucket is found out by the server, of a cluster by its gateway, which says in its status why they cannot.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use larder_env::RealDisk;
use larder_link::{RegionStatus, SharingSetting};
use larder_protocol::manager::state::{Command, Outcome, Refusal};
use larder_roles::manager;
use larder_roles::managers::Managers;
use larder_types::{BucketName, BucketRecord, NotShared, Sharing};
use tokio::time::{Instant, sleep, timeout_at};

use super::{RegionError, live_members, managers};
use crate::args::region::{BucketArgs, Scope};
use crate::cluster::{RoleError, admin_client};
use crate::exit;
use crate::kind::{self, Kind};

/// Longest wait of the command for what it asks for.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Time after which the server has said why a bucket is not shared.
const STATUS_TIME: Duration = Duration::from_secs(3);
/// Told of an order that is not carried out in time.
const WAITS: &str = "ordered, and not so yet: the server goes on trying, also when it is started later; order the opposite to take it back";
/// Pause between two looks at the map, which a server changes at any time.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn bucket(args: &BucketArgs) -> Result<u8, RegionError> {
    let dir = &args.dir;
    let found = if dir.is_file() { Some(Kind::Manager) } else { kind::found(dir)? };
    let is_store = matches!(found, Some(Kind::Store) | None);
    let Some(name) = args.bucket.as_deref() else {
        let records = if is_store { of_store(dir)? } else { managers::records(dir)? };
        for record in &records {
            println!(
                "{}",
                describe(&record.name, record.sharing, why(dir, &record.name).as_deref())
            );
        }
        return Ok(exit::OK);
    };
    let bucket = BucketName::new(name).map_err(|_| RegionError::BadName(name.to_owned()))?;
    let wanted = args.scope.map(|scope| scope == Scope::Local);
    if wanted == Some(true) && !args.yes {
        let records = if is_store { of_store(dir)? } else { managers::records(dir)? };
        let is_shared = |it: &BucketRecord| it.name == bucket && it.sharing == Sharing::All;
        if records.iter().any(is_shared) {
            return Err(RegionError::StaysElsewhere(bucket.to_string()));
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(RegionError::System)?;
    let sharing = match is_store {
        true => runtime.block_on(set(dir, &bucket, wanted))?,
        false => Some(set_of_cluster(dir, &bucket, wanted)?),
    };
    let Some(sharing) = sharing else {
        println!("{WAITS}");
        return Ok(exit::FAULTS);
    };
    let mut reason = why(dir, &bucket);
    let is_refused = wanted.is_some_and(|is_local| is_refused(sharing, is_local));
    let until = Instant::now() + STATUS_TIME;
    // The server writes its status once a second.
    while is_refused && reason.is_none() && Instant::now() < until {
        runtime.block_on(async { sleep(POLL_INTERVAL).await });
        reason = why(dir, &bucket);
    }
    println!("{}", describe(&bucket, sharing, reason.as_deref()));
    let is_so = !is_refused && wanted.is_none_or(|is_local| is_over(sharing, is_local));
    if !is_so && !is_refused {
        println!("{WAITS}");
    }
    Ok(if is_so { exit::OK } else { exit::FAULTS })
}

/// True if the order is done, or will do nothing more soon.
fn is_over(sharing: Sharing, is_local: bool) -> bool {
    match sharing {
        Sharing::Opening => false,
        Sharing::All | Sharing::Renewing => !is_local,
        // Also if it was to be shared: another region has one of that name.
        Sharing::Local => true,
    }
}

fn is_refused(sharing: Sharing, is_local: bool) -> bool {
    sharing == Sharing::Local && !is_local
}

/// Shows a bucket of a single node, or has its server take a setting up; returns the result, `None`
/// if there is none yet.
async fn set(
    dir: &Path,
    bucket: &BucketName,
    wanted: Option<bool>,
) -> Result<Option<Sharing>, RegionError> {
    let record = || {
        let all = of_store(dir)?.into_iter();
        Ok::<_, RegionError>({ all }.find(|record| record.name == *bucket))
    };
    let is_asked = || {
        let asked = larder_link::asked::<SharingSetting>(dir)?;
        Ok::<_, RegionError>(asked.iter().any(|it| it.bucket == *bucket))
    };
    let no_such = || RegionError::NoBucket(bucket.to_string());
    let before = record()?;
    let Some(is_local) = wanted else {
        return Ok(Some(before.ok_or_else(no_such)?.sharing));
    };
    match &before {
        None if !is_local => return Err(no_such()),
        Some(BucketRecord { sharing: sharing @ (Sharing::Local | Sharing::All), .. })
            if (*sharing == Sharing::Local) == is_local && !is_asked()? =>
        {
            return Ok(Some(*sharing));
        }
        Some(before) if is_local && before.has_home() => {
            return Err(RegionError::NotShared(bucket.to_string(), NotShared::HasHome));
        }
        Some(_) | None => {}
    }
    larder_link::submit_order(dir, SharingSetting { bucket: bucket.clone(), is_local })?;
    let until = Instant::now() + TIMEOUT;
    loop {
        let is_taken = !is_asked()?;
        let now = record()?.map(|record| record.sharing);
        match now {
            Some(sharing) if is_taken && is_over(sharing, is_local) => return Ok(Some(sharing)),
            None if is_taken && !is_local => return Err(no_such()),
            now if Instant::now() >= until => return Ok(now.filter(|_| is_taken)),
            Some(_) | None => sleep(POLL_INTERVAL).await,
        }
    }
}

/// The same of a cluster, whose managers agree on it.
fn set_of_cluster(
    dir: &Path,
    bucket: &BucketName,
    is_local: Option<bool>,
) -> Result<Sharing, RoleError> {
    let config = admin_client::config(dir)?;
    let no_such = || RoleError::Named(format!("there is no bucket {:?}", bucket.as_str()));
    admin_client::runtime()?.block_on(async {
        let managers = admin_client::managers(&config).await?;
        let now = || managers.map().buckets.get(bucket).cloned();
        let Some(is_local) = is_local else {
            return now().map(|record| record.sharing).ok_or_else(no_such);
        };
        let created_ms = UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64;
        let command = Command::SetLocal(bucket.clone(), is_local, created_ms);
        let set = match admin_client::agreed(&managers, command).await? {
            Ok(Outcome::Bucket(record)) => *record,
            Ok(_) => now().ok_or_else(no_such)?,
            Err(Refusal::NoSuchBucket) => return Err(no_such()),
            Err(refusal @ (Refusal::NotInRegion | Refusal::NotShared(NotShared::HasHome))) => {
                return Err(RoleError::Named(format!("{bucket} is as it was: {refusal}")));
            }
            Err(refusal) => {
                return Err(RoleError::NotDone(format!("{bucket} is as it was: {refusal}")));
            }
        };
        if is_over(set.sharing, is_local) {
            return Ok(set.sharing);
        }
        // The gateway goes on, and the map shows the result. It may be late.
        let until = Instant::now() + TIMEOUT;
        let mut versions = managers.versions();
        loop {
            let seen = now().filter(|record| record.epoch >= set.epoch);
            let sharing = seen.map_or(set.sharing, |record| record.sharing);
            if is_over(sharing, is_local) || timeout_at(until, versions.changed()).await.is_err() {
                return Ok(sharing);
            }
        }
    })
}

/// The buckets of a single node that is a region.
fn of_store(dir: &Path) -> Result<Vec<BucketRecord>, RegionError> {
    live_members(dir)?;
    of_map(dir)
}

/// The buckets of a single node, as its map says.
pub(super) fn of_map(dir: &Path) -> Result<Vec<BucketRecord>, RegionError> {
    let unusable = |why: String| RegionError::Map(why);
    let disk = RealDisk::open(dir).map_err(|error| unusable(error.to_string()))?;
    let map = manager::load(&disk).map_err(|error| unusable(error.to_string()))?;
    Ok(map.into_iter().flat_map(|map| map.buckets.into_values()).collect())
}

/// The reason why a bucket is not shared, if the server of this directory says one.
fn why(dir: &Path, bucket: &BucketName) -> Option<String> {
    let status = RegionStatus::read(dir).ok()??;
    status.unshared.get(bucket.as_str()).cloned()
}

/// A setting as a sentence, and why it is not what was asked for.
fn describe(bucket: &BucketName, sharing: Sharing, why: Option<&str>) -> String {
    let why = why.map(|why| format!("\n  {why}")).unwrap_or_default();
    match sharing {
        Sharing::All => format!("{bucket} is shared with the other regions"),
        Sharing::Local => format!("{bucket} is local: this region alone has it{why}"),
        Sharing::Opening => {
            format!("{bucket} is local: this region alone has it until the others were asked{why}")
        }
        // A reason that is left is that of the step before.
        Sharing::Renewing => {
            format!("{bucket} is shared: its objects are sent to the other regions")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_is_over_when_it_is_so_or_refused() {
        let all = [Sharing::All, Sharing::Local, Sharing::Opening, Sharing::Renewing];
        assert_eq!(all.map(|sharing| is_over(sharing, true)), [false, true, false, false]);
        assert_eq!(all.map(|sharing| is_over(sharing, false)), [true, true, false, true]);
        assert!(is_refused(Sharing::Local, false) && !is_refused(Sharing::Local, true));
    }

    #[test]
    fn the_reason_why_a_bucket_is_not_shared_is_reported() {
        let name = BucketName::new("logs").unwrap();
        let text = describe(&name, Sharing::Local, Some("region us has a bucket of this name"));
        assert_eq!(
            text,
            "logs is local: this region alone has it\n  region us has a bucket of this name"
        );
        assert_eq!(
            describe(&name, Sharing::All, Some("old")),
            "logs is shared with the other regions"
        );
        assert!(!describe(&name, Sharing::Renewing, Some("stale")).contains("stale"));
    }
}
