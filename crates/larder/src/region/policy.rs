//! `larder region policy`: how many regions have a bucket's changes before their clients are answered.
//!
//! Of a single node the running server takes the setting up; in a cluster the managers agree on it.

use std::path::Path;

use larder_env::RealDisk;
use larder_link::{RegionList, Setting};
use larder_protocol::manager::state::{Command, Outcome, Refusal};
use larder_roles::manager;
use larder_roles::managers::Managers;
use larder_types::BucketName;
use larder_types::codec::decode;

use super::{RegionError, live_members, managers};
use crate::args::region::PolicyArgs;
use crate::cluster::{RoleError, admin_client};
use crate::exit;
use crate::kind::{self, Kind};

pub(super) fn policy(args: &PolicyArgs) -> Result<u8, RegionError> {
    let dir = &args.dir;
    let found = if dir.is_file() { Some(Kind::Manager) } else { kind::found(dir)? };
    let Some(name) = args.bucket.as_deref() else { return list(dir, found) };
    let no_such = || RegionError::NoBucket(name.to_owned());
    let bucket = BucketName::new(name).map_err(|_not_a_name| no_such())?;
    let lines = match found {
        Some(Kind::Store) | None => vec![of_store(dir, &bucket, args.regions)?],
        Some(_) => of_cluster(dir, &bucket, args.regions)?,
    };
    lines.iter().for_each(|line| println!("{line}"));
    if args.regions.is_some() {
        println!("other regions are not told: set it there, too, if clients change {bucket} there");
    }
    Ok(exit::OK)
}

/// Lists buckets whose changes wait for other regions.
fn list(dir: &Path, found: Option<Kind>) -> Result<u8, RegionError> {
    let records = match found {
        Some(Kind::Store) | None => {
            live_members(dir)?;
            super::bucket::of_map(dir)?
        }
        Some(_) => managers::records(dir)?,
    };
    let waiting: Vec<_> = records.iter().filter(|record| record.regions > 1).collect();
    waiting.iter().for_each(|record| println!("{}", describe(&record.name, record.regions)));
    if waiting.is_empty() {
        println!("changes of all buckets are answered once this region has them");
    }
    Ok(exit::OK)
}

fn of_store(dir: &Path, bucket: &BucketName, wanted: Option<u8>) -> Result<String, RegionError> {
    let members = live_members(dir)?;
    // Before the map: the server forgets what was asked for once the map has it.
    let is_asked = larder_link::asked::<Setting>(dir)?.iter().any(|asked| asked.bucket == *bucket);
    let now = regions_of(dir, bucket)?;
    let Some(regions) = wanted else { return Ok(describe(bucket, now)) };
    let known = members.live().count() + 1;
    if usize::from(regions) > known {
        return Err(RegionError::FewRegions { wanted: regions, known });
    }
    if now == regions && !is_asked {
        return Ok(format!("nothing to do: {}", describe(bucket, now)));
    }
    larder_link::submit_order(dir, Setting { bucket: bucket.clone(), regions })?;
    Ok(format!(
        "{}. The server takes this up within a second while it runs",
        describe(bucket, regions)
    ))
}

/// The same of a cluster, whose managers agree on it.
fn of_cluster(
    dir: &Path,
    bucket: &BucketName,
    wanted: Option<u8>,
) -> Result<Vec<String>, RoleError> {
    let config = admin_client::config(dir)?;
    let no_such = || RoleError::Named(format!("there is no bucket {:?}", bucket.as_str()));
    admin_client::runtime()?.block_on(async {
        let managers = admin_client::managers(&config).await?;
        let map = managers.map();
        let now = map.buckets.get(bucket).ok_or_else(no_such)?.regions;
        let Some(regions) = wanted else { return Ok(vec![describe(bucket, now)]) };
        // Where a gateway runs, the managers have its list.
        let list = decode::<RegionList>("list of regions", &map.regions).ok();
        let known = list.map(|list| list.regions.iter().filter(|it| !it.removed).count());
        if let Some(known) = known.filter(|known| usize::from(regions) > *known) {
            return Err(RoleError::Named(few_regions(regions, known)));
        }
        match admin_client::agreed(&managers, Command::SetRegions(bucket.clone(), regions)).await? {
            Ok(Outcome::Already) => {
                Ok(vec![format!("nothing to do: {}", describe(bucket, regions))])
            }
            Ok(_) => Ok(vec![describe(bucket, regions)]),
            Err(Refusal::NoSuchBucket) => Err(no_such()),
            Err(refusal) => Err(RoleError::NotDone(format!("{bucket} is as it was: {refusal}"))),
        }
    })
}

/// As the store's map says.
fn regions_of(dir: &Path, bucket: &BucketName) -> Result<u8, RegionError> {
    let unusable = |why: String| RegionError::Map(why);
    let disk = RealDisk::open(dir).map_err(|error| unusable(error.to_string()))?;
    let map = manager::load(&disk).map_err(|error| unusable(error.to_string()))?;
    let record = map.as_ref().and_then(|map| map.buckets.get(bucket));
    let no_such = || RegionError::NoBucket(bucket.to_string());
    Ok(record.ok_or_else(no_such)?.regions)
}

/// More regions than there are never have a change.
pub(super) fn few_regions(wanted: u8, known: usize) -> String {
    format!(
        "this region knows {known}, itself among them: each change that waits for {wanted} would get 503. Choose at most \
         {known}; with as many as there are, changes get 503 while one of them is away"
    )
}

/// A setting as a sentence.
fn describe(bucket: &BucketName, regions: u8) -> String {
    match regions {
        1 => format!("changes of {bucket} are answered once this region has them"),
        regions => format!("changes of {bucket} are answered once {regions} regions have them"),
    }
}
