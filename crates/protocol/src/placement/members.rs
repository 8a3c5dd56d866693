//! Members of PGs: which meta servers ought to be members (target), and the next single step from the acting
//! members towards them.
//!
//! # Invariants
//!
//! 1. A member that works is removed only when as many qualified members as the rules want remain.
//! 2. No step leaves fewer than `min_members`, or a primary that is not qualified.
//! 3. One learner at a time in a PG: a step is proposed only when the one before has come to rest.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::{PgId, ServerId};

use super::domains::{Choice, FailureDomains, Leaf, spread};
use super::straw::{Weight, hash};

/// The extent to which a server or disk counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlacementState {
    /// It takes what is new.
    In,
    /// It does not answer for now: it keeps what it has and takes nothing.
    Away,
    /// It drains, or has been away for too long: what it has goes elsewhere.
    Out,
}

/// A server with the meta role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaServer {
    /// The server.
    pub server: ServerId,
    /// Where it is.
    pub domains: FailureDomains,
    /// Its share.
    pub weight: Weight,
    /// The extent to which it counts.
    pub placement_state: PlacementState,
}

/// The number of members of a PG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupRules {
    /// Members that each PG is to have, its primary included.
    pub members: usize,
    /// Least members with which a PG acknowledges; at most `members`.
    pub min_members: usize,
}

/// A PG as it is.
#[derive(Debug, Clone, Copy)]
pub struct ActingPg<'a> {
    /// Members, primary first.
    pub members: &'a [ServerId],
    /// Members that may lead.
    pub qualified: &'a BTreeSet<ServerId>,
    /// Learners, and whether each has caught up.
    pub learners: &'a BTreeMap<ServerId, bool>,
}

/// One step of one PG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PgStep {
    /// Have a server copy and follow the PG, without counting.
    AddLearner(ServerId),
    /// Let one go that is not wanted any more.
    DropLearner(ServerId),
    /// Begin a view with this learner in it.
    Admit(ServerId),
    /// Begin a view without this member.
    Remove(ServerId),
    /// Begin a view that this member leads.
    Lead(ServerId),
}

const PG_SEED: u64 = 0x5047;

/// Members that a PG ought to have, the one that ought to lead first. Servers that are out are left out.
#[must_use]
pub fn target_members(pg: PgId, servers: &[MetaServer], rules: GroupRules) -> Choice {
    let counted = servers.iter().filter(|server| server.placement_state != PlacementState::Out);
    let leaves: Vec<Leaf> = counted
        .map(|server| Leaf { id: server.server.0, domains: server.domains, weight: server.weight })
        .collect();
    spread(hash(PG_SEED, &[u64::from(pg.0)]), &leaves, rules.members)
}

/// The next step of a PG towards its target, if there is one to take now.
#[must_use]
pub fn next_step(
    acting: ActingPg<'_>,
    target: &[ServerId],
    placement_state: impl Fn(ServerId) -> PlacementState,
    rules: GroupRules,
) -> Option<PgStep> {
    let ActingPg { members, qualified, learners } = acting;
    let is_in = |server: ServerId| placement_state(server) == PlacementState::In;
    let is_surplus = |server: &ServerId| !target.contains(server);
    if let Some((&server, _)) = learners.iter().find(|(s, _)| is_surplus(s) || !is_in(**s)) {
        return Some(PgStep::DropLearner(server));
    }
    if let Some((&server, _)) = learners.iter().find(|(_, caught_up)| **caught_up) {
        return Some(PgStep::Admit(server));
    }
    // A view that is not activated yet is a step under way.
    if !learners.is_empty() || members.iter().any(|member| !qualified.contains(member)) {
        return None;
    }
    let missing = target.iter().find(|server| !members.contains(server) && is_in(**server));
    let surplus: Vec<ServerId> = members.iter().copied().filter(is_surplus).collect();
    let may_shrink = members.len() > rules.members.max(rules.min_members);
    // One that is out goes before one that is merely not wanted here, the primary last.
    let going = surplus.iter().max_by_key(|s| (placement_state(**s), **s != members[0], **s));
    if let Some(&going) = going
        && may_shrink
    {
        if going != members[0] {
            return Some(PgStep::Remove(going));
        }
        let leads = target.iter().find(|s| qualified.contains(s) && is_in(**s));
        return leads.map(|server| PgStep::Lead(*server));
    }
    if members.len() < rules.members || !surplus.is_empty() {
        return missing.map(|server| PgStep::AddLearner(*server));
    }
    None
}

/// PGs that another qualified member should lead, so that each server leads its share; at most `limit`, the
/// most useful first.
#[must_use]
pub fn balance_primaries(
    groups: &[(PgId, ActingPg<'_>)],
    servers: &[MetaServer],
    limit: usize,
) -> Vec<(PgId, ServerId)> {
    let shares: BTreeMap<ServerId, i128> = servers
        .iter()
        .filter(|server| server.placement_state == PlacementState::In && server.weight > Weight(0))
        .map(|server| (server.server, i128::from(server.weight.0)))
        .collect();
    let whole: i128 = shares.values().sum();
    let led = groups.iter().filter(|(_, pg)| shares.contains_key(&pg.members[0])).count() as i128;
    // The groups that each leads beyond its share, times `whole`.
    let mut excess: BTreeMap<ServerId, i128> =
        shares.iter().map(|(server, share)| (*server, -share * led)).collect();
    for (_, pg) in groups {
        excess.entry(pg.members[0]).and_modify(|excess| *excess += whole);
    }
    let mut moves: Vec<(PgId, ServerId)> = Vec::new();
    let mut moved = BTreeSet::new();
    while moves.len() < limit {
        let gains = groups.iter().filter(|(id, _)| !moved.contains(id)).flat_map(|(id, pg)| {
            let others = pg.members[1..].iter().filter(|s| pg.qualified.contains(s));
            let from = excess.get(&pg.members[0]).copied();
            let excess = &excess;
            others.filter_map(move |to| Some((from? - excess.get(to)?, *id, pg.members[0], *to)))
        });
        let best = gains.max_by_key(|(gain, id, _, to)| (*gain, std::cmp::Reverse((*id, *to))));
        // A smaller difference would only be turned round.
        let Some((_, id, from, to)) = best.filter(|(gain, ..)| *gain >= 2 * whole) else { break };
        *excess.entry(from).or_default() -= whole;
        *excess.entry(to).or_default() += whole;
        moved.insert(id);
        moves.push((id, to));
    }
    moves
}
