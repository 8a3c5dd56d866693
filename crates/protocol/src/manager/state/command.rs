//! Commands of the topology map, their outcomes and refusals. They are stored in
//! the quorum's log: a variant is never changed or moved, and new ones go to the end.

use std::collections::BTreeSet;

use larder_types::limits::CORS_ALL_BYTES_MAX;
use larder_types::{
    BootId, BucketId, BucketName, BucketRecord, CorsRules, DiskId, Epoch, Home, HomeNotSet, LvId,
    NotShared, PgId, ServerId, SessionId, Sharing, View, WritePolicy,
};
use serde::{Deserialize, Serialize};

use super::map::{ClusterId, GatewayRecord, RegionRecord, ServerRole, Settings, TokenId};
use super::root::{Keep, KeyPair};
use crate::limits::BUCKET_REGIONS_MAX;
use crate::placement::{FailureDomains, Weight};

/// A server to be added: one that is to join, or the founder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewServer {
    /// Its operator's name for it.
    pub name: String,
    /// The roles of the server.
    pub roles: BTreeSet<ServerRole>,
    /// The addresses at which it listens.
    pub addresses: Vec<String>,
    /// The domains that fail together with it.
    pub domains: FailureDomains,
    /// Its share of the PGs.
    pub weight: Weight,
}

