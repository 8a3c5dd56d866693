//! The place that a machine that asks to be let in is to have, by the map.

use larder_protocol::manager::quorum::LogIndex;
use larder_protocol::manager::state::{ClusterId, Settings};
use larder_types::BootId;

use super::*;

const SETTINGS: Settings =
    Settings { pg_count: 8, members: 1, min_members: 1, copies: 1, min_copies: 1, lv_blocks: 64 };

fn list(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn request(node: &str, peers: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest { node: node.to_owned(), peers: list(peers), keys: vec![[7; 32]; ROLES.len()] }
}

/// The map of a cluster that a:1 has founded.
struct Map(Topology, u64);

impl Map {
    fn founded() -> Self {
        let mut map = Self(Topology::default(), 0);
        map.apply(Command::Found(ClusterId(1), SETTINGS));
        let domains = FailureDomains::default();
        let mut roles = ROLES.into_iter();
        let manager = new_server("a:1", roles.next().unwrap(), domains);
        map.apply(Command::AddServer(manager, None));
        map.add(roles.map(|role| new_server("a:1", role, domains)).collect());
        map.begin("a:1");
        map
    }

    fn apply(&mut self, command: Command) {
        self.1 += 1;
        self.0.apply(LogIndex(self.1), command).unwrap();
    }

    fn add(&mut self, servers: Vec<NewServer>) {
        for server in servers {
            admission_of(server, None).into_iter().for_each(|command| self.apply(command));
        }
    }

    fn of(&self, node: &str) -> Vec<ServerId> {
        let own = self.0.servers.iter().filter(|(_, it)| node_of(&it.name) == Some(node));
        own.map(|(id, _)| *id).collect()
    }

    fn begin(&mut self, node: &str) {
        for server in self.of(node) {
            self.apply(Command::ServerStarted(server, BootId(1), Vec::new(), Vec::new()));
        }
    }

    fn places(&self, node: &str, peers: &[&str]) -> Result<Places, Answer> {
        places_in(&self.0, &request(node, peers))
    }

    /// Lets a machine in, and returns its roles and number.
    fn admit(&mut self, node: &str, peers: &[&str]) -> (Vec<ServerRole>, MachineId) {
        let places = self.places(node, peers).unwrap();
        assert_eq!(places.known, []);
        let roles = places.new.iter().map(|server| *server.roles.first().unwrap()).collect();
        let machine = places.new[0].domains.machine;
        self.add(places.new);
        (roles, machine)
    }
}

#[test]
fn the_first_machines_of_the_list_manage_and_each_has_a_number_of_its_own() {
    let (mut map, four) = (Map::founded(), ["a:1", "b:1", "c:1", "d:1"]);
    let member = ROLES[1..].to_vec();
    assert_eq!(map.admit("d:1", &four), (member.clone(), MachineId(1)), "in whatever order");
    assert_eq!(map.admit("b:1", &four), (ROLES.to_vec(), MachineId(2)));
    assert_eq!(map.admit("c:1", &four), (ROLES.to_vec(), MachineId(3)));
    let six = ["a:1", "b:1", "c:1", "d:1", "e:1", "f:1"];
    assert_eq!(map.admit("e:1", &six), (ROLES.to_vec(), MachineId(4)), "of six, five manage");
    assert_eq!(map.admit("f:1", &six), (member, MachineId(5)));
}

#[test]
fn who_lost_the_answer_gets_the_same_places_until_it_has_begun() {
    let (mut map, three) = (Map::founded(), ["a:1", "b:1", "c:1"]);
    drop(map.admit("b:1", &three));
    let again = map.places("b:1", &three).unwrap();
    let ids: Vec<_> = again.known.iter().map(|(_, server)| *server).collect();
    assert_eq!((ids, again.new), (map.of("b:1"), Vec::new()));

    // Agreed on in part: the rest comes to the same machine.
    let places = map.places("c:1", &three).unwrap();
    map.add(places.new[..2].to_vec());
    let rest = map.places("c:1", &three).unwrap();
    assert_eq!((rest.known.len(), &rest.new[..]), (2, &places.new[2..]));

    map.begin("b:1");
    let Err(Answer::Taken(names)) = map.places("b:1", &three) else { panic!("it is taken") };
    assert_eq!(names, ["b:1/manager", "b:1/meta", "b:1/data", "b:1/proxy"]);
}

#[test]
fn a_name_is_free_again_once_all_servers_of_it_are_removed() {
    let (mut map, three) = (Map::founded(), ["a:1", "b:1", "c:1"]);
    drop(map.admit("b:1", &three));
    drop(map.admit("c:1", &three));
    map.begin("b:1");
    map.begin("c:1");
    let removed = map.of("b:1");
    for server in &removed {
        map.apply(Command::RemoveServer(*server));
    }
    assert_eq!(map.admit("b:1", &three), (ROLES.to_vec(), MachineId(3)), "another machine");
    assert!(map.of("b:1").iter().filter(|id| !removed.contains(id)).count() == ROLES.len());
}

#[test]
fn requests_that_cannot_be_meant_are_put_off() {
    assert!(is_sane(&request("a:1", &["a:1"])));
    assert!(!is_sane(&request("b:1", &["a:1"])), "not of its own list");
    assert!(!is_sane(&DiscoveryRequest { keys: Vec::new(), ..request("a:1", &["a:1"]) }));
    let long = "x".repeat(PEER_NAME_BYTES_MAX) + ":1";
    assert!(!is_sane(&request(&long, &[&long])));
}
