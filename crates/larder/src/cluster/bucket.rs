//! `larder bucket policy`: how many copies a bucket's puts wait for.

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use larder_link::RegionList;
use larder_protocol::manager::state::{Command, Outcome, Refusal, Topology};
use larder_roles::managers::Managers;
use larder_types::codec::decode;
use larder_types::{BucketName, BucketRecord, NotShared, RegionId, Sharing, WritePolicy};
use tokio::time::{Instant, timeout, timeout_at};

use super::config::RoleConfig;
use super::operate::{agreed, finish, managers, runtime};
use super::{RoleError, follow_as};
use crate::args::BucketCommand;
use crate::region::{bucket as sharing, policy};

/// Longest wait for managers that may be down.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// Shows or sets something of a bucket.
pub(crate) fn run(command: &BucketCommand) -> ExitCode {
    let BucketCommand::Policy { config, name, policy } = command;
    finish(shown_or_set(config, name, *policy))
}

fn shown_or_set(
    config: &std::path::Path,
    name: &str,
    policy: Option<WritePolicy>,
) -> Result<Vec<String>, RoleError> {
    let config = RoleConfig::load(config)?;
    let no_such = || RoleError::Named(format!("there is no bucket {name:?}"));
    let bucket = BucketName::new(name).map_err(|_not_a_name| no_such())?;
    runtime()?.block_on(async {
        let managers = managers(&config).await?;
        let map = managers.map();
        let record = map.buckets.get(&bucket).ok_or_else(no_such)?;
        let Some(policy) = policy else {
            return Ok(vec![told(&map, name, record.write_policy)]);
        };
        match agreed(&managers, Command::SetWritePolicy(bucket, policy)).await? {
            Ok(Outcome::Already) => {
                Ok(vec![format!("nothing to do: {}", told(&map, name, policy))])
            }
            Ok(_) => Ok(vec![told(&map, name, policy)]),
            Err(Refusal::NoSuchBucket) => Err(no_such()),
            Err(Refusal::TooManyCopies) => Err(RoleError::Named(format!(
                "{name} is as it was: the cluster keeps {} copies, so no put can wait for {policy}",
                map.settings().copies
            ))),
            Err(refusal) => Err(RoleError::NotDone(format!("{name} is as it was: {refusal}"))),
        }
    })
}

/// Shows or sets how many regions have a bucket's changes before they are answered.
pub(crate) fn regions(
    dir: &std::path::Path,
    bucket: &BucketName,
    wanted: Option<u8>,
) -> Result<Vec<String>, RoleError> {
    let config = RoleConfig::load(dir)?;
    let no_such = || RoleError::Named(format!("there is no bucket {:?}", bucket.as_str()));
    runtime()?.block_on(async {
        let managers = managers(&config).await?;
        let map = managers.map();
        let now = map.buckets.get(bucket).ok_or_else(no_such)?.regions;
        let Some(regions) = wanted else { return Ok(vec![policy::told(bucket, now)]) };
        // Where a gateway runs, the managers have its list.
        let list = decode::<RegionList>("list of regions", &map.regions).ok();
        let known = list.map(|list| list.regions.iter().filter(|it| !it.removed).count());
        if let Some(known) = known.filter(|known| usize::from(regions) > *known) {
            return Err(RoleError::Named(policy::few_regions(regions, known)));
        }
        match agreed(&managers, Command::SetRegions(bucket.clone(), regions)).await? {
            Ok(Outcome::Already) => {
                Ok(vec![format!("nothing to do: {}", policy::told(bucket, regions))])
            }
            Ok(_) => Ok(vec![policy::told(bucket, regions)]),
            Err(Refusal::NoSuchBucket) => Err(no_such()),
            Err(refusal) => Err(RoleError::NotDone(format!("{bucket} is as it was: {refusal}"))),
        }
    })
}

/// The region that a cluster is, and the server that speaks with the others, as the managers' map says; `None` if it is no region.
pub(crate) fn gateway(dir: &std::path::Path) -> Result<Option<(RegionId, String)>, RoleError> {
    let config = RoleConfig::load(dir)?;
    runtime()?.block_on(async {
        let Ok(managers) = timeout(ANSWER_TIME, follow_as(&config)).await else { return Ok(None) };
        let map = managers?.map();
        let server = map.gateway.and_then(|gateway| map.servers.get(&gateway.server));
        let name = server.map_or_else(|| "its gateway".to_owned(), |server| server.name.clone());
        Ok(map.region.map(|region| (region.number, name)))
    })
}

/// The buckets, as the managers' map says.
pub(crate) fn records(dir: &std::path::Path) -> Result<Vec<BucketRecord>, RoleError> {
    let config = RoleConfig::load(dir)?;
    runtime()?.block_on(async {
        let managers = follow_as(&config).await?;
        Ok(managers.map().buckets.values().cloned().collect())
    })
}

/// Shows or sets whether this region alone has a bucket; returns the result.
pub(crate) fn sharing(
    dir: &std::path::Path,
    bucket: &BucketName,
    is_local: Option<bool>,
) -> Result<Sharing, RoleError> {
    let config = RoleConfig::load(dir)?;
    let no_such = || RoleError::Named(format!("there is no bucket {:?}", bucket.as_str()));
    runtime()?.block_on(async {
        let managers = managers(&config).await?;
        let now = || managers.map().buckets.get(bucket).cloned();
        let Some(is_local) = is_local else {
            return now().map(|record| record.sharing).ok_or_else(no_such);
        };
        let created_ms = UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64;
        let command = Command::SetLocal(bucket.clone(), is_local, created_ms);
        let set = match agreed(&managers, command).await? {
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
        if sharing::is_over(set.sharing, is_local) {
            return Ok(set.sharing);
        }
        // The gateway goes on, and the map shows the result. It may be late.
        let until = Instant::now() + sharing::PATIENCE;
        let mut versions = managers.versions();
        loop {
            let seen = now().filter(|record| record.epoch >= set.epoch);
            let sharing = seen.map_or(set.sharing, |record| record.sharing);
            if sharing::is_over(sharing, is_local)
                || timeout_at(until, versions.changed()).await.is_err()
            {
                return Ok(sharing);
            }
        }
    })
}

/// Tells what a policy means in this cluster.
fn told(map: &Topology, name: &str, policy: WritePolicy) -> String {
    let copies = map.settings().copies;
    match policy.enough(copies) {
        0 => format!("puts to {name} wait for all copies within reach ({policy})"),
        enough => format!("puts to {name} wait for {enough} of {copies} copies ({policy})"),
    }
}
