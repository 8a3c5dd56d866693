//! The messages by which a server shows managers that it is up: `Started` until the map has its run, then heartbeats. A
//! meta server of the same process may send the heartbeats for it (`colocated.rs`).

use std::sync::Arc;
use std::time::Duration;

use larder_env::rng::unique_u64;
use larder_protocol::limits::PRESENCE_BEAT_MS;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::{ServerState, Topology};
use larder_types::{BootId, PgId, ServerId, View};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::{Colocated, Managers};

/// Time between two reports that a run goes on.
const BEAT: Duration = Duration::from_millis(PRESENCE_BEAT_MS);

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
    beats: JoinHandle<()>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.beats.abort();
    }
}

/// A server's entry among those of its process. When it is dropped, no heartbeats are sent for the server any more.
struct Place {
    server: ServerId,
    colocated: Option<Arc<Colocated>>,
}

impl Place {
    /// Notes that a run goes on. Returns the time at which the meta server spoke for it, unless that was a beat ago.
    fn proxied_until(&self, boot: BootId, now: Instant) -> Option<Instant> {
        let spoken = self.colocated.as_ref()?.alive_until(self.server, boot)?;
        (spoken + BEAT > now).then_some(spoken)
    }

    fn leave(&self) {
        if let Some(colocated) = &self.colocated {
            colocated.ended(self.server);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
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

    /// Begins that of a manager, whose run means nothing but that it is there. Before the cluster's version
    /// [`START_AFTER_VERSION`](larder_protocol::limits::START_AFTER_VERSION), what an earlier run said may arrive after this one
    /// is known, and take its place: it is another run from then on. Other servers end there.
    pub(crate) fn of_manager(managers: Arc<dyn Managers>, run: Run) -> Self {
        Self::begin(managers, run, true)
    }

    fn begin(managers: Arc<dyn Managers>, run: Run, begins_anew: bool) -> Self {
        let asked = Arc::new(Notify::new());
        let beats = tokio::spawn(send_beats(managers, run, begins_anew, asked.clone()));
        Self { asked, beats }
    }

    /// The leading manager does not know this run (`ManagerMessage::WhoAreYou`): its map is newer than the one here.
    pub fn who_are_you(&self) {
        self.asked.notify_one();
    }
}

fn say_started(managers: &dyn Managers, run: &Run) {
    let start = (run.boot, run.addresses.clone(), run.has.clone());
    managers.send_message(ServerMessage::started(&managers.map(), run.server, start));
}

async fn send_beats(
    managers: Arc<dyn Managers>,
    mut run: Run,
    begins_anew: bool,
    asked: Arc<Notify>,
) {
    let place = Place { server: run.server, colocated: managers.colocated() };
    let mut due = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = sleep_until(due) => {
                let (now, naming) = (Instant::now(), naming(&managers.map(), &run));
                due = now + BEAT;
                if !matches!(naming, Naming::Named) {
                    place.leave();
                }
                match naming {
                    Naming::Named => match place.proxied_until(run.boot, now) {
                        Some(spoken) => due = spoken + BEAT,
                        None => managers.send_message(ServerMessage::Heartbeat(run.boot)),
                    },
                    Naming::Ended if begins_anew => {
                        let before = std::mem::replace(&mut run.boot, BootId(unique_u64()));
                        tracing::warn!(server = %run.server, ?before, "the managers have ended this run: starting another");
                        say_started(&*managers, &run);
                    }
                    Naming::Unknown | Naming::Ended => say_started(&*managers, &run),
                    Naming::Removed => {
                        tracing::error!(server = %run.server, "this server was removed from the cluster");
                        return;
                    }
                }
            }
            () = asked.notified() => say_started(&*managers, &run),
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
    use tokio::time::timeout;

    use super::*;
    use crate::manager::quorum::tests::support::{SETTINGS, new_server};
    use crate::managers::{NotProposed, VersionWatch, Versions};

    const ME: ServerId = ServerId(0);

    /// A map in which whatever a server says of its start is agreed on at once.
    #[derive(Default)]
    struct Obliging {
        map: Mutex<Topology>,
        message_sent: Notify,
        colocated: Option<Arc<Colocated>>,
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

        fn note_newer_map(&self, _: MapVersion) {}

        fn propose(&self, _: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
            async { Err(NotProposed::NoLeader) }.boxed()
        }

        fn send_message(&self, message: ServerMessage) {
            if let ServerMessage::Started(boot, addresses, has)
            | ServerMessage::StartedAfter { boot, addresses, has, .. } = message
            {
                let ended = self.map.lock().servers[&ME].ended.contains(&boot);
                if !ended {
                    self.agree(Command::ServerStarted(ME, boot, addresses, has));
                }
            }
            self.message_sent.notify_one();
        }

        fn colocated(&self) -> Option<Arc<Colocated>> {
            self.colocated.clone()
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
        managers.message_sent.notified().await;
        assert_eq!(managers.boot(), boot);
        let earlier = BootId(4);
        managers.agree(Command::ServerStarted(ME, earlier, addresses, Vec::new()));
        managers.message_sent.notified().await;
        assert!(![boot, earlier].contains(&managers.boot()), "{:?}", managers.boot());
        let is_up = managers.map().servers[&ME].state == ServerState::Up;
        assert!(is_up, "and it stays");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_covered_by_anothers_beats_sends_none() {
        let colocated = Arc::new(Colocated::default());
        let managers = Obliging { colocated: Some(colocated.clone()), ..Obliging::default() };
        let managers = Arc::new(managers);
        managers.agree(Command::Found(larder_protocol::manager::state::ClusterId(1), SETTINGS));
        managers.agree(Command::AddServer(new_server("d0", ServerRole::Data), None));
        let (boot, addresses) = (BootId(5), vec!["d0:1".to_owned()]);
        let run = Run { server: ME, boot, addresses, has: Vec::new() };
        let presence = Presence::start(managers.clone(), run);
        for message_sent in ["that it has begun", "that it goes on"] {
            assert!(
                timeout(2 * BEAT, managers.message_sent.notified()).await.is_ok(),
                "it says {message_sent}"
            );
        }
        for _ in 0..20 {
            assert_eq!(colocated.beats_to_send(), [(ME, boot)]);
            let message_sent = timeout(2 * BEAT / 3, managers.message_sent.notified()).await;
            assert!(message_sent.is_err(), "it was spoken for");
        }
        let spoken = Instant::now() - 2 * BEAT / 3;
        managers.message_sent.notified().await;
        assert!(spoken.elapsed() <= BEAT + Duration::from_millis(2), "{:?}", spoken.elapsed());
        drop(presence);
        tokio::task::yield_now().await;
        assert_eq!(colocated.beats_to_send(), [], "nobody speaks for a run that has ended");
    }
}
