//! `larder region drill`: shows over S3 that regions come to have the same, also after one of them was away.
//!
//! It lists and reads through each region's own endpoint, so it proves what clients would see. It waits for an object
//! in lists, as a read of an object that is not there yet would bring it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_bench::BenchError;
use larder_bench::CallError;
use larder_bench::client::{Client, Endpoint, Target};
use larder_bench::content::Content;
use larder_bench::sign::Credentials;
use tokio::time::{Instant, sleep};

use crate::args::region::{DrillArgs, Named};

/// Time from one look at a region to the next.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time allowed for one request.
pub(super) const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Factor by which it waits longer for a person who stops or starts a server than for an object.
const DRILL_TIME_FACTOR: u32 = 10;
/// Bytes of an object that is put: not kept inline.
const OBJECT_BYTES: u64 = 100_000;

/// Failure of a command that works through S3 endpoints of regions.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegionAccessError {
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error("two of the regions are called {0}: give each a name of its own")]
    Twice(String),
    #[error("--away {0}: none of the regions that are named is called so")]
    NoSuch(String),
    #[error("{region}: {what}: {error}")]
    Call { region: String, what: String, error: CallError },
    #[error(
        "{region}: {what} is not so after {seconds} s; `larder region status` there says what it waits for"
    )]
    Late { region: String, what: String, seconds: u64 },
}

impl RegionAccessError {
    pub(super) fn call(region: &str, what: &str, error: CallError) -> Self {
        Self::Call { region: region.to_owned(), what: what.to_owned(), error }
    }

    /// True if the command line is to be mended.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, Self::Bench(_) | Self::Twice(_) | Self::NoSuch(_))
    }
}

/// True of a refusal that lasts, such as one for wrong keys.
fn lasts(error: &CallError) -> bool {
    matches!(error, CallError::Refused { status, .. } if status.as_u16() == 403)
}

/// A region that is drilled.
struct DrillRegion {
    name: String,
    client: Client,
}

/// A state of a key that a region is to show.
#[derive(Clone, Copy)]
enum Shows {
    /// An object with the content of this name.
    Object(&'static str),
    Nothing,
}

impl fmt::Display for Shows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(content) => write!(f, "has {content:?}"),
            Self::Nothing => write!(f, "has nothing"),
        }
    }
}

impl DrillRegion {
    fn failed(&self, what: impl Into<String>) -> impl FnOnce(CallError) -> RegionAccessError {
        let (region, what) = (self.name.clone(), what.into());
        move |error| RegionAccessError::Call { region, what, error }
    }

    async fn put(&mut self, key: &str, content: &'static str) -> Result<(), RegionAccessError> {
        let put = self.client.put(key, Content::new(content, OBJECT_BYTES)).await;
        put.map_err(self.failed(format!("put of {key}")))
    }

    async fn delete(&mut self, key: &str) -> Result<(), RegionAccessError> {
        self.client.delete(key).await.map_err(self.failed(format!("deletion of {key}")))
    }

    async fn lists(&mut self, key: &str) -> Result<bool, CallError> {
        let query = format!("list-type=2&prefix={}", key.replace('/', "%2F"));
        let listed = self.client.query_bucket(&query).await?;
        Ok(listed.contains(&format!("<Key>{key}</Key>")))
    }

