//! A blob in a local file: what is in it, and getting it out. Nothing else is needed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use larder_types::{BucketId, ObjectKey, OpId, PartRef, UploadId};

use super::v1::{FooterHead, FooterReader, TRAILER_BYTES, Trailer};
use crate::error::PackError;
use crate::format::entry::{Change, Container, Content, Entry, Place};
use crate::format::sums::verifies;
use crate::limits::{FOOTER_BYTES_MAX, PACKED_BYTES_MAX};

/// An open blob.
pub struct BlobFile {
    name: String,
    file: File,
    tail: Vec<u8>,
    trailer: Trailer,
    head: FooterHead,
}

/// An object, and what came of extracting it.
#[derive(Debug)]
pub struct Extracted {
    /// Its bucket and key.
    pub name: String,
    /// Its bytes in the file written, or why there is none.
    pub outcome: Result<u64, String>,
}

/// The last state of each key that the blob knows of.
type Keys = BTreeMap<(BucketId, ObjectKey), (OpId, Content)>;
/// The places of the parts that it names.
type Parts = BTreeMap<(UploadId, u16), Place>;

impl BlobFile {
    /// Opens and verifies footer and trailer.
    ///
    /// # Errors
    /// [`PackError::System`] if it cannot be read, [`PackError::Damaged`], [`PackError::Version`].
    pub fn open(path: &Path) -> Result<Self, PackError> {
        let name = path.display().to_string();
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let damaged = |reason| PackError::damaged(&name, reason);
        let at = bytes.checked_sub(TRAILER_BYTES as u64);
        let at = at.ok_or_else(|| damaged("it is too short for a blob"))?;
        let mut last = [0; TRAILER_BYTES];
        file.read_exact_at(&mut last, at)?;
        let trailer = Trailer::decode(&name, &last)?;
        let fits = trailer.footer_bytes <= 2 * FOOTER_BYTES_MAX as u64;
        if !fits || trailer.footer_offset.checked_add(trailer.footer_bytes) != Some(at) {
            return Err(damaged("it is not as long as its trailer says"));
        }
        let mut tail = vec![0; (bytes - trailer.footer_offset) as usize];
        file.read_exact_at(&mut tail, trailer.footer_offset)?;
        let head = FooterReader::new(&name, &tail)?.head;
        Ok(Self { name, file, tail, trailer, head })
    }

    /// Its trailer.
    #[must_use]
    pub fn trailer(&self) -> &Trailer {
        &self.trailer
    }

    /// The time at which the blob was begun, the number of its entries, and the names of their
    /// buckets.
    #[must_use]
    pub fn head(&self) -> &FooterHead {
        &self.head
    }

    /// Name of a bucket that its entries are about.
    #[must_use]
    pub fn bucket_name(&self, id: BucketId) -> &str {
        let found = self.head.buckets.iter().find(|(bucket, _)| *bucket == id);
        found.map_or("?", |(_, name)| name.as_str())
    }

    /// Its entries in their order.
    ///
    /// # Errors
    /// [`PackError::Damaged`].
    pub fn entries(&self) -> Result<Vec<Entry>, PackError> {
        FooterReader::new(&self.name, &self.tail)?.collect()
    }

    /// Bytes of a run that lies in this blob, verified.
    ///
    /// # Errors
    /// [`PackError::System`], [`PackError::Damaged`].
    pub fn read(&self, place: &Place) -> Result<Vec<u8>, PackError> {
        let damaged = |reason: String| PackError::damaged(&self.name, reason);
        let end =
            place.end_in(self.trailer.container()).ok_or_else(|| damaged(elsewhere(place)))?;
        if end > self.trailer.footer_offset || place.len > PACKED_BYTES_MAX || place.sum_bytes == 0
        {
            return Err(damaged("an entry names bytes that it does not have".into()));
        }
        let mut bytes = vec![0; place.len as usize];
        self.file.read_exact_at(&mut bytes, place.offset)?;
        let pieces = bytes.chunks(place.sum_bytes as usize).enumerate();
        match pieces.filter(|(index, piece)| !verifies(place, *index as u64, piece)).count() {
            0 => Ok(bytes),
            bad => Err(damaged(format!("{bad} pieces at byte {} do not verify", place.offset))),
        }
    }

