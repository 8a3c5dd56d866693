//! Checks which changes may become durable together.

use std::sync::Arc;

use bytes::Bytes;
use larder_env::SimDisk;
use larder_objects::{CompleteOptions, NamedPart, UploadOptions};
use larder_types::limits::SUM_BYTES;
use larder_types::{Attributes, BucketName, Condition, ETag, ObjectKey};
use tokio::sync::oneshot;

use super::check::check_counts;
use super::process::{Process, sizes};
use super::{RUNNING, SimStore};
use crate::backend::Backend;
use crate::commit::command::{Body, Command, Description, Done, Relocate, RelocateTo, Target};
use crate::commit::queue::{Answer, Request};
use crate::format::sums::BodySums;
use crate::ids::WorkerId;

fn target() -> Target {
    Target { bucket: BucketName::new("first").unwrap(), key: ObjectKey::new("k").unwrap() }
}

fn description() -> Description {
    Description { etag: ETag::Md5([7; 16]), checksum: None, attributes: Attributes::default() }
}

fn body() -> (Vec<Bytes>, BodySums) {
    let pieces = vec![Bytes::from_static(&[7; 100])];
    let sums = BodySums::of(1, SUM_BYTES, &pieces);
    (pieces, sums)
}

fn packed() -> Body {
    let (pieces, sums) = body();
    Body::Packed { pieces, sums }
}

fn push(process: &Process, command: Command) -> oneshot::Receiver<Answer> {
    let (reply, answer) = oneshot::channel();
    process.queue.push(Request::Change { command: Box::new(command), reply }).unwrap();
    answer
}

/// Asks for one change, and has it.
fn change(process: &mut Process, command: Command) -> Done {
    let mut answer = push(process, command);
    process.commit().unwrap();
    answer.try_recv().unwrap().unwrap().0
}

/// A process with an object in one part, and the command to move that.
async fn with_a_part() -> (Process, Command) {
    let (store, disk) = (SimStore::new(1), SimDisk::new(1, 1 << 30));
    store.set_calm(true);
    let backend = Backend::over(store);
    let started = Process::start(WorkerId(0), disk, Arc::default(), backend, sizes(), None);
    let mut process = started.await.unwrap();
    let name = target().bucket;
    change(&mut process, Command::MakeBucket { name: name.clone(), location: None });
    let options = UploadOptions::default();
    let begun = change(&mut process, Command::BeginUpload { target: target(), options });
    let Done::Upload(upload) = begun else { panic!("{begun:?}") };
    let (number, body) = (1, packed());
    let description = description();
    change(&mut process, Command::PutPart { target: target(), upload, number, description, body });
    let part = NamedPart { number, etag: ETag::Md5([7; 16]).text(), checksum: None };
    let options = CompleteOptions { parts: vec![part], ..CompleteOptions::default() };
    change(&mut process, Command::Complete { target: target(), upload, options });
    let bucket = process.index.bucket_id(&name).unwrap();
    let row = process.index.part(bucket, upload, number).unwrap().unwrap();
    let (pieces, sums) = self::body();
    let to = RelocateTo::Packed { pieces, sums };
    let carry = Relocate::Part { bucket, upload, number, op: row.op, from: row.place, to };
    (process, Command::Relocate { bucket: Some(name), carry })
}

/// The two commands by which a client ends the object.
fn ends() -> [Command; 2] {
    let (target, condition) = (target(), Condition::default());
    let put = Command::Put {
        target: target.clone(),
        description: description(),
        condition: condition.clone(),
        body: packed(),
    };
    [put, Command::Delete { target, condition }]
}

#[tokio::test]
async fn a_part_that_moves_does_not_outlive_the_object_that_ends_beside_it() {
    RUNNING.set(true);
    for which in 0..ends().len() {
        for ends_first in [true, false] {
            let (mut process, moves) = with_a_part().await;
            let end = ends().into_iter().nth(which).unwrap();
            let commands = if ends_first { [end, moves] } else { [moves, end] };
            let _answers = commands.map(|command| push(&process, command));
            for _ in 0..2 {
                process.commit().unwrap();
            }
            check_counts(&process.index);
        }
    }
    RUNNING.set(false);
}
