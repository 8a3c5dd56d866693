//! Puts that are tried more than once: one of the tries counts, and what the others took is freed.

use larder_protocol::Call;
use larder_types::{Condition, Grant, SessionId, StreamId, Target};

use crate::support::{BUCKET, Member, data, put};

const STREAM: StreamId = StreamId { session: SessionId(1), number: 9 };

fn put_chunk(member: &mut Member, number: u32, blocks: u32) -> Grant {
    let request = member.request();
    let mut call = put(request, "k", data(blocks), Condition::default());
    if let Call::Put(put) = &mut call {
        put.target = Target::Chunk { stream: STREAM, number };
    }
    let token = member.call(call);
    member.granted(token)
}

#[test]
fn the_blocks_of_a_chunk_that_another_try_replaces_are_freed() {
    let mut member = Member::alone(1);
    let (first, second) = (put_chunk(&mut member, 0, 3), put_chunk(&mut member, 0, 3));
    member.sync();
    for grant in [first, second] {
        member.commit(grant, 1);
    }
    member.settle();
    let space = member.pg.gauges().space;
    assert_eq!(space.waiting, 3, "the row names one of the two");
    let stream = STREAM;
    member.call(Call::DropStream { bucket: BUCKET, stream });
    member.settle();
    assert_eq!(member.pg.gauges().space.waiting, 6, "each is freed once");
}
