//! The reports that every server owes the managers: that its run has begun, until the map says so too, and
//! from then on that it goes on.

use std::sync::Arc;
use std::time::Duration;

use larder_env::rng::unique_u64;
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
    /// The server.
    pub server: ServerId,
    /// The run.
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
        Self::begin(managers, run, false)
    }

    /// Begins that of a manager, whose run means nothing but that it is there. What an earlier run said may arrive after this
    /// one is known, and take its place: it is another run from then on. Other servers end there.
    pub(crate) fn of_manager(managers: Arc<dyn Managers>, run: Run) -> Self {
        Self::begin(managers, run, true)
    }

    fn begin(managers: Arc<dyn Managers>, run: Run, begins_anew: bool) -> Self {
        let asked = Arc::new(Notify::new());
        let telling = tokio::spawn(tell(managers, run, begins_anew, asked.clone()));
        Self { asked, telling }
    }

    /// The leading manager does not know this run (`ManagerMessage::WhoAreYou`): its map is newer than the one here.
    pub fn who_are_you(&self) {
        self.asked.notify_one();
    }
}

fn started(run: &Run) -> ServerMessage {
    ServerMessage::Started(run.boot, run.addresses.clone(), run.has.clone())
}

async fn tell(managers: Arc<dyn Managers>, mut run: Run, begins_anew: bool, asked: Arc<Notify>) {
    let mut beat = interval(Duration::from_millis(PRESENCE_BEAT_MS));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = beat.tick() => match naming(&managers.map(), &run) {
                Naming::Named => managers.say(ServerMessage::Heartbeat(run.boot)),
                Naming::Ended if begins_anew => {
                    let before = std::mem::replace(&mut run.boot, BootId(unique_u64()));
                    tracing::warn!(server = %run.server, ?before, "the map says that this run has ended: it goes on as another");
                    managers.say(started(&run));
                }
                Naming::Unknown | Naming::Ended => managers.say(started(&run)),
                Naming::Removed => {
                    tracing::error!(server = %run.server, "this server was removed from the cluster");
                    return;
                }
            },
            () = asked.notified() => managers.say(started(&run)),
        }
    }
}

/// The map's word on a run.
enum Naming {
    Named,
    Unknown,
    /// Another has been named since.
    Ended,
    Removed,
}

fn naming(map: &Topology, run: &Run) -> Naming {
    let Some(record) = map.servers.get(&run.server) else { return Naming::Unknown };
    match record.state {
        ServerState::Removed => Naming::Removed,
        ServerState::Up if record.boot == run.boot && record.addresses == run.addresses => {
            Naming::Named
        }
        _ if record.ended.contains(&run.boot) => Naming::Ended,
        _ => Naming::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use larder_protocol::manager::quorum::LogIndex;
    use larder_protocol::manager::state::{Applied, Command, MapVersion, ServerRole};
    use parking_lot::Mutex;

    use super::*;
    use crate::manager::quorum::tests::support::{SETTINGS, new_server};
    use crate::managers::{NotProposed, VersionWatch, Versions};

    const ME: ServerId = ServerId(0);

    /// A map in which whatever a server says of its start is agreed on at once.
    #[derive(Default)]
    struct Obliging {
        map: Mutex<Topology>,
        said: Notify,
    }

    impl Obliging {
        fn agree(&self, command: Command) {
            let mut map = self.map.lock();
            let index = LogIndex(map.applied.0 + 1);
            map.apply(index, command).expect("nothing is refused");
        }

        fn boot(&self) -> BootId {
            self.map.lock().servers[&ME].boot
        }
    }

    impl Managers for Obliging {
        fn map(&self) -> Arc<Topology> {
            Arc::new(self.map.lock().clone())
        }

        fn versions(&self) -> VersionWatch {
            Versions::new(MapVersion(0)).subscribe()
        }

        fn told_of(&self, _: MapVersion) {}

        fn propose(&self, _: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
            async { Err(NotProposed::NoLeader) }.boxed()
        }

        fn say(&self, message: ServerMessage) {
            if let ServerMessage::Started(boot, addresses, has) = message {
                let ended = self.map.lock().servers[&ME].ended.contains(&boot);
                if !ended {
                    self.agree(Command::ServerStarted(ME, boot, addresses, has));
                }
            }
            self.said.notify_one();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_whose_place_a_late_word_of_an_earlier_run_took_is_up_again() {
        let managers = Arc::new(Obliging::default());
        let cluster = larder_protocol::manager::state::ClusterId(1);
        managers.agree(Command::Found(cluster, SETTINGS));
        managers.agree(Command::AddServer(new_server("m0", ServerRole::Manager), None));
        let addresses = vec!["m0:1".to_owned()];
        let (boot, addresses_now) = (BootId(5), addresses.clone());
        let run = Run { server: ME, boot, addresses: addresses_now, has: Vec::new() };
        let _presence = Presence::of_manager(managers.clone(), run);
        managers.said.notified().await;
        assert_eq!(managers.boot(), boot);
        let earlier = BootId(4);
        managers.agree(Command::ServerStarted(ME, earlier, addresses, Vec::new()));
        managers.said.notified().await;
        assert!(![boot, earlier].contains(&managers.boot()), "{:?}", managers.boot());
        let is_up = managers.map().servers[&ME].state == ServerState::Up;
        assert!(is_up, "and it stays");
    }
}
