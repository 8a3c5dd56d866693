//! The work that a quorum turns away when it has too much to do, and that it takes more once it has less.

use super::*;
use crate::limits::{QUORUM_UNCOMMITTED_MAX, QUORUM_WAITING_MAX};

impl World {
    fn assert_applied(&self, tickets: &[Ticket]) {
        for ticket in tickets {
            let end = self.ended.get(ticket);
            assert!(matches!(end, Some(ProposalEnd::Applied(_))), "{ticket:?}: {end:?}");
        }
    }
}

#[test]
fn a_proposal_too_many_for_the_disk_is_turned_away_and_another_taken_when_it_has_written() {
    let mut world = World::new(1, 1, 1);
    world.run_for(20);
    let mut taken = vec![world.propose(0)];
    assert_eq!(world.machines[0].writing.len(), 1, "the disk is busy");
    taken.extend((0..QUORUM_WAITING_MAX).map(|_| world.propose(0)));
    assert!(taken.iter().all(|ticket| !world.ended.contains_key(ticket)), "they wait");
    let (refused, change) = (world.propose(0), world.change(0, MemberChange::AddLearner(id(1))));
    assert_eq!(world.ended[&refused], ProposalEnd::Busy);
    assert_eq!(world.ended[&change], ProposalEnd::Busy);
    world.run_for(20);
    world.assert_applied(&taken);
    let again = world.propose(0);
    world.run_for(20);
    world.assert_applied(&[again]);
    world.check_equal();
}

#[test]
fn a_leader_with_too_much_uncommitted_takes_more_once_a_majority_has_it() {
    let mut world = World::new(2, 3, 3);
    world.run_for(5000);
    let leader = world.leader().unwrap();
    world.cut_off(leader);
    let taken: Vec<Ticket> = (0..QUORUM_UNCOMMITTED_MAX).map(|_| world.propose(leader)).collect();
    world.run_for(20);
    assert!(taken.iter().all(|ticket| !world.ended.contains_key(ticket)), "nobody has them");
    let refused = world.propose(leader);
    world.run_for(20);
    assert_eq!(world.ended[&refused], ProposalEnd::Busy);
    world.cut.clear();
    world.run_for(HEARTBEAT_MS * 4);
    world.assert_applied(&taken);
    let again = world.propose(leader);
    world.run_for(HEARTBEAT_MS * 4);
    world.assert_applied(&[again]);
    assert_eq!(world.leader(), Some(leader));
    world.check_equal();
}
