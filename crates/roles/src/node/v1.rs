//! Version 1 of the messages of discovery, by which machines find a cluster: `docs/formats/node.md`. The version byte
//! is the codec's.

use larder_identity::PublicKey;
use larder_protocol::manager::state::ServerRole;
use larder_types::ServerId;
use serde::{Deserialize, Serialize};

use super::RootKeys;

/// Said by a machine that belongs to nobody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DiscoveryRequest {
    /// Its name.
    pub(super) node: String,
    /// The list that it was given.
    pub(super) peers: Vec<String>,
    /// A key to be signed for each role that it may have, in the order of [`super::ROLES`].
    pub(super) keys: Vec<PublicKey>,
}

/// An answer to a discovery request; grows by variants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The machine that is answered is let in.
    Welcome(Box<Welcome>),
    /// There is no cluster, and these have not asked yet.
    Waiting(Vec<String>),
    /// There is no cluster, and the one that may found it has this list.
    OtherList(Vec<String>),
    /// The address of a member that admits machines, if this one does not.
    Elsewhere(Vec<String>),
    /// Ask again; why, for people.
    NotNow(String),
    /// Servers of that name live in the cluster.
    Taken(Vec<String>),
}

/// The parts that a machine gets that is let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Welcome {
    /// The authority's certificate, DER.
    pub(super) authority: Vec<u8>,
    /// The servers that the machine is from now on.
    pub(super) servers: Vec<Place>,
    /// Managers to begin with.
    pub(super) managers: Vec<(ServerId, String)>,
    /// Root's keys.
    pub(super) root: RootKeys,
}

/// One server of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) role: ServerRole,
    pub(super) server: ServerId,
    /// DER.
    pub(super) certificate: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use larder_types::codec::{decode, encode};

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn what_is_said_has_golden_bytes() {
        let (a, b) = ("a:1".to_owned(), "b:2".to_owned());
        let request = DiscoveryRequest {
            node: a.clone(),
            peers: vec![a.clone(), b.clone()],
            keys: vec![[7; 32]; 4],
        };
        let root = RootKeys { access_key: "ak".to_owned(), secret_key: "sk".to_owned() };
        let place =
            Place { role: ServerRole::Data, server: ServerId(300), certificate: b"cert".to_vec() };
        let welcome = Welcome {
            authority: b"auth".to_vec(),
            servers: vec![place],
            managers: vec![(ServerId(0), a.clone())],
            root,
        };
        assert_eq!(
            decode::<DiscoveryRequest>("a discovery request", &encode(&request)).unwrap(),
            request
        );
        let golden = [
            (encode(&request), format!("0103613a310203613a3103623a3204{}", "07".repeat(128))),
            (
                encode(&Answer::Welcome(Box::new(welcome))),
                "010004617574680102ac020463657274010003613a3102616b02736b".to_owned(),
            ),
            (encode(&Answer::Waiting(vec![b.clone()])), "01010103623a32".to_owned()),
            (encode(&Answer::OtherList(vec![b.clone()])), "01020103623a32".to_owned()),
            (encode(&Answer::Elsewhere(vec![a])), "01030103613a31".to_owned()),
            (encode(&Answer::NotNow("why".to_owned())), "010403776879".to_owned()),
            (encode(&Answer::Taken(vec![b])), "01050103623a32".to_owned()),
        ];
        for (bytes, expected) in golden {
            assert_eq!(hex(&bytes), expected);
        }
    }
}
