//! `larder pack inspect` and `larder pack extract`: a blob, and nothing else at hand.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use larder_pack::blob::BlobFile;
use larder_pack::{Change, Container, Content, Entry, PackError, Place};
use larder_types::{Metax, ObjectKey, UploadId};
use serde_json::{Value, json};

use crate::exit;
use crate::kind::{self, KindError};

/// Prints a blob's trailer and entries, a line of JSON each.
pub(crate) fn inspect(blob: &Path, verify: bool) -> ExitCode {
    if let Err(error) = check_blob(blob) {
        return refused(&error);
    }
    match show(blob, verify) {
        Ok(0) => exit::code(exit::OK),
        Ok(bad) => {
            eprintln!("{bad} entries do not verify");
            exit::code(exit::FAULTS)
        }
        Err(error) => failed(&error),
    }
}

/// Writes a blob's objects into files.
pub(crate) fn extract(blob: &Path, dir: &Path, keys: &[String]) -> ExitCode {
    if let Err(error) = check_blob(blob).and_then(|()| kind::check_unowned(dir)) {
        return refused(&error);
    }
    let done = match BlobFile::open(blob).and_then(|blob| blob.extract(keys, dir)) {
        Ok(done) => done,
        Err(error) => return failed(&error),
    };
    let (mut objects, mut bytes, mut faults) = (0, 0, 0);
    for object in done {
        match object.outcome {
            Ok(written) => (objects, bytes) = (objects + 1, bytes + written),
            Err(reason) => {
                faults += 1;
                eprintln!("{}: {reason}", object.name);
            }
        }
    }
    println!("{objects} objects with {bytes} bytes extracted, {faults} not");
    exit::code(if faults == 0 { exit::OK } else { exit::FAULTS })
}

/// Refuses a directory of Larder's in place of a blob.
fn check_blob(blob: &Path) -> Result<(), KindError> {
    kind::allow(blob, |_| false)
}

fn refused(error: &KindError) -> ExitCode {
    eprintln!("error: {error}");
    exit::code(exit::USAGE)
}

fn failed(error: &PackError) -> ExitCode {
    eprintln!("error: {error}");
    exit::code(exit::FAULTS)
}

/// Prints everything; how many entries do not verify.
fn show(path: &Path, verify: bool) -> Result<u64, PackError> {
    let blob = BlobFile::open(path)?;
    let (trailer, head) = (blob.trailer(), blob.head());
    let mut out = io::BufWriter::new(io::stdout().lock());
    let first = json!({
        "worker": trailer.id.worker.0, "blob": trailer.id.seq, "bundle": trailer.unit.nth(), "created_ms": head.created_ms,
        "body_bytes": trailer.footer_offset, "footer_bytes": trailer.footer_bytes,
        "entries": head.entries,
    });
    writeln!(out, "{first}")?;
    let mut bad = 0;
    for entry in blob.entries()? {
        let mut line = described(&blob, &entry);
        let here = entry.change.place().filter(|place| place.end_in(trailer.container()).is_some());
        if let (true, Some(place)) = (verify, here) {
            let sound = blob.read(place).is_ok();
            bad += u64::from(!sound);
            line["sound"] = json!(sound);
        }
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(bad)
}

fn described(blob: &BlobFile, entry: &Entry) -> Value {
    let (kind, more) = match &entry.change {
        Change::BucketMade(_) => ("bucket_made", json!({})),
        Change::BucketRemoved(_) => ("bucket_removed", json!({})),
        Change::Put { key, metax, content, .. } => ("put", version(key, metax, content)),
        Change::Moved { key, metax, content, .. } => ("moved", version(key, metax, content)),
        Change::Gone { key, .. } => ("gone", json!({ "key": key.as_str() })),
        Change::BucketGone { .. } => ("bucket_gone", json!({})),
        Change::UploadGone { key, upload, .. } => {
            ("upload_gone", json!({ "key": key.as_str(), "upload": upload.to_string() }))
        }
        Change::Retired { run, .. } => (
            "retired",
            json!({ "worker": run.worker.0, "first_blob": run.first, "last_blob": run.last }),
        ),
        Change::Deleted { key, .. } => ("deleted", json!({ "key": key.as_str() })),
        Change::UploadBegun { row, .. } => {
            ("upload_begun", json!({ "key": row.key.as_str(), "upload": row.upload.to_string() }))
        }
        Change::PartPut { upload, number, metax, place, .. } => {
            ("part_put", part(*upload, *number, metax, place))
        }
        Change::PartMoved { upload, number, metax, place, .. } => {
            ("part_moved", part(*upload, *number, metax, place))
        }
        Change::UploadAborted { key, upload, .. } => {
            ("upload_aborted", json!({ "key": key.as_str(), "upload": upload.to_string() }))
        }
        Change::UploadCompleted { key, upload, metax, parts, .. } => (
            "upload_completed",
            json!({
                "key": key.as_str(), "upload": upload.to_string(), "bytes": metax.size,
                "etag": metax.etag.text(), "parts": parts.len(),
            }),
        ),
    };
    let bucket = entry.change.bucket();
    let mut line = json!({
        "seq": entry.seq.0, "clock_ms": entry.clock.ms(), "change": kind,
        "bucket": bucket.map(|bucket| blob.bucket_name(bucket)),
    });
    if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
        line.extend(more);
    }
    line
}

fn version(key: &ObjectKey, metax: &Metax, content: &Content) -> Value {
    let mut line = json!({
        "key": key.as_str(), "bytes": metax.size, "etag": metax.etag.text(),
        "content_type": metax.attributes.content_type,
    });
    match content {
        Content::Run(place) => add_place(&mut line, place),
        Content::Parts { parts, .. } => line["parts"] = json!(parts.len()),
    }
    line
}

fn part(upload: UploadId, number: u16, metax: &Metax, place: &Place) -> Value {
    let mut line = json!({
        "upload": upload.to_string(), "part": number, "bytes": metax.size,
        "etag": metax.etag.text(),
    });
    add_place(&mut line, place);
    line
}

fn add_place(line: &mut Value, place: &Place) {
    line["offset"] = json!(place.offset);
    line["within"] = match place.container {
        Container::Blob(blob) => json!({ "worker": blob.worker.0, "blob": blob.seq }),
        Container::Own(own) => json!({ "object": own.path() }),
    };
}