    async fn shows(&mut self, key: &str, what: Shows) -> Result<bool, CallError> {
        let is_listed = self.lists(key).await?;
        match what {
            Shows::Nothing => Ok(!is_listed),
            Shows::Object(_) if !is_listed => Ok(false),
            Shows::Object(content) => {
                match self.client.get(key, Content::new(content, OBJECT_BYTES)).await {
                    Ok(()) => Ok(true),
                    // The version before.
                    Err(CallError::Wrong(_)) => Ok(false),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Waits until it shows a state of a key; a server that does not answer for a moment is asked again.
    async fn until(
        &mut self,
        key: &str,
        what: Shows,
        seconds: u64,
    ) -> Result<(), RegionAccessError> {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        loop {
            match self.shows(key, what).await {
                Ok(true) => return Ok(()),
                Err(error @ CallError::Refused { .. })
                    if lasts(&error) || Instant::now() >= deadline =>
                {
                    return Err(self.failed(format!("a look at {key}"))(error));
                }
                Ok(false) | Err(_) if Instant::now() < deadline => sleep(POLL_INTERVAL).await,
                Ok(false) | Err(_) => {
                    let (region, what) = (self.name.clone(), format!("that {key} {what}"));
                    return Err(RegionAccessError::Late { region, what, seconds });
                }
            }
        }
    }

    /// Waits until its server answers, or is stopped.
    async fn answers(&mut self, wanted: bool, within: Duration) -> Result<(), RegionAccessError> {
        let deadline = Instant::now() + within;
        loop {
            let is_there = match self.client.query_bucket("list-type=2&max-keys=1").await {
                Ok(_) => true,
                Err(error) if wanted && lasts(&error) => {
                    return Err(self.failed("the drill's bucket")(error));
                }
                // It starts, or stops.
                Err(CallError::Refused { .. }) => !wanted,
                Err(_) => false,
            };
            if is_there == wanted {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let what = if wanted { "that it answers" } else { "that it is stopped" };
                let (region, seconds) = (self.name.clone(), within.as_secs());
                return Err(RegionAccessError::Late { region, what: what.to_owned(), seconds });
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// The regions of a drill and the keys that it puts.
struct Drill {
    sites: Vec<DrillRegion>,
    seconds: u64,
    /// Prefix of the keys of this run.
    run: String,
    put: BTreeSet<String>,
}

/// Runs a drill, and prints what it sees.
pub(crate) async fn drill(args: &DrillArgs) -> Result<(), RegionAccessError> {
    let names: BTreeSet<&str> = args.regions.iter().map(|region| region.name.as_str()).collect();
    if names.len() < args.regions.len() {
        let seen =
            |at: &usize| args.regions[..*at].iter().any(|it| it.name == args.regions[*at].name);
        let twice = (0..args.regions.len()).find(seen).unwrap_or_default();
        return Err(RegionAccessError::Twice(args.regions[twice].name.clone()));
    }
    if let Some(away) = args.away.as_deref().filter(|away| !names.contains(away)) {
        return Err(RegionAccessError::NoSuch(away.to_owned()));
    }
    let credentials = Credentials::from_env()?;
    let site = |region: &Named| {
        let endpoint = Endpoint::resolve(&region.url)?;
        let (bucket, credentials) = (args.bucket.clone(), credentials.clone());
        let target =
            Target { endpoint, bucket, credentials, sign_payload: true, timeout: REQUEST_MAX };
        Ok(DrillRegion { name: region.name.clone(), client: Client::new(Arc::new(target)) })
    };
    let sites = args.regions.iter().map(site).collect::<Result<_, BenchError>>()?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, run) = (args.seconds, since.as_millis().to_string());
    let mut drill = Drill { sites, seconds, run, put: BTreeSet::new() };
    drill.bucket().await?;
    drill.objects().await?;
    drill.changes().await?;
    if let Some(away) = &args.away {
        drill.without(away).await?;
    }
    drill.clean().await?;
    println!("the regions have the same");
    Ok(())
}

impl Drill {
    fn key(&mut self, name: &str) -> String {
        let key = format!("{}/{name}", self.run);
        self.put.insert(key.clone());
        key
    }

    async fn bucket(&mut self) -> Result<(), RegionAccessError> {
        let (within, begun) = (Duration::from_secs(self.seconds), Instant::now());
        let first = &mut self.sites[0];
        let made = first.client.create_bucket().await;
        made.map_err(first.failed("the bucket"))?;
        for site in &mut self.sites {
            site.answers(true, within).await?;
        }
        println!("the bucket is in all regions after {} ms", begun.elapsed().as_millis());
        Ok(())
    }

    /// Puts an object in each region, and waits until all others show it.
    async fn objects(&mut self) -> Result<(), RegionAccessError> {
        for at in 0..self.sites.len() {
            let key = self.key(&format!("of-{}", self.sites[at].name));
            self.sites[at].put(&key, "an object").await?;
            let from = self.sites[at].name.clone();
            self.all_show(&format!("an object of {from}"), &key, Shows::Object("an object"))
                .await?;
        }
        Ok(())
    }

    /// Changes a key in two regions, and waits each time until all show it.
    async fn changes(&mut self) -> Result<(), RegionAccessError> {
        let (key, last) = (self.key("shared"), self.sites.len() - 1);
        self.sites[0].put(&key, "the first version").await?;
        let first = Shows::Object("the first version");
        self.all_show("a first version", &key, first).await?;
        self.sites[last].put(&key, "the second version").await?;
        let second = Shows::Object("the second version");
        self.all_show("a version over it, of another region", &key, second).await?;
        self.sites[0].delete(&key).await?;
        self.all_show("its deletion", &key, Shows::Nothing).await
    }

    /// Has a region stopped, changes objects in another, and waits until the region shows that once it is back.
    async fn without(&mut self, away: &str) -> Result<(), RegionAccessError> {
        let write_text = DRILL_TIME_FACTOR * Duration::from_secs(self.seconds);
        let at = self.sites.iter().position(|site| site.name == away);
        let mut gone =
            self.sites.remove(at.ok_or_else(|| RegionAccessError::NoSuch(away.to_owned()))?);
        let (before, meanwhile) = (self.key("before"), self.key("meanwhile"));
        let (old, new) = (Shows::Object("put before"), Shows::Object("put meanwhile"));
        gone.put(&before, "put before").await?;
        self.all_show("an object of the region that goes", &before, old).await?;
        println!("STOP the server of {away} now");
        gone.answers(false, write_text).await?;
        println!("{away} does not answer");
        self.sites[0].put(&meanwhile, "put meanwhile").await?;
        self.sites[0].delete(&before).await?;
        self.all_show("an object that is put meanwhile", &meanwhile, new).await?;
        self.all_show("a deletion meanwhile", &before, Shows::Nothing).await?;
        println!("START the server of {away} again");
        gone.answers(true, write_text).await?;
        let begun = Instant::now();
        gone.until(&meanwhile, new, self.seconds).await?;
        gone.until(&before, Shows::Nothing, self.seconds).await?;
        println!("{away} has what the others did after {} ms", begun.elapsed().as_millis());
        self.sites.push(gone);
        Ok(())
    }

    /// Deletes what the drill has put.
    async fn clean(&mut self) -> Result<(), RegionAccessError> {
        for key in std::mem::take(&mut self.put) {
            self.sites[0].delete(&key).await?;
        }
        Ok(())
    }

    async fn all_show(
        &mut self,
        what: &str,
        key: &str,
        shows: Shows,
    ) -> Result<(), RegionAccessError> {
        let (begun, mut times) = (Instant::now(), Vec::new());
        for site in &mut self.sites {
            site.until(key, shows, self.seconds).await?;
            times.push(format!("{} {} ms", site.name, begun.elapsed().as_millis()));
        }
        println!("{what}: {}", times.join(", "));
        Ok(())
    }
}
