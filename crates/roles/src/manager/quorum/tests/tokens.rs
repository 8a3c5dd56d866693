//! The file of join tokens.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use futures::FutureExt;
use futures::future::BoxFuture;
use larder_env::SimDisk;
use larder_env::disk::{read_file, replace_file};
use larder_identity::{Refusal, Role, Roles, TokenId};
use larder_protocol::limits::TOKENS_MAX;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{
    self, Applied, ClusterId, Command, MapVersion, Outcome, ServerRole, Topology,
};
use larder_types::{BootId, ServerId};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::support::{SETTINGS, new_server};
use crate::clock::now_ms;
use crate::limits::{ISSUE_MS_MAX, PROPOSE_WAIT_MS};
use crate::manager::quorum::ManagerError;
use crate::manager::quorum::maps::{Maps, Publisher, maps};
use crate::manager::quorum::tokens::{FILE, TokenBook, add_token, admission_of, admit};
use crate::managers::{Managers, NotProposed, VersionWatch, Versions};

fn golden() -> Vec<u8> {
    let text = include_str!("../../../../tests/golden/tokens.hex");
    let digits = text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
    digits.map(|digits| u8::from_str_radix(digits, 16).unwrap()).collect()
}

fn disk_with(bytes: &[u8]) -> Arc<SimDisk> {
    let disk = SimDisk::new(1, 1 << 20);
    replace_file(&*disk, "", FILE, bytes).unwrap();
    disk
}

/// A map with these servers after the founder, each with a token.
fn map_with(names: &[&str]) -> Topology {
    let mut map = Topology::default();
    let mut index = 0;
    let mut apply = |command| {
        index += 1;
        map.apply(LogIndex(index), command).unwrap();
    };
    apply(Command::Found(ClusterId(1), SETTINGS));
    apply(Command::AddServer(new_server("m0", ServerRole::Manager), None));
    for name in names {
        let commands = admission_of(new_server(name, ServerRole::Data), None);
        commands.into_iter().for_each(&mut apply);
    }
    map
}

#[test]
fn the_book_keeps_its_golden_bytes() {
    let disk = disk_with(&golden());
    let book = TokenBook::open(disk.clone()).unwrap();
    let map = map_with(&["d0", "d1"]);
    let first = book.find(TokenId(300), &map).unwrap();
    assert_eq!((first.server(), first.roles()), (ServerId(1), Roles::of(&[Role::Data])));
    let second = book.find(TokenId(7), &map).unwrap();
    assert_eq!((second.server(), second.roles()), (ServerId(2), Roles::all()));
    book.save(&map).unwrap();
    let bytes = read_file(&*disk, FILE).unwrap();
    assert!(
        bytes == golden(),
        "the format of the join tokens has changed: founders would not start. Keep version 1 as \
         it was and write a new version beside it. It is now:\n{bytes:02x?}"
    );
}

#[test]
fn a_damaged_book_is_refused() {
    for offset in 0..golden().len() {
        let disk = disk_with(&golden());
        disk.flip_bit(FILE, offset as u64).unwrap();
        let refused = TokenBook::open(disk);
        assert!(matches!(refused, Err(ManagerError::Unusable { .. })), "byte {offset}");
    }
    assert!(TokenBook::open(disk_with(b"LARD")).is_err(), "cut");
}

#[test]
fn a_token_is_good_while_its_server_is_to_come_and_the_map_knows_it() {
    let disk = SimDisk::new(1, 1 << 20);
    let book = TokenBook::begin(disk.clone());
    let expires = Some(UNIX_EPOCH + Duration::from_secs(1 << 40));
    let server = (ServerId(1), Roles::of(&[Role::Data]));
    let token = book.add([3; 32], server, state::TokenId(0), expires).unwrap();
    let id = token.id();
    assert_eq!(book.find(id, &map_with(&[])), Err(Refusal::NotNow), "the map is older");
    let mut map = map_with(&["d0"]);
    assert!(book.find(id, &map).is_ok());

    let mut revoked = map.clone();
    revoked.apply(LogIndex(100), Command::RevokeToken(state::TokenId(0))).unwrap();
    assert_eq!(book.find(id, &revoked), Err(Refusal::Token));

    let started = Command::ServerStarted(ServerId(1), BootId(1), Vec::new(), Vec::new());
    map.apply(LogIndex(100), started).unwrap();
    assert_eq!(book.find(id, &map), Err(Refusal::Token));
    book.save(&map).unwrap();
    let left = TokenBook::open(disk).unwrap();
    assert_eq!(left.find(id, &map_with(&["d0"])), Err(Refusal::Token), "it was not kept");
}

