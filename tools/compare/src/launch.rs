//! A system from its start to the moment when it takes requests.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::error::CompareError;
use crate::process::{Interrupts, Server};
use crate::systems::{Keys, Places, READY, System};
use crate::works::BUCKET;
use larder_bench::CallError;
use larder_bench::client::{Client, Endpoint, Target};
use larder_bench::content::Content;
use larder_bench::pool;
use larder_bench::sign::Credentials;

/// Time that a system has from its start to its first good answer.
pub(crate) const READY_MAX: Duration = Duration::from_secs(60);
/// Time allowed for one question whether it is ready.
const QUESTION_MAX: Duration = Duration::from_secs(5);
/// Pause between two questions.
const QUESTION_PAUSE: Duration = Duration::from_millis(50);
/// Object that is put and read to see that a system is ready, and its size in bytes.
const PROBE: (&str, u64) = ("ready-1000", 1000);

/// The reason that a system does not take requests.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// The comparison cannot do its part.
    #[error(transparent)]
    Bench(#[from] CompareError),
    /// Its files cannot be made or its program not be started.
    #[error("it cannot be started: {0}")]
    Start(#[from] std::io::Error),
    /// It ended.
    #[error("it ended before it was ready")]
    Ended,
    /// It runs, but does not do what it should.
    #[error("it was not ready in time: {0}")]
    Unready(String),
}

/// A system that takes requests.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) server: Server,
    pub(crate) endpoint: String,
}

/// Starts a system in an empty directory and waits until it has kept an object.
pub(crate) fn launch(
    system: &System,
    directory: &Path,
    keys: &Keys,
    credentials: &Credentials,
    interrupts: &Arc<Interrupts>,
) -> Result<Running, LaunchError> {
    let mut places = Places::new(directory, keys)?;
    places.set("{program}", system.program.display().to_string());
    fs::create_dir(directory.join("data"))?;
    if !system.kind.config.is_empty() {
        write_private(&directory.join("config"), &places.fill(system.kind.config))?;
    }
    let mut command = system.command(&places, keys);
    command.current_dir(directory);
    let server = Server::start(command, &directory.join("log"), interrupts)?;
    let deadline = Instant::now() + READY_MAX;
    let admitted = match system.kind.script.is_empty() {
        true => admit(system, &mut places, &server, deadline).map(|()| Vec::new()),
        false => announced(&directory.join(READY), &server, deadline),
    };
    let ready = admitted.and_then(|endpoints| {
        let own = || format!("http://127.0.0.1:{}", places.port);
        let endpoint = endpoints.into_iter().next().unwrap_or_else(own);
        call_until_ready(&endpoint, system.kind.floor, credentials, &server, deadline)?;
        Ok(endpoint)
    });
    match ready {
        Ok(endpoint) => Ok(Running { server, endpoint }),
        Err(error) => {
            eprintln!("{}", server.log_tail());
            Err(error)
        }
    }
}

/// Programs refuse a file with secrets in it that others can read.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?
        .write_all(text.as_bytes())
}

/// Gives it the commands that it wants before it serves.
fn admit(
    system: &System,
    places: &mut Places,
    server: &Server,
    deadline: Instant,
) -> Result<(), LaunchError> {
    let admission = system.kind.peer.map_or(&[][..], |peer| peer.admission);
    for (index, arguments) in admission.iter().enumerate() {
        let arguments: Vec<String> = arguments.iter().map(|text| places.fill(text)).collect();
        let output = until(server, deadline, || {
            let output = Command::new(&system.program).args(&arguments).output()?;
            match output.status.success() {
                true => Ok(Ok(String::from_utf8_lossy(&output.stdout).into_owned())),
                false => Ok(Err(String::from_utf8_lossy(&output.stderr).into_owned())),
            }
        })?;
        if index == 0 {
            // The node's id, with its address.
            let node = output.split(['@', '\n']).next().unwrap_or_default();
            places.set("{node}", node.trim().to_owned());
        }
    }
    Ok(())
}

/// The part of `larder dev-cluster`'s announcement that is needed here.
#[derive(Deserialize)]
struct Announcement {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    endpoint: String,
}

/// Waits until a system of several processes says that all of them run. Where S3 is, if it says that too.
pub(crate) fn announced(
    ready: &Path,
    server: &Server,
    deadline: Instant,
) -> Result<Vec<String>, LaunchError> {
    let line = until(server, deadline, || {
        let text = fs::read_to_string(ready).unwrap_or_default();
        Ok(text
            .split_once('\n')
            .map(|(line, _)| line.to_owned())
            .ok_or_else(|| "its processes do not all run, or are not configured".to_owned()))
    })?;
    if line.is_empty() {
        return Ok(Vec::new());
    }
    let announcement: Announcement = serde_json::from_str(&line)
        .map_err(|error| LaunchError::Unready(format!("{line:?} is no announcement: {error}")))?;
    Ok(announcement.nodes.into_iter().map(|node| node.endpoint).collect())
}

pub(crate) fn call_until_ready(
    endpoint: &str,
    floor: bool,
    credentials: &Credentials,
    server: &Server,
    deadline: Instant,
) -> Result<(), LaunchError> {
    let target = Arc::new(Target {
        endpoint: Endpoint::resolve(endpoint).map_err(CompareError::from)?,
        bucket: larder_types::BucketName::new(BUCKET)
            .map_err(|error| LaunchError::Unready(error.to_string()))?,
        credentials: credentials.clone(),
        sign_payload: true,
        timeout: QUESTION_MAX,
    });
    until(server, deadline, || {
        let asked = pool::run(1, 1, |_| ask(Client::new(Arc::clone(&target)), floor));
        let asked = asked.map_err(CompareError::from)?;
        Ok(asked.into_iter().collect::<Result<(), CallError>>().map_err(|error| error.to_string()))
    })
}

/// True if an object can be put and read.
async fn ask(mut client: Client, floor: bool) -> Result<(), CallError> {
    let (key, size) = PROBE;
    client.create_bucket().await?;
    client.put(key, Content::new(key, size)).await?;
    let content = if floor { Content::of_floor(size) } else { Content::new(key, size) };
    client.get(key, content).await
}

/// Tries until it succeeds, the server ends or the time is over.
fn until<T>(
    server: &Server,
    deadline: Instant,
    mut attempt: impl FnMut() -> Result<Result<T, String>, LaunchError>,
) -> Result<T, LaunchError> {
    loop {
        let reason = match attempt()? {
            Ok(done) => return Ok(done),
            Err(reason) => reason,
        };
        if server.has_ended_within(QUESTION_PAUSE) {
            return Err(LaunchError::Ended);
        }
        if Instant::now() >= deadline {
            return Err(LaunchError::Unready(reason));
        }
    }
}