/// A change of the map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Found the cluster; the first command.
    Found(ClusterId, Settings),
    /// Give a server an id. With a token's random bytes and the time since 1970 by the clock of the manager that issues the
    /// token; `None` for the founder.
    AddServer(NewServer, Option<([u8; 32], u64)>),
    /// A server began a run, with these addresses. With each of its PGs, the view of the last op that it has;
    /// `None` if its log or index is not whole.
    ServerStarted(ServerId, BootId, Vec<String>, Vec<(PgId, Option<View>)>),
    /// A server no longer answers in this run.
    ServerDown(ServerId, BootId),
    /// Change a server's weight.
    SetWeight(ServerId, Weight),
    /// Begin or end the drain of a server.
    SetDraining(ServerId, bool),
    /// Remove a server for good.
    RemoveServer(ServerId),
    /// A server has another disk, with this many PVs.
    AddDisk(ServerId, Weight, u32),
    /// Begin or end the drain of a disk.
    SetDiskDraining(ServerId, DiskId, bool),
    /// Remove a disk for good.
    RemoveDisk(ServerId, DiskId),
    /// Set the target members of PGs.
    Retarget(Vec<(PgId, Vec<ServerId>)>),
    /// Make a server a learner of a PG.
    AddLearner(PgId, ServerId),
    /// End a server's being a learner of a PG.
    DropLearner(PgId, ServerId),
    /// Begin the view after this one, with these members, primary first.
    BeginView(PgId, View, Vec<ServerId>),
    /// An op of the view is durable on all its members: they are levelled and synced.
    ViewActivated(PgId, View),
    /// Draw an LV for a PG, a replica on each of these disks.
    CreateLv(PgId, Vec<(ServerId, DiskId)>),
    /// All PVs of an LV are created.
    LvCreated(LvId),
    /// Have an LV take no writes, or take them again.
    SetLvReadOnly(LvId, bool),
    /// Give an LV another replica, which is to be rebuilt.
    AddReplica(LvId, ServerId, DiskId),
    /// A replica has all chunks of the LV that METAX names.
    ReplicaCurrent(LvId, u8),
    /// No METAX names a replica any more; applies in any view. It is only read from older logs: managers propose
    /// [`Command::DropVacated`] instead.
    DropReplica(LvId, u8),
    /// A proxy began a session.
    OpenSession(SessionId, ServerId, BootId),
    /// A session is over.
    CloseSession(SessionId),
    /// Make a bucket, at this time since 1970.
    CreateBucket(BucketName, Option<String>, u64),
    /// Mark a bucket as deleting, under a new epoch.
    BeginDeletion(BucketName),
    /// As [`Command::EndDeletionOf`], of any bucket with that name that is marked under that epoch. It is read from older
    /// logs, and proposed while there are managers that do not know the other command.
    EndDeletion(BucketName, Epoch, bool),
    /// Add a join token with these random bytes, which expires at this time since 1970.
    AddToken([u8; 32], u64),
    /// Revoke a join token.
    RevokeToken(TokenId),
    /// No METAX names a replica any more, as the primary of this view said. It has no effect in another view, whose
    /// primary may know nothing of it.
    DropVacated(LvId, u8, View),
    /// Set a bucket's write policy.
    SetWritePolicy(BucketName, WritePolicy),
    /// The rows of a member of this view differ from those of the others: it may not lead, and is levelled anew.
    MemberLacks(PgId, View, ServerId),
    /// Remove the join tokens that are revoked, or had expired at this time since 1970, to make room for others.
    ForgetTokens(u64),
    /// Remove the bucket with this id and name, marked under this epoch, if it was found empty; else make it live again. A
    /// bucket of that name that was made later stays as it is.
    EndDeletionOf(BucketId, BucketName, Epoch, bool),
    /// Make the cluster this region, for ever. It is only read from older logs: proxies propose
    /// [`Command::ClaimGateway`] instead.
    SetRegion(RegionRecord),
    /// As [`Command::SetRegion`], and make this proxy the gateway, unless another one is whose session is open.
    ClaimGateway(RegionRecord, GatewayRecord),
    /// Keep this gateway's list of regions. The number grows with the list's content: a list with a lower one came late.
    KeepRegions(GatewayRecord, u32, Vec<u8>),
    /// Set how many regions must have a bucket's changes before they are answered, this one among them.
    SetRegions(BucketName, u8),
    /// As [`Command::BeginDeletion`], in a cluster that is a region: the bucket is deleted once all regions have closed it.
    CloseBucket(BucketName),
    /// Remove the bucket with this id and name, closed under this epoch: this gateway says that all regions have closed it.
    DeleteClosed(GatewayRecord, BucketId, BucketName, Epoch),
    /// Set a bucket's home, if it is still the expected one: this gateway has agreed on it with other regions.
    SetHome(GatewayRecord, BucketName, Option<Home>, Home),
    /// As [`Command::CreateBucket`], for a bucket that another region has, with the home that it has there.
    AdoptBucket(GatewayRecord, BucketName, u64, Home),
    /// Make a bucket local to this region, and create it at this time since 1970 if there is none; or begin to share it.
    SetLocal(BucketName, bool, u64),
    /// Take this step of sharing a bucket, if it has this id and epoch: this gateway has completed the step before.
    ShareBucket(GatewayRecord, BucketId, BucketName, Epoch, Sharing),
    /// Pause moves of volumes for balance, at this time since 1970; or let them begin again.
    PauseBalance(Option<u64>),
    /// Set a bucket's CORS rules, or remove them.
    SetCors(BucketName, Option<CorsRules>),
    /// Raise [`Topology::cluster_version`](super::Topology::cluster_version) to this: all servers speak it.
    RaiseClusterVersion(u8),
    /// Make these keys root's, if root's present ones are of this generation.
    RotateRoot(u32, KeyPair, Keep),
    /// End the validity of root's previous keys, if the present ones are of this generation.
    RetireRoot(u32),
    /// Begin the timeline with this id, which the leader drew: the first command of a manager that leads.
    BeginTimeline(u64),
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It changed the map.
    Done,
    /// It had nothing to change.
    Already,
    /// The server has this id.
    Server(ServerId),
    /// The disk has this id.
    Disk(DiskId),
    /// The PG has this view.
    View(PgId, View),
    /// The LV has this id.
    Lv(LvId),
    /// The replica has this index.
    Replica(LvId, u8),
    /// The bucket's record now, without CORS rules: no proposer needs them, and the answer stays short.
    Bucket(Box<BucketRecord>),
    /// The bucket is gone.
    BucketGone(BucketId),
    /// The token has this id.
    Token(TokenId),
}