/// Managers that answer each command after a while, and show its map after as long again.
struct Slow {
    takes: Duration,
    /// With the end of the log.
    map: Mutex<(LogIndex, Topology)>,
    publisher: Arc<Publisher>,
    maps: Maps,
}

impl Slow {
    /// At the bound of tokens, which expire at these times by turns.
    fn full(takes: Duration, expire: &[u64]) -> Self {
        let mut map = map_with(&[]);
        for (id, expires_ms) in (0..TOKENS_MAX as u64).zip(expire.iter().cycle()) {
            let command = Command::AddToken(hash(id), *expires_ms);
            map.apply(LogIndex(100 + id), command).unwrap();
        }
        let (publisher, maps) = maps();
        publisher.publish(map.clone());
        let map = Mutex::new((LogIndex(10_000), map));
        Self { takes, map, publisher: Arc::new(publisher), maps }
    }
}

impl Managers for Slow {
    fn map(&self) -> Arc<Topology> {
        Arc::new(self.map.lock().1.clone())
    }

    fn versions(&self) -> VersionWatch {
        Versions::new(MapVersion(0)).subscribe()
    }

    fn note_newer_map(&self, _: MapVersion) {}

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Applied, NotProposed>> {
        let answer = async move {
            sleep(self.takes).await;
            let (end, map) = &mut *self.map.lock();
            end.0 += 1;
            let applied = map.apply(*end, command);
            let (publisher, newest) = (self.publisher.clone(), map.clone());
            let later = sleep(self.takes);
            tokio::spawn(later.map(move |()| {
                if newest.version > publisher.newest().map.version {
                    publisher.publish(newest);
                }
            }));
            Ok(applied)
        };
        answer.boxed()
    }

    fn send_message(&self, _: ServerMessage) {}
}

fn hash(id: u64) -> [u8; 32] {
    let mut hash = [7; 32];
    hash[..8].copy_from_slice(&id.to_le_bytes());
    hash
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_a_token_waits_as_long_as_it_may_take_where_others_have_to_go_first() {
    let managers = Slow::full(Duration::from_millis(PROPOSE_WAIT_MS - 1), &[1]);
    let began = Instant::now();
    let admission = admission_of(new_server("d0", ServerRole::Data), None);
    let admitted = admit(&managers, admission, managers.maps.clone()).await;
    assert_eq!(admitted.unwrap().1, ServerId(1));
    assert!(began.elapsed() <= Duration::from_millis(ISSUE_MS_MAX), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_ahead_takes_no_token_from_those_who_are_on_their_way() {
    const HOUR_MS: u64 = 3_600_000;
    let now_ms = now_ms();
    let expires = [now_ms - 48 * HOUR_MS, now_ms - HOUR_MS];
    let managers = Slow::full(Duration::ZERO, &expires);
    let added = add_token(&managers, Command::AddToken([1; 32], u64::MAX)).await.unwrap();
    assert!(matches!(added, Ok(Outcome::Token(_))), "there is room: {added:?}");
    // By the clock of the manager that made it the second is good for an hour yet.
    let joins = |token: u64, name: &str| {
        let server = new_server(name, ServerRole::Data);
        let by = (hash(token), now_ms - 2 * HOUR_MS);
        managers.propose(Command::AddServer(server, Some(by)))
    };
    assert_eq!(joins(1, "d0").await.unwrap(), Ok(Outcome::Server(ServerId(1))));
    assert_eq!(joins(0, "d1").await.unwrap(), Err(state::Refusal::BadToken), "it is long gone");
}

#[tokio::test(start_paused = true)]
async fn where_no_token_expired_long_ago_those_go_that_just_have() {
    let (past, to_come) = (now_ms() - 1000, now_ms() + 3_600_000);
    let managers = Slow::full(Duration::ZERO, &[past, to_come]);
    let added = add_token(&managers, Command::AddToken([1; 32], u64::MAX)).await.unwrap();
    assert!(matches!(added, Ok(Outcome::Token(_))), "there is room: {added:?}");
    assert_eq!(managers.map().tokens.len(), TOKENS_MAX / 2 + 1);
}
