//! Messages between members that are too long for a frame.

use futures::StreamExt;
use larder_net::limits::PAYLOAD_BYTES_MAX;
use larder_protocol::Answer;
use larder_protocol::limits::HISTORY_OPS_MIN;
use larder_protocol::manager::policy::ServerMessage;
use larder_protocol::manager::state::Command;
use larder_roles::wire::MetaMessage;
use larder_types::{BootId, View};

use crate::desk::PROXY;
use crate::support::{Cluster, PG, SESSION, data, inline, key, long_put, put, request, until};

/// More than the ops by which a member that comes back may follow.
const PUTS: u64 = HISTORY_OPS_MIN as u64 + 100;
/// Open puts that fill more than a frame.
const OPEN: u64 = 35;
const OPEN_BYTES: usize = 250_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_member_takes_a_snapshot_whose_header_is_longer_than_a_frame() {
    assert!(OPEN as usize * OPEN_BYTES > PAYLOAD_BYTES_MAX);
    let mut cluster = Cluster::start(1).await;
    let away = cluster.members(PG).1[2];
    cluster.end(away).await;
    cluster.wipe(away);
    until("it is let go", async || cluster.members(PG).1.len() == 2).await;
    let (_, primary) = cluster.serving(PG, View(2)).await;
    let boot = BootId(44);
    cluster.desk.apply(Command::ServerStarted(PROXY, boot, vec![], vec![])).unwrap();
    cluster.desk.apply(Command::OpenSession(SESSION, PROXY, boot)).unwrap();
    // Its proxy lives, and says nothing of what became of its puts.
    let lives = |cluster: &Cluster| {
        cluster.desk.say(PROXY, ServerMessage::Heartbeat(boot));
        cluster.say(primary, MetaMessage::Floor { session: SESSION, floor: 1 });
    };
    let puts = futures::stream::iter(1..=PUTS).map(|number| {
        lives(&cluster);
        cluster.call(PG, put(request(number), &key(number), inline()))
    });
    let answers: Vec<Answer> = puts.buffer_unordered(32).collect().await;
    assert!(answers.iter().all(|answer| matches!(answer, Answer::Done { .. })));
    for number in PUTS + 1..=PUTS + OPEN {
        lives(&cluster);
        let granted = cluster.call(PG, long_put(number, data(), OPEN_BYTES)).await;
        let Answer::Granted { grant, .. } = granted else { panic!("no grant: {granted:?}") };
        assert_eq!(cluster.persisted(PG, grant.op).await, Ok(grant));
    }
    // What the index shows, a snapshot has: all that are open too.
    let last = PUTS + OPEN + 1;
    let done = cluster.call(PG, put(request(last), &key(last), inline())).await;
    assert!(matches!(done, Answer::Done { .. }), "{done:?}");
    cluster.shows(primary, &[key(last)]).await;
    cluster.begin(away).await;
    until("it is a member again", async || {
        lives(&cluster);
        cluster.members(PG).1.contains(&away)
    })
    .await;
    let open = [primary, away].map(|id| cluster.meta(id).gauges(PG).open_puts as u64);
    assert_eq!(open, [OPEN, OPEN], "it knows of all that are open");
}
