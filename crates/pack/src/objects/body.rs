//! Takes the body of a request: into memory if it is to be packed, else straight to the backend.

use larder_objects::{BodyDigest, ObjectError, PutBody};
use larder_types::limits::{PUT_BYTES_MAX, SUM_BYTES};

use crate::commit::command::Body;
use crate::error::unavailable;
use crate::format::entry::Container;
use crate::format::sums::BodySums;
use crate::packer::Shared;
use crate::upload::standalone::StandaloneBody;

/// Takes all of a body and verifies what was announced of it.
///
/// # Errors
/// [`ObjectError::Body`], [`ObjectError::TooLarge`], [`ObjectError::Unavailable`] if the backend is,
/// or another worker has taken it over, [`ObjectError::SlowDown`] if it goes there at once and the budget is used up.
pub(crate) async fn take<B: PutBody>(
    shared: &Shared,
    mut body: B,
) -> Result<(Body, BodyDigest), ObjectError> {
    let announced = body.len();
    if announced.is_some_and(|len| len > PUT_BYTES_MAX) {
        return Err(ObjectError::TooLarge { what: "the body", limit_bytes: PUT_BYTES_MAX });
    }
    let packed_max = shared.config.packed_bytes;
    let (mut pieces, mut len) = (Vec::new(), 0);
    if announced.is_none_or(|len| len <= packed_max) {
        loop {
            match body.next().await {
                None => {
                    let digest = body.finish()?;
                    let sums = BodySums::of(shared.seed(), SUM_BYTES, &pieces);
                    return Ok((Body::Packed { pieces, sums }, digest));
                }
                Some(piece) => {
                    let piece = piece?;
                    len += piece.len() as u64;
                    pieces.push(piece);
                }
            }
            if len > packed_max {
                break;
            }
        }
    }
    // It would wait, perhaps for hours, with its client.
    if shared.backend.is_spent() {
        return Err(ObjectError::SlowDown);
    }
    let under_way = shared.under_way.enter(shared.own_id());
    let mut own = StandaloneBody::new(&shared.backend, under_way, shared.seed());
    for piece in pieces {
        own.add(piece).await?;
    }
    let (place, _under_way, digest) = own.take(&mut body).await?;
    // Its bytes are in the backend alone, from where an heir removes what it knows nothing of.
    shared.owner.ask().await.map_err(|error| unavailable(&error.to_string()))?;
    Ok((Body::There { place, _under_way }, digest))
}

/// A body was taken and then refused: what of it went to the backend is removed again.
pub(crate) async fn drop_refused(shared: &Shared, container: Option<Container>) {
    let Some(Container::Own(id)) = container else { return };
    let name = id.path();
    if let Err(error) = shared.backend.remove(&name).await {
        tracing::warn!(%name, %error, "an unreferenced object stays in the backend");
    }
}

/// The object of the backend that a body lies within already, if it does.
pub(crate) fn there(body: &Body) -> Option<Container> {
    match body {
        Body::There { place, .. } => Some(place.container),
        Body::Packed { .. } => None,
    }
}
