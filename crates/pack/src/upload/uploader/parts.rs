//! An upload in parts, and the parts of it that earlier, failed tries have brought through.

use crate::backend::{Backend, BackendUpload, Source};
use crate::error::PackError;
use crate::limits::{FRUITLESS_TRIES_MAX, PART_BYTES, PARTS_IN_FLIGHT_MAX};

/// The upload of one unit, from try to try.
#[derive(Default)]
pub(super) struct PartsUpload {
    upload: Option<BackendUpload>,
    /// Tries in a row that brought no part.
    fruitless: u32,
    /// True if the backend has all parts, and was asked to make the object of them.
    is_whole: bool,
}

impl PartsUpload {
    /// Sends the parts that the backend does not have yet. Parts are of equal size, as some backends want them.
    pub(super) async fn go_on(
        &mut self,
        backend: &Backend,
        name: &str,
        source: &Source,
    ) -> Result<(), PackError> {
        let mut upload = match self.upload.take() {
            Some(upload) => upload,
            None => {
                self.fruitless = 0;
                backend.begin(name).await?
            }
        };
        let before = upload.parts_done();
        let Err(error) = self.all(backend, &mut upload, source).await else { return Ok(()) };
        upload.settle().await;
        self.fruitless = if upload.parts_done() > before { 0 } else { self.fruitless + 1 };
        if upload.can_resume() && self.fruitless < FRUITLESS_TRIES_MAX {
            self.upload = Some(upload);
        }
        Err(error)
    }

    async fn all(
        &mut self,
        backend: &Backend,
        upload: &mut BackendUpload,
        source: &Source,
    ) -> Result<(), PackError> {
        self.is_whole = false;
        let step = PART_BYTES as u64;
        for number in 0..source.len().div_ceil(step) {
            if upload.has(number as usize) {
                continue;
            }
            let part = number * step..((number + 1) * step).min(source.len());
            let pieces = source.read(part).await?;
            // Fewer at once while the backend, or the way there, is slow.
            let at_once = PARTS_IN_FLIGHT_MAX.min(backend.uploads_max() as usize);
            upload.send(number as usize, pieces, at_once).await?;
        }
        upload.finish_with(|| self.is_whole = true).await
    }

    /// Returns true if the object may be there although the last try failed: the answer to its end
    /// may have been lost.
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use larder_env::{Disk, OpenMode, SimDisk};

    use super::*;
    use crate::backend::fakes;

    const PARTS: u64 = 6;

    fn source() -> (Source, Vec<u8>) {
        let disk = SimDisk::new(1, 1 << 30);
        let file = disk.open("f", OpenMode::CreateNew).unwrap();
        let bytes: Vec<u8> =
            (0..PARTS * PART_BYTES as u64 - 9).map(|at| (at / 777) as u8).collect();
        let (bodies, tail) = bytes.split_at(bytes.len() - 1000);
        file.write_at(0, &[std::io::IoSlice::new(bodies)]).unwrap();
        let tail = Bytes::copy_from_slice(tail);
        (Source::new(file, bodies.len() as u64, tail), bytes)
    }

    /// Tries until it is there; returns how often.
    async fn tries(going: &mut PartsUpload, backend: &Backend, source: &Source) -> u32 {
        let mut tries = 1;
        while going.go_on(backend, "blobs/x", source).await.is_err() {
            tries += 1;
            assert!(tries < 20);
        }
        tries
    }

    #[tokio::test]
    async fn a_try_goes_on_with_the_parts_that_are_missing() {
        let (source, bytes) = source();
        let (backend, fake) = fakes::google();
        fake.refuse_parts(&["3", "5", "3"]);
        assert_eq!(tries(&mut PartsUpload::default(), &backend, &source).await, 3);
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
        let (source, bytes) = source();
        let (backend, fake) = fakes::google();
        let mut going = PartsUpload::default();
        fake.refuse_parts(&["2"]);
        going.go_on(&backend, "blobs/x", &source).await.unwrap_err();
        fake.forget_uploads();
        going.go_on(&backend, "blobs/x", &source).await.unwrap_err();
        assert!(going.upload.is_none());
        going.go_on(&backend, "blobs/x", &source).await.unwrap();
        assert_eq!(backend.at_once("blobs/x").await.unwrap(), bytes);
    }

    #[tokio::test]
    async fn an_upload_that_gets_nowhere_is_given_up() {
        let (source, _) = source();
        let (backend, fake) = fakes::google();
        let mut going = PartsUpload::default();
        for _ in 0..=FRUITLESS_TRIES_MAX {
            fake.refuse_parts(&["1", "2", "3", "4", "5", "6"]);
            going.go_on(&backend, "blobs/x", &source).await.unwrap_err();
        }
        while fake.uploads() != (2, 1) {
            tokio::task::yield_now().await;
        }
    }
}