    /// Writes the latest version of each key, or of those named as `bucket/key`, into
    /// `dir/bucket/key`. Files that are there already are left alone. Keys that were deleted later,
    /// in this blob, are not written.
    ///
    /// # Errors
    /// [`PackError::Damaged`] if the footer is; what is wrong with one object is in the list.
    pub fn extract(&self, wanted: &[String], dir: &Path) -> Result<Vec<Extracted>, PackError> {
        let (keys, parts) = self.latest()?;
        let mut done = Vec::new();
        for ((bucket, key), (_, content)) in &keys {
            let name = format!("{}/{}", self.bucket_name(*bucket), key.as_str());
            if wanted.is_empty() || wanted.contains(&name) {
                let outcome = self.write_one(content, &parts, &name, dir);
                done.push(Extracted { name, outcome });
            }
        }
        let missing = wanted.iter().filter(|name| !done.iter().any(|done| &done.name == *name));
        let missing: Vec<_> = missing
            .map(|name| Extracted {
                name: name.clone(),
                outcome: Err("this blob does not have it".into()),
            })
            .collect();
        done.extend(missing);
        Ok(done)
    }

    fn latest(&self) -> Result<(Keys, Parts), PackError> {
        let (mut keys, mut parts) = (Keys::new(), Parts::new());
        for entry in FooterReader::new(&self.name, &self.tail)? {
            let entry = entry?;
            let put = entry.op(self.trailer.id.worker);
            match entry.change {
                Change::Put { bucket, key, content, .. } => {
                    keys.insert((bucket, key), (put, content));
                }
                Change::Moved { bucket, key, op, content, .. } => {
                    keys.insert((bucket, key), (op, content));
                }
                Change::Deleted { bucket, key } => {
                    keys.remove(&(bucket, key));
                }
                // It may be an old delete, re-logged behind a new version.
                Change::Gone { bucket, key, upto, .. } => {
                    let at = (bucket, key);
                    if keys.get(&at).is_some_and(|(op, _)| *op <= upto) {
                        keys.remove(&at);
                    }
                }
                Change::PartPut { upload, number, place, .. }
                | Change::PartMoved { upload, number, place, .. } => {
                    parts.insert((upload, number), place);
                }
                Change::UploadCompleted { bucket, key, upload, parts, .. } => {
                    keys.insert((bucket, key), (put, Content::Parts { upload, parts }));
                }
                Change::BucketRemoved(bucket) | Change::BucketGone { bucket, .. } => {
                    keys.retain(|(of, _), _| *of != bucket);
                }
                Change::BucketMade(_)
                | Change::UploadBegun { .. }
                | Change::UploadAborted { .. }
                | Change::UploadGone { .. }
                | Change::Retired { .. } => {}
            }
        }
        Ok((keys, parts))
    }

    fn write_one(
        &self,
        content: &Content,
        parts: &Parts,
        name: &str,
        dir: &Path,
    ) -> Result<u64, String> {
        let places = match content {
            Content::Run(place) => vec![place],
            Content::Parts { upload, parts: named } => {
                let find = |part: &PartRef| {
                    let place = parts.get(&(*upload, part.number));
                    place.ok_or_else(|| format!("its part {} lies in another blob", part.number))
                };
                named.iter().map(find).collect::<Result<_, _>>()?
            }
        };
        if let Some(place) =
            places.iter().find(|place| place.end_in(self.trailer.container()).is_none())
        {
            return Err(elsewhere(place));
        }
        let path = file_of(dir, name)?;
        let say = |error: std::io::Error| format!("{}: {error}", path.display());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(say)?;
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.as_mut().map_err(|error| format!("{}: {error}", path.display()))?;
        let mut written = 0;
        for place in places {
            let bytes = self.read(place).map_err(|error| error.to_string());
            let wrote = bytes.and_then(|bytes| file.write_all(&bytes).map_err(say));
            if let Err(reason) = wrote {
                let _half = fs::remove_file(&path);
                return Err(reason);
            }
            written += place.len;
        }
        file.sync_all().map_err(say)?;
        Ok(written)
    }
}

fn elsewhere(place: &Place) -> String {
    match place.container {
        Container::Blob(blob) => format!("its bytes lie in blob {blob}"),
        // Its name ends with the process that uploaded it, which no blob says.
        Container::Own(own) if own.bundle().is_some() => {
            format!("its bytes lie in a bundle, the object whose name begins with {}", own.path())
        }
        Container::Own(own) => format!("its bytes are the object {}", own.path()),
    }
}

/// Where an object goes. Keys that a file system would read as something else are refused.
fn file_of(dir: &Path, name: &str) -> Result<PathBuf, String> {
    let plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    if name.split('/').all(plain) {
        Ok(dir.join(name))
    } else {
        Err("its key is not a path of files: copy it by an S3 client".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_leads_out_of_the_directory() {
        let dir = Path::new("/out");
        assert_eq!(file_of(dir, "b/a/c").unwrap(), Path::new("/out/b/a/c"));
        for bad in ["b/../c", "b//c", "b/", "b/.", "b/a\0"] {
            assert!(file_of(dir, bad).is_err(), "{bad:?}");
        }
    }
}
