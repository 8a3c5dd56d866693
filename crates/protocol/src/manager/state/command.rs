//! Commands of the topology map: what they ask for, what they answer, and why they are refused. They are stored in
//! the quorum's log: a variant is never changed or moved, new ones go to the end.

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

/// A server that wants to join, or is made by the founder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewServer {
    /// As its operator calls it.
    pub name: String,
    /// The roles of the server.
    pub roles: BTreeSet<ServerRole>,
    /// Where it listens.
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
    /// Give a server an id. With a token's hash and the time since 1970 at the leader; without for the founder.
    AddServer(NewServer, Option<([u8; 32], u64)>),
    /// A server began a run, with these addresses. With each of its PGs, the view of the last op that it has;
    /// `None` if its log or index is not whole.
    ServerStarted(ServerId, BootId, Vec<String>, Vec<(PgId, Option<View>)>),
    /// A server does not answer in this run.
    ServerDown(ServerId, BootId),
    /// Change a server's share.
    SetWeight(ServerId, Weight),
    /// Begin or end to move away what a server has.
    SetDraining(ServerId, bool),
    /// A server is gone for good.
    RemoveServer(ServerId),
    /// A server has another disk, with this many PVs.
    AddDisk(ServerId, Weight, u32),
    /// Begin or end to move away what a disk has.
    SetDiskDraining(ServerId, DiskId, bool),
    /// A disk is gone for good.
    RemoveDisk(ServerId, DiskId),
    /// Set the members that PGs ought to have.
    Retarget(Vec<(PgId, Vec<ServerId>)>),
    /// Have a server follow a PG without counting.
    AddLearner(PgId, ServerId),
    /// Let it go.
    DropLearner(PgId, ServerId),
    /// Begin the view after this one, with these members, primary first.
    BeginView(PgId, View, Vec<ServerId>),
    /// An op of the view is durable on all its members: they are levelled and synced.
    ViewActivated(PgId, View),
    /// Draw an LV for a PG, a replica on each of these disks.
    CreateLv(PgId, Vec<(ServerId, DiskId)>),
    /// All PVs of an LV are there.
    LvCreated(LvId),
    /// Has an LV take writes, or none.
    SetLvReadOnly(LvId, bool),
    /// Fill another replica of an LV.
    AddReplica(LvId, ServerId, DiskId),
    /// A replica holds all that METAX says.
    ReplicaCurrent(LvId, u8),
    /// No METAX names a replica any more, in whatever view. It is read from older logs; [`Command::DropVacated`] is
    /// what is proposed.
    DropReplica(LvId, u8),
    /// A proxy began a session.
    OpenSession(SessionId, ServerId, BootId),
    /// A session is over.
    CloseSession(SessionId),
    /// Make a bucket, at this time since 1970.
    CreateBucket(BucketName, Option<String>, u64),
    /// Mark a bucket as deleting, under a new epoch.
    BeginDeletion(BucketName),
    /// As [`Command::EndDeletionOf`], of whatever bucket has that name and a mark of that epoch. It is read from older
    /// logs, and proposed while managers are there that know no other.
    EndDeletion(BucketName, Epoch, bool),
    /// Make a join token with this hash that expires at this time since 1970.
    AddToken([u8; 32], u64),
    /// Call a join token back.
    RevokeToken(TokenId),
    /// No METAX names a replica any more, as the primary of this view said: it has no effect in another, whose
    /// primary may have heard nothing of it.
    DropVacated(LvId, u8, View),
    /// Set how many copies a bucket's puts wait for.
    SetWritePolicy(BucketName, WritePolicy),
    /// A member of this view has other rows than the others: it may not lead, and is levelled anew.
    MemberLacks(PgId, View, ServerId),
    /// Remove the join tokens that are revoked, or expired at this time since 1970: they make room for others.
    ForgetTokens(u64),
    /// Remove this bucket of this name, marked under this epoch, if it was found empty; else make it live again. One
    /// of that name that was made later stays as it is, whatever its epoch.
    EndDeletionOf(BucketId, BucketName, Epoch, bool),
    /// The cluster is this one among several regions, from now on and for ever. It is read from older logs;
    /// [`Command::ClaimGateway`] is what is proposed.
    SetRegion(RegionRecord),
    /// As [`Command::SetRegion`]; and this proxy speaks with the other regions, unless another does whose session is open.
    ClaimGateway(RegionRecord, GatewayRecord),
    /// Keep the list of regions, of this gateway. The number grows with what the list knows: one that knows less came late.
    KeepRegions(GatewayRecord, u32, Vec<u8>),
    /// Set how many regions must have a bucket's changes before they are answered, this one among them.
    SetRegions(BucketName, u8),
    /// As [`Command::BeginDeletion`], in a cluster that is a region: its bucket is deleted once all regions have closed it.
    CloseBucket(BucketName),
    /// Remove this bucket of this name, closed under this epoch: this gateway says that all regions have closed it.
    DeleteClosed(GatewayRecord, BucketId, BucketName, Epoch),
    /// Set a bucket's home, if it is still the expected one: this gateway has agreed on it with other regions.
    SetHome(GatewayRecord, BucketName, Option<Home>, Home),
    /// As [`Command::CreateBucket`], of a bucket that another region has, with the home that it has there.
    AdoptBucket(GatewayRecord, BucketName, u64, Home),
    /// Make a bucket local to this region, and make it at this time since 1970 if it is not there; or begin to share it.
    SetLocal(BucketName, bool, u64),
    /// Go on to this step of sharing, of a bucket as it is under this epoch: this gateway has seen to the step before.
    ShareBucket(GatewayRecord, BucketId, BucketName, Epoch, Sharing),
    /// Let no further volume begin to move for balance, from this time since 1970 on; or let them again.
    PauseBalance(Option<u64>),
    /// Set a bucket's CORS rules, or remove them.
    SetCors(BucketName, Option<CorsRules>),
    /// Raise [`Topology::cluster_version`](super::Topology::cluster_version) to this: all servers speak it.
    RaiseClusterVersion(u8),
    /// Make these root's keys, if those are still of this generation.
    RotateRoot(u32, KeyPair, Keep),
    /// Have root's keys before the current ones taken no more, if these are of this generation.
    RetireRoot(u32),
    /// Begin the timeline with this id, which was drawn: the first command of a manager that leads.
    BeginTimeline(u64),
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It was so already; nothing changed.
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
    /// The bucket's record now, without CORS rules: nobody who asks needs them, and an answer stays short.
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
    /// Give up: it is founded.
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
    /// Look again: the server is in another run.
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
    /// Look again: the PG is in another view.
    #[error("the placement group is in another view")]
    OtherView,
    /// Fix the request: members are distinct, known, and members or learners of the view before.
    #[error("these cannot be the members")]
    BadMembers,
    /// Fix the request: only a qualified member leads.
    #[error("the primary is not a qualified member")]
    NotQualified,
    /// Move things first: a PG or LV would have nobody who has its content.
    #[error("the last that has what it holds")]
    LastCopy,
    /// Fix the request.
    #[error("there is no such volume or replica, or it is not in that state")]
    NoSuchLv,
    /// Fix the request: replicas lie on distinct disks, and there are enough and not too many.
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
    /// Look again: the bucket's record changed since.
    #[error("the bucket's record changed since")]
    OtherEpoch,
    /// Give up: there are as many as there may be.
    #[error("there are as many as there may be")]
    TooMany,
    /// Fix the request.
    #[error("there is no such token")]
    NoSuchToken,
    /// Give up: the server has begun another run since.
    #[error("the server has begun another run since")]
    RunEnded,
    /// Move things first: a PG would have too few members to go on.
    #[error("a placement group would have fewer members than it needs")]
    TooFewMembers,
    /// Bring other managers up first.
    #[error("the managers that stay would have no majority that is up")]
    NoMajority,
    /// Fix the request: no volume has as many copies.
    #[error("the cluster keeps fewer copies than that")]
    TooManyCopies,
    /// Give up: its objects have the stamps of that region, and would be another's.
    #[error("the cluster is another region for ever")]
    OtherRegion,
    /// Fix the request: numbers begin with 1.
    #[error("no region has that number")]
    NoSuchRegion,
    /// Close it instead: another region would make the bucket again.
    #[error(
        "a bucket of a cluster that is a region is deleted in all regions, by a proxy of this release"
    )]
    InRegion,
    /// Stop the other one first: what both do at once would undo itself.
    #[error("another proxy is the gateway to the other regions, and is not known to have ended")]
    OtherGateway,
    /// Look again: a list that knows more is kept.
    #[error("a list of regions that knows more is kept already")]
    OlderList,
    /// Claim it first.
    #[error("this run of this proxy is not the gateway to the other regions")]
    NoGateway,
    /// Fix the request, or form regions first.
    #[error(
        "a change waits for 1 to {BUCKET_REGIONS_MAX} regions, and the cluster is one of several"
    )]
    BadRegions,
    /// Mark it for deletion instead: no other region has it.
    #[error("the cluster is no region")]
    NotInRegion,
    /// Look again.
    #[error(transparent)]
    Home(#[from] HomeNotSet),
    /// As it says.
    #[error(transparent)]
    NotShared(#[from] NotShared),
    /// Give the home up first: another region may have it still.
    #[error("the bucket has a home region")]
    HasHome,
    /// Fix the request, or shorten the rules of other buckets.
    #[error("the CORS rules of all buckets have at most {CORS_ALL_BYTES_MAX} bytes together")]
    TooMuchCors,
    /// Look again: another change came before.
    #[error("root's keys were changed meanwhile")]
    RootChanged,
    /// Retire the keys before first: clients may still sign with them.
    #[error("root's keys before these are still taken: retire them first")]
    RootNotRetired,
    /// Fix the request.
    #[error(
        "these cannot be root's keys: requests could not be signed with them, or their access key is the one before"
    )]
    BadKeys,
}

/// The result of a command, or the reason for which it changed nothing.
pub type Applied = Result<Outcome, Refusal>;

/// Returns the outcome of a command by whether it changed anything.
pub(super) fn changed(changed: bool) -> Applied {
    Ok(if changed { Outcome::Done } else { Outcome::Already })
}