/// The reason for which a command changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// Found the cluster first.
    #[error("the cluster is not founded yet")]
    NotFounded,
    /// Give up: it is founded already.
    #[error("the cluster is founded already")]
    Founded,
    /// Fix the request.
    #[error("the settings contradict themselves")]
    BadSettings,
    /// Fix the request.
    #[error("there is no such server, or not with that role")]
    NoSuchServer,
    /// Give up: a server that was removed never comes back; join anew.
    #[error("the server was removed for good")]
    ServerRemoved,
    /// Read the map again: the server is in another run.
    #[error("the server is in another run")]
    OtherBoot,
    /// Fix the request.
    #[error("another server has that name")]
    NameTaken,
    /// Ask for another token.
    #[error("the join token is unknown, expired or revoked")]
    BadToken,
    /// Fix the request.
    #[error("there is no such disk")]
    NoSuchDisk,
    /// Fix the request.
    #[error("there is no such placement group")]
    NoSuchPg,
    /// Read the map again: the PG is in another view.
    #[error("the placement group is in another view")]
    OtherView,
    /// Fix the request: members are distinct, known, and members or learners of the view before.
    #[error("these cannot be the members")]
    BadMembers,
    /// Fix the request: only a qualified member leads.
    #[error("the primary is not a qualified member")]
    NotQualified,
    /// Move data first: a PG or LV would have no member or replica that has its content.
    #[error("the last that has what it holds")]
    LastCopy,
    /// Fix the request.
    #[error("there is no such volume or replica, or it is not in that state")]
    NoSuchLv,
    /// Fix the request: replicas must be on distinct disks, and neither too few nor too many.
    #[error("these cannot be the replicas")]
    BadReplicas,
    /// Choose another disk.
    #[error("the disk has no room or takes nothing")]
    DiskFull,
    /// Give up: the session was closed.
    #[error("the session is over")]
    SessionClosed,
    /// Fix the request.
    #[error("the bucket exists already")]
    BucketExists,
    /// Fix the request.
    #[error("the bucket does not exist")]
    NoSuchBucket,
    /// Read the map again: the bucket's record has changed.
    #[error("the bucket's record changed since")]
    OtherEpoch,
    /// Give up: a limit is reached.
    #[error("there are as many as there may be")]
    TooMany,
    /// Fix the request.
    #[error("there is no such token")]
    NoSuchToken,
    /// Give up: the server has begun another run since.
    #[error("the server has begun another run since")]
    RunEnded,
    /// Move members first: a PG would have too few for another view.
    #[error("a placement group would have fewer members than it needs")]
    TooFewMembers,
    /// Bring other managers up first.
    #[error("the managers that stay would have no majority that is up")]
    NoMajority,
    /// Fix the request: no volume has as many copies.
    #[error("the cluster keeps fewer copies than that")]
    TooManyCopies,
    /// Give up: its objects have stamps of the region that it is.
    #[error("the cluster is another region for ever")]
    OtherRegion,
    /// Fix the request: numbers begin with 1.
    #[error("no region has that number")]
    NoSuchRegion,
    /// Propose [`Command::CloseBucket`] instead: another region would make the bucket again.
    #[error(
        "a bucket of a cluster that is a region is deleted in all regions, by a proxy of this release"
    )]
    InRegion,
    /// Stop the other gateway first: two at once would undo each other's work.
    #[error("another proxy is the gateway to the other regions, and is not known to have ended")]
    OtherGateway,
    /// Read the map again: it has a later list.
    #[error("a newer list of regions is stored already")]
    OlderList,
    /// Propose [`Command::ClaimGateway`] first.
    #[error("this run of this proxy is not the gateway to the other regions")]
    NoGateway,
    /// Fix the request, or form regions first.
    #[error(
        "a change waits for 1 to {BUCKET_REGIONS_MAX} regions, and the cluster is one of several"
    )]
    BadRegions,
    /// Propose [`Command::BeginDeletion`] instead: there is no other region.
    #[error("the cluster is no region")]
    NotInRegion,
    /// Read the bucket's record again: its home has changed.
    #[error(transparent)]
    Home(#[from] HomeNotSet),
    /// Do what the error says first.
    #[error(transparent)]
    NotShared(#[from] NotShared),
    /// Give up the home first: other regions may still have the bucket.
    #[error("the bucket has a home region")]
    HasHome,
    /// Fix the request, or shorten the rules of other buckets.
    #[error("the CORS rules of all buckets have at most {CORS_ALL_BYTES_MAX} bytes together")]
    TooMuchCors,
    /// Read the map again: another change came first.
    #[error("root's keys were changed meanwhile")]
    RootChanged,
    /// Retire the previous keys first: clients may still sign with them.
    #[error("root's earlier keys are still valid: retire them first")]
    RootNotRetired,
    /// Fix the request.
    #[error(
        "these cannot be root's keys: requests could not be signed with them, or their access key is the one before"
    )]
    BadKeys,
}

/// The result of a command, or the reason for which it changed nothing.
pub type Applied = Result<Outcome, Refusal>;

/// The outcome of a command that changed something, or of one that had nothing to change.
pub(super) fn changed(changed: bool) -> Applied {
    Ok(if changed { Outcome::Done } else { Outcome::Already })
}
