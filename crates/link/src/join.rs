//! Joining: a store becomes a region with a token of the first one.
//!
//! The joiner knows the first region by the fingerprint in the token, and speaks only when TLS has verified it. Its
//! proof is an HMAC under the token's secret, of the token's id, its own key and a value that TLS derives from this one
//! session (RFC 8446, 7.5).
//!
//! # Invariants
//!
//! 1. The secret is never sent. A proof is of no use in another session, nor for another key.
//! 2. The key is kept before it is shown, and the number before it is answered. A joiner that lost the answer asks
//!    again with the same token, and is the same region.

use std::path::Path;

use larder_types::codec::encode;
use tokio::time::timeout;

use crate::error::{Later, LinkError};
use crate::files;
use crate::limits::CALL_TIME_MAX;
use crate::link::{read_answer, send};
use crate::members::{Members, OwnRegion};
use crate::message::{Join, Joined, Request};
use crate::name::{Address, RegionName};
use crate::pool::connect;
use crate::registry::{load_or_draw_identity, refuse_region, write};
use crate::token::JoinToken;
use crate::transport::RegionConnector;

/// Makes the store in a directory a region, with a token of the first one, whose server runs.
///
/// # Errors
/// [`LinkError`], by what to do.
pub async fn join(
    dir: &Path,
    token: &JoinToken,
    name: RegionName,
    listen: String,
    advertise: Address,
) -> Result<Members, LinkError> {
    files::make_folder(dir)?;
    let _lock = files::lock(dir)?;
    refuse_region(dir)?;
    let identity = load_or_draw_identity(dir)?;
    let fingerprint = identity.fingerprint();
    let address = token.address();
    let asking = async {
        let way = RegionConnector::of(&identity, token.founder())?;
        let (mut sender, session) = connect(address, &way).await?;
        let proof = token.prove(&session, &fingerprint);
        let (name, address) = (name.clone(), advertise.clone());
        let asked = Request::Join(Join { token: token.id(), proof, name, address });
        let response = send(&mut sender, encode(&asked).into()).await?;
        read_answer::<Joined>(response, token.address()).await
    };
    let answered = timeout(CALL_TIME_MAX, asking).await;
    let (joined, _) = answered.unwrap_or_else(|_elapsed| Err(Later::Late.into()))?;
    let number = joined.number;
    let own = OwnRegion { number, name, listen, advertise, fingerprint, removed: false };
    let members = Members::joined(own, &joined.known.regions)?;
    write(dir, &members)?;
    Ok(members)
}
