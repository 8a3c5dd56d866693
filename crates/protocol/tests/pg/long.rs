//! What a member may have to tell another in one message is bounded: calls are turned away, and taken again when there is
//! room.

use bytes::Bytes;
use larder_protocol::limits::{OPEN_BYTES_MAX, PEER_WHOLE_BYTES_MAX, TAIL_BYTES_MAX};
use larder_protocol::{Answer, Call, Content, Event, PeerMessage, Refusal, Token};
use larder_types::codec::encode;
use larder_types::{Condition, ServerId, View};

use crate::support::{Member, data, put};

/// Bytes of a description that is as long as one may be.
const LONG: usize = 500_000;

/// A put whose op is long.
fn long_put(member: &mut Member, name: &str, content: Content) -> (Token, Call) {
    let request = member.request();
    let Call::Put(mut put) = put(request, name, content, Condition::default()) else {
        unreachable!("it is a put")
    };
    put.description.attributes.content_type = Some("a".repeat(LONG));
    let call = Call::Put(put);
    (member.call(call.clone()), call)
}

fn inline() -> Content {
    Content::Inline(Bytes::from_static(b"x"))
}

#[test]
fn a_tail_of_many_bytes_turns_calls_away_until_it_is_applied() {
    let mut member = Member::alone(1);
    let (mut taken, mut sum) = (0, 0);
    let refused = loop {
        let (token, call) = long_put(&mut member, &format!("k{taken}"), inline());
        if let [Answer::Refused(refusal)] = member.answers(token)[..] {
            assert_eq!(refusal, Refusal::Busy);
            break call;
        }
        taken += 1;
        sum += LONG;
        assert!(sum <= TAIL_BYTES_MAX + 2 * LONG, "there is an end");
    };
    assert!(sum > TAIL_BYTES_MAX - 2 * LONG, "{sum} bytes have room");
    let short = member.put_inline("short", "x");
    assert_eq!(member.refusal(short), Refusal::Busy);
    member.settle();
    let again = member.call(refused);
    member.settle();
    assert!(matches!(member.answers(again)[..], [Answer::Done { .. }]), "there is room");
}

#[test]
fn puts_that_are_open_turn_others_away_until_one_has_an_outcome() {
    let mut member = Member::alone(1);
    let mut granted = Vec::new();
    let refused = loop {
        let (token, call) = long_put(&mut member, &format!("k{}", granted.len()), data(1));
        match member.answers(token)[..] {
            [Answer::Granted { grant, .. }] => granted.push(grant),
            [Answer::Refused(Refusal::Busy)] => break call,
            ref other => panic!("neither a grant nor a refusal: {other:?}"),
        }
        member.settle();
        member.effects.clear();
        assert!(granted.len() <= OPEN_BYTES_MAX / LONG + 1, "there is an end");
    };
    assert!(granted.len() >= OPEN_BYTES_MAX / LONG - 1);
    // What opens none has room, and what is known is answered.
    let inline = member.put_inline("inline", "x");
    member.settle();
    assert!(matches!(member.answers(inline)[..], [Answer::Done { .. }]));
    // All of them go along with a snapshot.
    let mut learner = Member::new(2);
    learner.step(Event::Learn { view: View(1), primary: member.me });
    let report = learner.messages().remove(0).1;
    member.step(Event::Peer { from: ServerId(2), message: report });
    let header = member.messages().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Snapshot { .. } => Some(message),
        _ => None,
    });
    let bytes = encode(&header.expect("it is to have a snapshot")).len();
    assert!((OPEN_BYTES_MAX - 2 * LONG..PEER_WHOLE_BYTES_MAX).contains(&bytes), "{bytes} bytes");

    member.commit(granted[0], 1);
    member.settle();
    let again = member.call(refused);
    assert!(matches!(member.answers(again)[..], [Answer::Granted { .. }]), "there is room");
}

#[test]
fn what_has_room_is_counted_over_a_restart() {
    let mut member = Member::alone(1);
    for number in 0..OPEN_BYTES_MAX / LONG + 1 {
        long_put(&mut member, &format!("k{number}"), data(1));
        member.settle();
    }
    let (refused, _) = long_put(&mut member, "late", data(1));
    assert_eq!(member.refusal(refused), Refusal::Busy);
    let mut member = member.restart();
    member.begin(2, &[1]);
    member.serve(1);
    let (refused, _) = long_put(&mut member, "late", data(1));
    assert_eq!(member.refusal(refused), Refusal::Busy);
}
