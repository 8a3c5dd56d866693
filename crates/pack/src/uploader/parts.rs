//! A lot that goes up in parts, and what of it came through in tries that failed.

use std::sync::Arc;

use larder_env::DiskFile;

use super::read_spool;
use crate::backend::{Backend, BackendUpload};
use crate::error::PackError;
use crate::limits::{FRUITLESS_TRIES_MAX, PART_BYTES, PARTS_UNDER_WAY_MAX};
use crate::spool::SealedLot;

/// The upload of one lot, from try to try.
#[derive(Default)]
pub(super) struct Going {
    upload: Option<BackendUpload>,
    /// Tries in a row that brought no part.
    fruitless: u32,
    /// Whether the backend has all parts, and was asked to make the object of them.
    is_whole: bool,
}

impl Going {
    /// Sends the parts that the backend does not have yet, waits for `leave`, and makes the object of them. Parts are of
    /// equal size, as some backends want them.
    pub(super) async fn go_on(
        &mut self,
        backend: &Backend,
        name: &str,
        (file, lot): (&Arc<dyn DiskFile>, &SealedLot),
        leave: impl Future<Output = Result<(), PackError>>,
    ) -> Result<(), PackError> {
        let mut upload = match self.upload.take() {
            Some(upload) => upload,
            None => {
                self.fruitless = 0;
                backend.begin(name).await?
            }
        };
        let before = upload.parts_done();
        let tried = async {
            self.is_whole = false;
            send(backend, &mut upload, file, lot).await?;
            leave.await?;
            self.is_whole = true;
            upload.finish().await
        };
        let Err(error) = tried.await else { return Ok(()) };
        upload.settle().await;
        self.fruitless = if upload.parts_done() > before { 0 } else { self.fruitless + 1 };
        if upload.can_go_on() && self.fruitless < FRUITLESS_TRIES_MAX {
            self.upload = Some(upload);
        }
        Err(error)
    }

    /// Whether the object may be there although the last try failed: the answer to its end may have been lost.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The object is there.
    pub(super) fn is_there(&mut self) {
        if let Some(mut upload) = self.upload.take() {
            upload.is_there();
        }
    }
}

/// Sends what is missing, and returns once the backend has all parts.
async fn send(
    backend: &Backend,
    upload: &mut BackendUpload,
    file: &Arc<dyn DiskFile>,
    lot: &SealedLot,
) -> Result<(), PackError> {
    let (bodies, step) = (lot.body_bytes, PART_BYTES as u64);
    for number in 0..lot.bytes().div_ceil(step) {
        if upload.has(number as usize) {
            continue;
        }
        let (at, end) = (number * step, ((number + 1) * step).min(lot.bytes()));
        let mut pieces = Vec::with_capacity(2);
        if at < bodies {
            pieces.push(read_spool(file.clone(), at, end.min(bodies)).await?);
        }
        if end > bodies {
            let from = at.max(bodies) - bodies;
            pieces.push(lot.tail.slice(from as usize..(end - bodies) as usize));
        }
        // Fewer at once while the backend, or the way there, is slow.
        let at_once = PARTS_UNDER_WAY_MAX.min(backend.uploads_max() as usize);
        upload.send(number as usize, pieces, at_once).await?;
    }
    upload.all_sent().await
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use larder_env::{Disk, OpenMode, SimDisk};

    use super::*;
    use crate::backend::fakes;
    use crate::lot::Lot;

    const PARTS: u64 = 6;

    fn lot() -> (SealedLot, Vec<u8>) {
        let disk = SimDisk::new(1, 1 << 30);
        let file = disk.open("f", OpenMode::CreateNew).unwrap();
        let bytes: Vec<u8> =
            (0..PARTS * PART_BYTES as u64 - 9).map(|at| (at / 777) as u8).collect();
        let (bodies, tail) = bytes.split_at(bytes.len() - 1000);
        file.write_at(0, &[std::io::IoSlice::new(bodies)]).unwrap();
        let lot = SealedLot {
            lot: Lot::SHARED,
            file: Some(file),
            body_bytes: bodies.len() as u64,
            tail: Bytes::copy_from_slice(tail),
        };
        (lot, bytes)
    }

    async fn go_on(going: &mut Going, backend: &Backend, lot: &SealedLot) -> Result<(), PackError> {
        let parts = (lot.file.as_ref().unwrap(), lot);
        going.go_on(backend, "blobs/x", parts, std::future::ready(Ok(()))).await
    }

    /// Tries until it is there; how often.
    async fn tries(going: &mut Going, backend: &Backend, lot: &SealedLot) -> u32 {
        let mut tries = 1;
        while go_on(going, backend, lot).await.is_err() {
            tries += 1;
            assert!(tries < 20);
        }
        tries
    }

    #[tokio::test]
    async fn a_try_goes_on_with_the_parts_that_are_missing() {
        let (lot, bytes) = lot();
        let (backend, fake) = fakes::google();
        fake.refuse_parts(&["3", "5", "3"]);
        assert_eq!(tries(&mut Going::default(), &backend, &lot).await, 3);
        assert_eq!(backend.at_once("blobs/x").await.unwrap(), bytes);
        let sent = fake.parts_sent();
        assert_eq!(
            sent.len() as u64,
            PARTS + 3,
            "no part was sent again that had come through: {sent:?}"
        );
    }

    #[tokio::test]
    async fn an_upload_that_the_backend_forgot_is_begun_anew() {
        let (lot, bytes) = lot();
        let (backend, fake) = fakes::google();
        let mut going = Going::default();
        fake.refuse_parts(&["2"]);
        go_on(&mut going, &backend, &lot).await.unwrap_err();
        fake.forget_uploads();
        go_on(&mut going, &backend, &lot).await.unwrap_err();
        assert!(going.upload.is_none());
        go_on(&mut going, &backend, &lot).await.unwrap();
        assert_eq!(backend.at_once("blobs/x").await.unwrap(), bytes);
    }

    #[tokio::test]
    async fn an_upload_that_gets_nowhere_is_given_up() {
        let (lot, _) = lot();
        let (backend, fake) = fakes::google();
        let mut going = Going::default();
        for _ in 0..=FRUITLESS_TRIES_MAX {
            fake.refuse_parts(&["1", "2", "3", "4", "5", "6"]);
            go_on(&mut going, &backend, &lot).await.unwrap_err();
        }
        while fake.uploads() != (2, 1) {
            tokio::task::yield_now().await;
        }
    }
}
