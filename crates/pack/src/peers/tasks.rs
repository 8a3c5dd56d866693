//! The tasks beside requests while a worker shares a bucket: it polls the bucket, follows the others' feeds, serves its
//! own, and deletes what is superseded.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use larder_net::Listener;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use super::Others;
use super::feed::FeedUpdate;
use super::peer::Peer;
use super::sharing::Sharing;
use super::version_gc::VersionGc;
use crate::error::PackError;
use crate::limits::FEED_PAUSE;
use crate::owner::name::WorkerName;

/// The tasks of a worker that shares its bucket. They end when this is dropped.
pub(crate) struct Tasks {
    tasks: Vec<JoinHandle<()>>,
    /// Answers the others.
    listener: Mutex<Option<Listener>>,
}

impl Tasks {
    pub(crate) fn start(
        others: Arc<Others>,
        listener: Option<Listener>,
        version_gc: Arc<tokio::sync::Mutex<VersionGc>>,
    ) -> Self {
        let period = others.settings().kept / 2;
        let tasks = vec![
            tokio::spawn(follow(others)),
            tokio::spawn(collect_again_and_again(version_gc, period)),
        ];
        Self { tasks, listener: Mutex::new(listener) }
    }

    pub(crate) fn stop(&self) {
        for task in &self.tasks {
            task.abort();
        }
        drop(self.listener.lock().take());
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Looks again and again, and listens to all that there are.
async fn follow(others: Arc<Others>) {
    let mut looks = tokio::time::interval(others.settings().look_period);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut listening: BTreeMap<WorkerName, Listening> = BTreeMap::new();
    loop {
        looks.tick().await;
        if let Err(error) = others.refresh().await {
            tracing::warn!(%error, "could not read everything of the other workers");
        }
        for peer in others.peers() {
            let name = peer.name.clone();
            listening
                .entry(name)
                .or_insert_with(|| Listening(tokio::spawn(listen_to(others.clone(), peer))));
        }
    }
}

/// A task that ends with its owner.
struct Listening(JoinHandle<()>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Takes what a worker tells of itself.
async fn listen_to(others: Arc<Others>, peer: Arc<Peer>) {
    loop {
        if let Err(error) = hear(&others, &peer).await {
            tracing::debug!(worker = %peer.name, %error, "another worker sends no changes");
            tokio::time::sleep(FEED_PAUSE).await;
        }
    }
}

async fn hear(others: &Others, peer: &Peer) -> Result<(), PackError> {
    let reported = peer.announcement();
    let deferred = |reason: &str| PackError::Deferred { reason: reason.to_owned() };
    let known = peer.known().filter(|known| known.worker == reported.worker);
    let known = known.ok_or_else(|| deferred("it was not looked at yet"))?;
    if reported.address.is_none() {
        return Err(deferred("it answers nobody"));
    }
    // If it refuses, it runs on another copy of the directory than the process that told the last:
    // the bucket decides.
    let asked = known.asks()?;
    let (received, behind) = others.caller().changes(&reported, asked).await?;
    peer.answered(behind);
    match received {
        FeedUpdate::Nothing { .. } => Ok(()),
        received => others.take_received(peer, &known, received).await,
    }
}

async fn collect_again_and_again(version_gc: Arc<tokio::sync::Mutex<VersionGc>>, period: Duration) {
    let mut rounds = tokio::time::interval_at(Instant::now() + period, period);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        match version_gc.lock().await.round().await {
            Ok(0) => {}
            Ok(given_up) => {
                tracing::info!(given_up, "deleted versions that other workers have superseded")
            }
            Err(error) => {
                tracing::warn!(%error, "deleting superseded versions was interrupted and will start again");
            }
        }
    }
}

/// Listens for other workers; and where they reach this one.
pub(crate) async fn open_feed(
    sharing: &Sharing,
) -> Result<(Option<TcpListener>, Option<String>), PackError> {
    let Some(listen) = &sharing.listen else { return Ok((None, sharing.advertise.clone())) };
    let refused = |error: std::io::Error| PackError::Config {
        what: "the address for other workers",
        found: format!("{listen} ({error})"),
        remedy: "one of this machine that is free".to_owned(),
    };
    let listener = TcpListener::bind(listen).await.map_err(refused)?;
    let at: SocketAddr = listener.local_addr()?;
    match &sharing.advertise {
        Some(advertise) => Ok((Some(listener), Some(advertise.clone()))),
        None if at.ip().is_unspecified() => Err(PackError::Config {
            what: "the address for other workers",
            found: listen.clone(),
            remedy: "an address that they reach, or say where they do".to_owned(),
        }),
        None => Ok((Some(listener), Some(at.to_string()))),
    }
}
