//! Each check by the message that it alone refuses.

use bytes::Bytes;

use super::*;

fn quorum() -> Quorum {
    Quorum::found(ServerId(1), &[ServerId(1), ServerId(2), ServerId(3)], 7, 0, &mut Vec::new())
}

/// The reason of a refusal; nothing, if there is none.
fn why(message: &QuorumMessage) -> String {
    quorum().admits(message).map_or_else(|unsound| unsound.to_string(), |()| String::new())
}

fn at(term: u64, index: u64) -> Position {
    Position { term: Term(term), index: LogIndex(index) }
}

fn ids(count: usize, from: u32) -> BTreeSet<ServerId> {
    (from..).take(count).map(ServerId).collect()
}

/// The message of a leader of term 9 behind what this quorum has.
fn append(items: Vec<(Term, Item)>) -> QuorumMessage {
    let after = quorum().last();
    let entries = Entries { after, items };
    QuorumMessage::Append { term: Term(9), round: 1, commit: LogIndex(0), entries }
}

fn why_members(voters: usize, next_voters: usize, learners: usize) -> String {
    let (voters, next_voters) = (ids(voters, 1), ids(next_voters, 1));
    let members = Members { voters, next_voters, learners: ids(learners, 100) };
    why(&append(vec![(Term(9), Item::Members(members))]))
}

#[test]
fn there_are_voters_and_not_too_many_managers() {
    let most = MANAGERS_MAX;
    assert_eq!(why_members(most, most, SERVERS_MAX), "");
    for voters in [0, most + 1] {
        assert_eq!(why_members(voters, 0, 0), "there are no voters, or too many", "{voters}");
    }
    assert_eq!(why_members(1, most + 1, 0), "there are too many managers");
    assert_eq!(why_members(1, 0, SERVERS_MAX + 1), "there are too many managers");
}

#[test]
fn terms_of_entries_grow_up_to_the_leaders() {
    let of = |terms: &[u64]| why(&append(terms.iter().map(|&of| (Term(of), Item::Term)).collect()));
    assert_eq!(of(&[8, 8, 9]), "");
    for terms in [&[9, 8][..], &[8, 10]] {
        let refused = "terms of entries go back, or beyond the leader's";
        assert_eq!(of(terms), refused, "{terms:?}");
    }
}

#[test]
fn a_command_fits_the_log() {
    let of = |len| why(&append(vec![(Term(9), Item::Command(Bytes::from(vec![0; len])))]));
    assert_eq!(of(COMMAND_BYTES_MAX), "");
    assert_eq!(of(COMMAND_BYTES_MAX + 1), "a command is too long");
}

#[test]
fn a_piece_of_a_map_lies_in_a_map_of_some_size() {
    let of = |offset, total| {
        let (members, piece) = (Members { voters: ids(1, 1), ..Members::default() }, vec![0; 10]);
        let piece = piece.into();
        why(&QuorumMessage::SnapshotPiece {
            term: Term(9),
            at: at(8, 3),
            members,
            offset,
            total,
            piece,
        })
    };
    assert_eq!((of(0, 10), of(MAP_BYTES_MAX - 10, MAP_BYTES_MAX)), (String::new(), String::new()));
    for (offset, total) in [(1, 10), (u64::MAX, 10), (0, MAP_BYTES_MAX + 1)] {
        let refused = "a piece of a map is longer than the map";
        assert_eq!(of(offset, total), refused, "{offset} of {total}");
    }
}

#[test]
fn numbers_end_far_before_they_overflow() {
    let voted = |term| why(&QuorumMessage::Voted { term: Term(term), granted: true });
    assert_eq!(voted(QUORUM_TERM_MAX), "");
    assert_eq!(voted(QUORUM_TERM_MAX + 1), "there were not so many terms");
    let vote = |term, last| why(&QuorumMessage::Vote { term: Term(term), last });
    assert_eq!(vote(9, at(9, QUORUM_INDEX_MAX)), "");
    assert_eq!(vote(9, at(9, QUORUM_INDEX_MAX + 1)), "there are not so many entries");
    assert_eq!(vote(9, at(10, 3)), "an entry is of a later term than its message");
}
