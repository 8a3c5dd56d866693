//! The first frames of a connection, in which two releases agree on a version of the protocol.
//!
//! Each side names the oldest and the newest version of the protocol that it speaks; both then speak the
//! newest that both know. A version covers the frames and the messages of all services. A release that appends variants
//! to a service's enums raises the newest version, and does not use them with a peer of an older one. Once
//! all servers of a cluster speak a version, its managers raise the oldest one to it (`Endpoint::require`).
//!
//! # Invariants
//!
//! 1. The layout of hello and goodbye never changes: later releases append fields, and earlier ones ignore these.
//! 2. No request is sent before the peer's hello: until then a connection may still be refused.

use larder_identity::Role;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::connection::{Broken, Wire};
use crate::error::{Denied, Refused, RefusingSide};
use crate::frame::{Bounds, Frame, FrameError, Kind, Outgoing};
use crate::limits::PROTOCOL_MIN;

#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    min: u8,
    max: u8,
    /// Number of the role that is called.
    service: u8,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Goodbye {
    /// Place in [`Refused::ALL`].
    reason: u8,
    why: String,
}

impl Goodbye {
    fn denied(self) -> Denied {
        // Of a reason of a later release this one knows the text alone.
        let reason = Refused::ALL.get(usize::from(self.reason)).copied();
        let why = self.why.chars().filter(|c| !c.is_control()).collect::<String>();
        Denied {
            by: RefusingSide::Peer,
            reason: reason.unwrap_or(Refused::Garbage),
            why: why.into(),
        }
    }
}

fn decode<T: DeserializeOwned>(frame: &Frame) -> Result<T, Broken> {
    match postcard::take_from_bytes(frame.body()) {
        Ok((value, _appended_later)) => Ok(value),
        Err(_) => Err(Broken::Frame(FrameError::Body)),
    }
}

/// The versions of the protocol that a side speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SupportedVersions {
    pub(crate) oldest: u8,
    pub(crate) newest: u8,
}

/// The newest version that both sides speak.
fn agree(theirs: &Hello, ours: SupportedVersions) -> Result<u8, Denied> {
    let newest = theirs.max.min(ours.newest);
    if newest >= theirs.min.max(ours.oldest) {
        return Ok(newest);
    }
    let SupportedVersions { oldest, newest } = ours;
    let mut why = format!(
        "it speaks versions {} to {}, this release {PROTOCOL_MIN} to {newest}",
        theirs.min, theirs.max
    );
    if oldest > PROTOCOL_MIN {
        why += &format!(", and this cluster {oldest} or newer: install its release");
    }
    Err(Denied { by: RefusingSide::Us, reason: Refused::Version, why: why.into() })
}

fn hello(service: u8, speaks: SupportedVersions) -> Result<Outgoing, Broken> {
    let hello = Hello { min: speaks.oldest, max: speaks.newest, service };
    encode_hello(Kind::Hello, &hello)
}

fn encode_hello<T: Serialize>(kind: Kind, body: &T) -> Result<Outgoing, Broken> {
    let mut frame = Outgoing::new(kind, body, bytes::Bytes::new()).map_err(Broken::Frame)?;
    frame.address(Bounds::HELLO.version);
    Ok(frame)
}

/// The reason that a goodbye gives.
pub(crate) fn decode_goodbye(frame: &Frame) -> Broken {
    match decode::<Goodbye>(frame) {
        Ok(goodbye) => Broken::Denied(goodbye.denied()),
        Err(broken) => broken,
    }
}

/// The caller's side: asks for a service, and agrees on a version.
pub(crate) async fn call(
    wire: &mut Wire,
    service: Role,
    speaks: SupportedVersions,
) -> Result<(), Broken> {
    wire.send_frame(hello(service.number(), speaks)?).await?;
    let frame = wire.receive_frame().await?;
    match frame.header.kind {
        Kind::Hello => {
            let version = agree(&decode(&frame)?, speaks).map_err(Broken::Denied)?;
            wire.agreed(version);
            Ok(())
        }
        Kind::Goodbye => Err(decode_goodbye(&frame)),
        _ => Err(Broken::Frame(FrameError::NotDue)),
    }
}

/// The listener's side: receives the hello. Returns the agreed version and the number of the service; the caller then
/// sends [`welcome`] or [`refuse`].
pub(crate) async fn asked(wire: &mut Wire, speaks: SupportedVersions) -> Result<(u8, u8), Broken> {
    let frame = wire.receive_frame().await?;
    if frame.header.kind != Kind::Hello {
        return Err(Broken::Frame(FrameError::NotDue));
    }
    let theirs: Hello = decode(&frame)?;
    Ok((agree(&theirs, speaks).map_err(Broken::Denied)?, theirs.service))
}

/// Accepts the connection, in the version that was agreed on.
pub(crate) async fn welcome(wire: &mut Wire, version: u8, service: u8) -> Result<(), Broken> {
    wire.send_frame(hello(service, SupportedVersions { oldest: PROTOCOL_MIN, newest: version })?)
        .await?;
    wire.agreed(version);
    Ok(())
}

/// Refuses the connection with a goodbye that has the reason.
pub(crate) async fn refuse(wire: &mut Wire, denied: &Denied) -> Result<(), Broken> {
    let why = denied.why.chars().take(200).collect();
    wire.send_frame(encode_hello(Kind::Goodbye, &Goodbye { reason: denied.reason as u8, why })?)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::PROTOCOL_MAX;

    #[test]
    fn the_newest_version_that_both_know_is_spoken() {
        let theirs = |min, max| Hello { min, max, service: 0 };
        let ours = SupportedVersions { oldest: PROTOCOL_MIN, newest: PROTOCOL_MAX };
        let agree = |theirs| agree(&theirs, ours);
        assert_eq!(agree(theirs(PROTOCOL_MIN, PROTOCOL_MIN)).unwrap(), PROTOCOL_MIN);
        assert_eq!(agree(theirs(0, PROTOCOL_MAX + 1)).unwrap(), PROTOCOL_MAX);
        let denied = agree(theirs(PROTOCOL_MAX + 1, PROTOCOL_MAX + 3)).unwrap_err();
        assert_eq!(denied.reason, Refused::Version);
    }
}
