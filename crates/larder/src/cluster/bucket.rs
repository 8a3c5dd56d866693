//! `larder bucket policy`: how many copies a bucket's puts wait for.

use std::path::Path;
use std::process::ExitCode;

use larder_protocol::manager::state::{Command, Outcome, Refusal, Topology};
use larder_roles::managers::Managers;
use larder_types::{BucketName, WritePolicy};

use super::RoleError;
use super::admin_client::{self, agreed, finish, managers, runtime};

/// Shows or sets the policy of a bucket.
pub(crate) fn run(config: &Path, name: &str, policy: Option<WritePolicy>) -> ExitCode {
    finish(show_or_set(config, name, policy))
}

fn show_or_set(
    config: &Path,
    name: &str,
    policy: Option<WritePolicy>,
) -> Result<Vec<String>, RoleError> {
    let config = admin_client::config(config)?;
    let no_such = || RoleError::Named(format!("there is no bucket {name:?}"));
    let bucket = BucketName::new(name).map_err(|_not_a_name| no_such())?;
    runtime()?.block_on(async {
        let managers = managers(&config).await?;
        let map = managers.map();
        let record = map.buckets.get(&bucket).ok_or_else(no_such)?;
        let Some(policy) = policy else {
            return Ok(vec![describe(&map, name, record.write_policy)]);
        };
        match agreed(&managers, Command::SetWritePolicy(bucket, policy)).await? {
            Ok(Outcome::Already) => {
                Ok(vec![format!("nothing to do: {}", describe(&map, name, policy))])
            }
            Ok(_) => Ok(vec![describe(&map, name, policy)]),
            Err(Refusal::NoSuchBucket) => Err(no_such()),
            Err(Refusal::TooManyCopies) => Err(RoleError::Named(format!(
                "{name} is as it was: the cluster keeps {} copies, so no put can wait for {policy}",
                map.settings().copies
            ))),
            Err(refusal) => Err(RoleError::NotDone(format!("{name} is as it was: {refusal}"))),
        }
    })
}

/// Tells what a policy means in this cluster.
fn describe(map: &Topology, name: &str, policy: WritePolicy) -> String {
    let copies = map.settings().copies;
    match policy.required_copies(copies) {
        0 => format!("puts to {name} wait for all copies within reach ({policy})"),
        required_copies => {
            format!("puts to {name} wait for {required_copies} of {copies} copies ({policy})")
        }
    }
}
