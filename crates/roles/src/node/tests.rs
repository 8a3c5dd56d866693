//! Machines on loopback that find each other, managers alone running.

use std::sync::Arc;

use larder_identity::Identity;
use larder_identity::limits::CERTIFICATE_VALIDITY;
use larder_net::Port;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::*;
use crate::identity::IDENTITY_FILE;
use crate::manager::quorum::tests::support::{until, until_it_signs, until_seen};
use crate::manager::quorum::{Manager, ManagerConfig};

const SETTINGS: Settings =
    Settings { pg_count: 8, members: 1, min_members: 1, copies: 3, min_copies: 2, lv_blocks: 64 };

/// A machine that has not come in.
struct Machine {
    dir: TempDir,
    port: Arc<Port>,
}

impl Machine {
    async fn new() -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { dir: tempfile::tempdir().unwrap(), port: Port::open(socket).unwrap() }
    }

    fn name(&self) -> String {
        self.port.address().to_string()
    }

    fn config(&self, peers: &[String], secret: &PeerSecret) -> NodeConfig {
        let drawn = format!("drawn by {}", self.name());
        NodeConfig {
            dir: self.dir.path().to_owned(),
            name: self.name(),
            peers: peers.to_vec(),
            secret: secret.clone(),
            settings: SETTINGS,
            root: RootKeys { access_key: drawn, secret_key: "s".to_owned() },
            certificate_life: CERTIFICATE_VALIDITY,
        }
    }

    /// Comes in, and runs its manager.
    async fn start(&self, config: NodeConfig) -> (Entered, Manager) {
        let entered = enter(&config, &self.port).await.unwrap();
        for (role, server) in &entered.servers {
            let path = config.dir.join(role_name(*role)).join(IDENTITY_FILE);
            let subject = Identity::load(&path).unwrap().subject();
            assert_eq!((subject.server, subject.cluster), (*server, entered.cluster));
        }
        let manager_config = ManagerConfig {
            dir: config.dir.join("manager"),
            address: Some(config.name.clone()),
            managers: entered.managers.clone(),
            certificate_life: config.certificate_life,
            colocated: None,
        };
        let manager = Manager::start(manager_config, self.port.clone()).unwrap();
        let root = entered.root.clone();
        let root = Box::new(move || Some(root.clone()));
        let admission = Admission::of(&manager, root, config.certificate_life);
        admit_machines(&self.port, config.secret, admission).unwrap();
        (entered, manager)
    }
}

fn names(machines: &[Machine]) -> Vec<String> {
    machines.iter().map(Machine::name).collect()
}

#[tokio::test]
async fn three_machines_form_one_cluster_and_a_fourth_comes_in_without_the_first() {
    let secret = PeerSecret::draw().unwrap();
    let mut machines = Vec::new();
    for _ in 0..4 {
        machines.push(Machine::new().await);
    }
    let (all, three) = (names(&machines), names(&machines[..3]));
    let start = async |at: usize, peers: &[String]| {
        machines[at].start(machines[at].config(peers, &secret)).await
    };
    let ((a, founder), (b, second), (c, third)) =
        tokio::join!(start(0, &three), start(1, &three), start(2, &three));
    assert!(a.cluster == b.cluster && b.cluster == c.cluster);
    assert!(a.root == b.root && b.root == c.root, "root's keys are the founder's");
    for entered in [&a, &b, &c] {
        assert_eq!(entered.servers.iter().map(|(role, _)| *role).collect::<Vec<_>>(), ROLES);
    }
    for manager in [&second, &third] {
        until_it_signs(manager).await;
        until_seen(manager.quorum_status(), |quorum_status| {
            quorum_status.members.voters.len() == 3
        })
        .await;
    }

    // The first is lost for good.
    founder.stop().await.unwrap();
    let lost = machines.remove(0);
    drop(lost);
    let fourth = &machines[2];
    let entered = enter(&fourth.config(&all, &secret), &fourth.port).await.unwrap();
    assert_eq!((entered.cluster, entered.servers.len()), (a.cluster, 3), "no manager");
    assert!(entered.managers.len() == 3 && entered.root == a.root);
    let known = |map: &larder_protocol::manager::state::Topology| map.servers.len() == 15;
    let map = until(second.managers(), "all servers", known).await;
    let machine_of = |server: &ServerId| map.servers[server].domains.machine.0;
    let numbers = entered.servers.iter().map(|(_, server)| machine_of(server));
    assert!(numbers.eq([3, 3, 3]), "a machine of its own");
    drop(third);
}

#[tokio::test]
async fn another_secret_or_list_or_the_name_of_a_member_is_refused_with_what_to_do() {
    let secret = PeerSecret::draw().unwrap();
    let machines = [Machine::new().await, Machine::new().await, Machine::new().await];
    let peers = names(&machines);
    let of = |at: usize, peers: &[String], secret: &PeerSecret| machines[at].config(peers, secret);
    let founder = of(0, &peers, &secret);
    let waiting = machines[0].start(founder);
    let refusals = async {
        let other = PeerSecret::draw().unwrap();
        let error = enter(&of(1, &peers, &other), &machines[1].port).await.unwrap_err();
        assert!(matches!(error, NotEntered::OtherSecret { .. }), "{error}");
        let mut turned = peers.clone();
        turned.swap(1, 2);
        let error = enter(&of(1, &turned, &secret), &machines[1].port).await.unwrap_err();
        assert!(matches!(error, NotEntered::OtherList { .. }), "{error}");
        // A cluster of one copy less than wanted is not founded at all.
        let short = enter(&of(2, &peers[2..], &secret), &machines[2].port).await.unwrap_err();
        assert!(matches!(short, NotEntered::TooFew { peers: 1, copies: 3 }), "{short}");
        tokio::join!(
            machines[1].start(of(1, &peers, &secret)),
            machines[2].start(of(2, &peers, &secret))
        )
    };
    let ((_, first), ((_, second), (_, _third))) = tokio::join!(waiting, refusals);
    until(second.managers(), "the first is up", |map| {
        let up = map.servers.values().filter(|it| it.name.ends_with("/manager"));
        up.filter(|it| it.state == larder_protocol::manager::state::ServerState::Up).count() == 3
    })
    .await;
    // One that has lost its directory is not taken for itself.
    let empty = Machine::new().await;
    let mut config = empty.config(&peers, &secret);
    config.name.clone_from(&peers[1]);
    let error = enter(&config, &empty.port).await.unwrap_err();
    assert!(matches!(error, NotEntered::Taken { .. }), "{error}");
    assert!(error.to_string().contains("larder remove"), "{error}");
    for manager in [&first, &second] {
        let map = until(manager.managers(), "all servers", |map| map.servers.len() >= 12).await;
        assert_eq!(map.servers.len(), 12, "and nothing was added");
    }
}

#[test]
fn an_odd_number_of_machines_manages() {
    assert_eq!((1..=7).map(managers_of).collect::<Vec<_>>(), [1, 1, 3, 3, 5, 5, 5]);
    assert_eq!(node_of("host1:7000/data"), Some("host1:7000"));
    assert_eq!(node_of("[::1]:7000/manager"), Some("[::1]:7000"));
    assert_eq!((node_of("host1:7000"), node_of("node-1/cook")), (None, None));
}
