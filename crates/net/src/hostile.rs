//! Frames as strangers may send them, who have a session of TLS and nothing else.

use std::sync::Arc;

use bytes::Bytes;
use larder_env::SeededRng;
pub(crate) use larder_env::hostile::{panics, spoiled};
use serde::ser::SerializeTuple;
use serde::{Serialize, Serializer};
use tokio::io::AsyncWriteExt;

use crate::connection::{Duplex, Wire};
use crate::frame::{Frame, Kind, Outgoing};

/// Rounds of a short run.
const ROUNDS: u64 = 300;

/// Rounds to be run, each with draws of its own.
pub(crate) fn rounds() -> impl Iterator<Item = SeededRng> {
    larder_env::hostile::rounds(ROUNDS)
}

/// Most sessions that may come to nothing beside so many that did not: a machine that has much else to do does not make each
/// within [`CONNECT_TIME_MAX`](crate::limits::CONNECT_TIME_MAX).
pub(crate) fn slow_max(made: u32) -> u32 {
    made / 100
}

/// A body as it is.
struct Raw(Vec<u8>);

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // A tuple has no length of its own on the wire.
        let mut tuple = to.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }
}

/// One of these bodies, spoiled, in a frame whose sums are right. Of a few frames the kind is another, or bytes are spoiled
/// besides.
pub(crate) fn framed(draw: &mut SeededRng, kind: Kind, bodies: &[Vec<u8>]) -> Vec<u8> {
    let kinds = [Kind::Hello, Kind::Request, Kind::Answer, Kind::Ping, Kind::Cancel];
    let kind = if draw.below(8) == 0 { kinds[draw.below(5) as usize] } else { kind };
    let payload = vec![7; if draw.below(8) == 0 { draw.below(5000) as usize } else { 0 }];
    let body = Raw(spoiled(draw, bodies));
    let mut frame = Outgoing::new(kind, &body, Bytes::from(payload)).unwrap();
    frame.address(if draw.below(8) == 0 { draw.below(256) as u8 } else { 1 });
    let bytes = frame.slices().concat();
    if draw.below(8) == 0 { spoiled(draw, &[bytes]) } else { bytes }
}

/// Sends these bytes and no more, and hears the answer, if there is one.
pub(crate) async fn ask(mut socket: impl Duplex + 'static, bytes: &[u8]) -> Option<Frame> {
    // A server that has heard enough may have closed it.
    drop(socket.write_all(bytes).await);
    drop(socket.shutdown().await);
    Wire::new(Box::new(socket), Arc::default()).receive_frame().await.ok()
}
