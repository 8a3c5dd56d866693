//! What every server owes the managers: to say that its run has begun until the map says so too, and from then on
//! that it goes on.

use std::sync::Arc;
use std::time::Duration;

use larder_protocol::limits::PRESENCE_BEAT_MS;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::{ServerState, Topology};
use larder_types::{BootId, PgId, ServerId, View};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::Managers;

/// A run of a server.
#[derive(Debug, Clone)]
pub struct Run {
    /// Whose.
    pub server: ServerId,
    /// Which.
    pub boot: BootId,
    /// Where it listens, `host:port`; the first is the one that others use.
    pub addresses: Vec<String>,
    /// Of a meta server: its PGs, each with the view of the last op that it had when the run began; `None` if its log or
    /// index was not whole.
    pub has: Vec<(PgId, Option<View>)>,
}

/// Keeps telling the managers of a run. Dropped, it falls silent.
pub struct Presence {
    asked: Arc<Notify>,
    telling: JoinHandle<()>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.telling.abort();
    }
}

impl Presence {
    /// Begins.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(managers: Arc<dyn Managers>, run: Run) -> Self {
        let asked = Arc::new(Notify::new());
        let telling = tokio::spawn(tell(managers, run, asked.clone()));
        Self { asked, telling }
    }

    /// The leading manager does not know this run (`ManagerMessage::WhoAreYou`): its map is newer than the one here.
    pub fn who_are_you(&self) {
        self.asked.notify_one();
    }
}

async fn tell(managers: Arc<dyn Managers>, run: Run, asked: Arc<Notify>) {
    let started = || ServerMessage::Started(run.boot, run.addresses.clone(), run.has.clone());
    let mut beat = interval(Duration::from_millis(PRESENCE_BEAT_MS));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = beat.tick() => match naming(&managers.map(), &run) {
                Naming::Named => managers.say(ServerMessage::Heartbeat(run.boot)),
                Naming::Unknown => managers.say(started()),
                Naming::Removed => {
                    tracing::error!(server = %run.server, "this server was removed from the cluster");
                    return;
                }
            },
            () = asked.notified() => managers.say(started()),
        }
    }
}

/// What the map says of a run.
enum Naming {
    Named,
    Unknown,
    Removed,
}

fn naming(map: &Topology, run: &Run) -> Naming {
    let Some(record) = map.servers.get(&run.server) else { return Naming::Unknown };
    match record.state {
        ServerState::Removed => Naming::Removed,
        ServerState::Up if record.boot == run.boot && record.addresses == run.addresses => {
            Naming::Named
        }
        _ => Naming::Unknown,
    }
}
