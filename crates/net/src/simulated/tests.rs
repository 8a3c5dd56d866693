use larder_identity::{Role, Roles};
use larder_types::ClusterId;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;
use crate::error::{CallError, NotSent, Unknown};
use crate::limits::{BACKOFF_MAX, SILENCE_MAX};
use crate::tests::{Echo, Echoing, RecordedCalls};
use crate::{Endpoint, Listener, Peer, Services};

const CALLER: ServerId = ServerId(1);
const CALLED: ServerId = ServerId(2);

struct Pair {
    network: Arc<Network>,
    peer: Peer<Echo>,
    recorded: RecordedCalls,
    _listener: Listener,
}

fn subject(server: ServerId, role: Role) -> Subject {
    Subject { cluster: ClusterId(7), server, roles: Roles::of(&[role]) }
}

/// Numbers that look drawn.
fn drawn(seed: u64) -> impl FnMut() -> u64 + Send {
    let mut state = larder_env::SeededRng::new(seed);
    move || state.next_u64()
}

impl Pair {
    fn begin(conditions: NetworkConditions, seed: u64) -> Self {
        let network = Network::new(conditions, drawn(seed));
        let host = network.host(subject(CALLED, Role::Data));
        let address = address_of(CALLED);
        let (echoing, recorded) = Echoing::new();
        let services = Services::new().with::<Echo>(Roles::of(&[Role::Meta]), echoing);
        let arrivals = host.listen(address);
        let listener = Listener::start(&Endpoint::simulated(host), arrivals, services).unwrap();
        let caller = Endpoint::simulated(network.host(subject(CALLER, Role::Meta)));
        let peer = Peer::new(&caller, CALLED, address.to_string());
        Self { network, peer, recorded, _listener: listener }
    }

    async fn call(&self, what: &str, payload: usize) -> Result<(String, usize), CallError> {
        call(self.peer.clone(), what, payload).await
    }
}

async fn call(peer: Peer<Echo>, what: &str, payload: usize) -> Result<(String, usize), CallError> {
    let payload = vec![7; payload].into();
    let deadline = Instant::now() + Duration::from_secs(60);
    let (answer, payload) = peer.call(&what.to_owned(), payload, deadline).await?;
    Ok((answer, payload.len()))
}

const WEATHER: NetworkConditions =
    NetworkConditions { delay_ms: 3, late_one_in: 4, late_ms: 40, split_one_in: 3 };

#[tokio::test(start_paused = true)]
async fn calls_of_all_lengths_are_answered_in_simulated_time() {
    let pair = Pair::begin(WEATHER, 1);
    let began = Instant::now();
    for len in [0, 1, 100_000, 3 << 20] {
        assert_eq!(pair.call("echo", len).await.unwrap(), ("echo".to_owned(), len));
    }
    assert!(began.elapsed() > Duration::ZERO, "bytes take their time");
}

#[tokio::test(start_paused = true)]
async fn what_is_cut_off_waits_and_a_silent_peer_is_given_up() {
    let pair = Pair::begin(NetworkConditions::default(), 2);
    pair.call("before", 1).await.unwrap();
    pair.network.cut(CALLED, CALLER);
    let brief = async {
        sleep(Duration::from_secs(2)).await;
        pair.network.heal(CALLED, CALLER);
    };
    let (answered, ()) = tokio::join!(pair.call("late", 1), brief);
    answered.unwrap();
    pair.network.cut(CALLED, CALLER);
    let began = Instant::now();
    let lost = pair.call("lost", 1).await.unwrap_err();
    assert!(matches!(lost, CallError::Unknown(Unknown::Broken(_))), "{lost}");
    assert!(began.elapsed() >= SILENCE_MAX - Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reset_connection_loses_the_answer_and_the_next_one_is_made() {
    let Pair { network, peer, mut recorded, _listener } = Pair::begin(WEATHER, 3);
    let (answered, ()) = tokio::join!(call(peer.clone(), "wait", 1), async {
        let (_, _, responder) = recorded.asked.recv().await.unwrap();
        network.reset(CALLER, CALLED);
        responder.answer(&"unheard".to_owned(), Default::default());
    });
    assert!(matches!(answered, Err(CallError::Unknown(_))), "{answered:?}");
    let again = async {
        while call(peer.clone(), "again", 1).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(2 * BACKOFF_MAX, again).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_refuses_or_is_another_is_not_spoken_with() {
    let pair = Pair::begin(NetworkConditions::default(), 4);
    pair.network.refuse(CALLED, true);
    let refused = pair.call("refused", 1).await.unwrap_err();
    assert!(matches!(refused, CallError::NotSent(NotSent::Unreachable(_))), "{refused}");
    let caller = Endpoint::simulated(pair.network.host(subject(CALLER, Role::Meta)));
    let other = Peer::<Echo>::new(&caller, ServerId(9), address_of(CALLED).to_string());
    let deadline = Instant::now() + Duration::from_secs(60);
    pair.network.refuse(CALLED, false);
    let denied = other.call(&"other".to_owned(), Default::default(), deadline).await;
    assert!(matches!(denied, Err(CallError::Denied(_))), "{denied:?}");
}

/// All pieces that arrive during concurrent calls whose connections break. Each run has a runtime of its own: the order in
/// which timers of the same millisecond fire depends on where in its time they lie.
fn run(seed: u64) -> Vec<Delivered> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let pair = Pair::begin(WEATHER, seed);
        for round in 0..10 {
            let mut calls = JoinSet::new();
            for number in 0..20 {
                calls.spawn(call(pair.peer.clone(), "echo", number * 1000));
            }
            if round % 3 == 2 {
                sleep(Duration::from_millis(5)).await;
                pair.network.reset(CALLER, CALLED);
            }
            // Some are lost with their connection.
            while calls.join_next().await.is_some() {}
            sleep(Duration::from_millis(500)).await;
        }
        pair.network.delivered()
    })
}

#[test]
fn the_same_draws_make_the_same_run() {
    let first = run(5);
    assert!(first.len() > 50, "{} pieces arrived", first.len());
    assert!(first == run(5), "nothing else decides");
    assert!(first != run(6), "the seed decides something");
}
