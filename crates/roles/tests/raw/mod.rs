//! Bytes in place of messages, for servers whose certificates are good: golden messages of every service, spoiled.

use std::marker::PhantomData;

use larder_env::SeededRng;
pub use larder_env::hostile::{panics, spoiled};
use larder_identity::Role;
use larder_net::Service;
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const GOLDEN: &str = include_str!("../golden/roles.hex");
/// Rounds of a short run.
const ROUNDS: u64 = 300;

/// A message that is sent as it is.
pub struct Raw(pub Vec<u8>);

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // A tuple has no length of its own on the wire.
        let mut tuple = to.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // An answer says nothing here.
        <() as Deserialize>::deserialize(from).map(|()| Self(Vec::new()))
    }
}

/// The service of a real one's role, spoken in bytes.
pub struct InBytes<S>(PhantomData<S>);

impl<S: Service> Service for InBytes<S> {
    const ROLE: Role = S::ROLE;
    type Request = Raw;
    type Answer = Raw;
    type Message = Raw;
}

/// Golden messages, without the byte of the version.
pub fn corpus() -> Vec<Vec<u8>> {
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).expect("hex");
        u8::from_str_radix(text, 16).expect("hex")
    };
    let line = |line: &str| line.as_bytes().chunks(2).map(byte).skip(1).collect::<Vec<u8>>();
    GOLDEN.lines().map(line).filter(|bytes| !bytes.is_empty()).collect()
}

/// Rounds to be run, each with draws of its own.
pub fn rounds() -> impl Iterator<Item = SeededRng> {
    larder_env::hostile::rounds(ROUNDS)
}
