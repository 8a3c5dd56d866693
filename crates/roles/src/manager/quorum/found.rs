//! The first start of a cluster: one manager, alone, agrees with itself on who the first servers are.
//!
//! # Invariant
//!
//! The founder's identity is written last. A directory without one belongs to no server: founding that was interrupted
//! begins anew there, with a new cluster's id.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use larder_env::rng::unique_u64;
use larder_env::{Disk, DiskError, RealDisk};
use larder_identity::{Authority, JoinToken};
use larder_protocol::limits::ELECTION_MS_MIN;
use larder_protocol::manager::state::{self, Applied, Command, NewServer, Outcome, Settings};
use larder_types::{ClusterId, ServerId};

use super::AUTHORITY_FILE;
use super::disk::{PATH, QuorumDisk};
use super::error::ManagerError;
use super::member::{Member, MemberEffect};
use super::tokens::{TokenBook, admission_of};
use crate::directory::LOCK_FILE;
use crate::identity::{IDENTITY_FILE, roles_of};
use crate::wire::ManagerReply;

/// The settings that a cluster is founded with.
#[derive(Debug, Clone)]
pub struct Founding {
    /// Its settings, for ever.
    pub settings: Settings,
    /// The founder: a manager.
    pub manager: NewServer,
    /// The other first servers.
    pub servers: Vec<NewServer>,
    /// The time at which their tokens expire, if ever.
    pub expires: Option<SystemTime>,
}

/// Founds a cluster in a directory, which is created if it is missing. It becomes the directory of the founder, which has the
/// id 0. Returns a token for each of the other servers, in their order: their ids follow the founder's. Blocks.
///
/// # Errors
/// [`ManagerError`]; the directory then belongs to no server.
pub fn found(dir: &Path, founding: Founding) -> Result<Vec<(ServerId, JoinToken)>, ManagerError> {
    let disk = Arc::new(RealDisk::create(dir)?);
    let _lock = disk.lock(LOCK_FILE)?;
    if dir.join(IDENTITY_FILE).exists() {
        return Err(ManagerError::Taken);
    }
    match disk.remove(PATH) {
        Ok(()) | Err(DiskError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let (cluster, me) = (ClusterId(unique_u64()), ServerId(0));
    let authority = Authority::create(cluster)?;
    authority.save(&dir.join(AUTHORITY_FILE))?;
    let mut founder = Founder::begin(disk.clone(), cluster, me)?;
    founder.agree(&Command::Found(state::ClusterId(cluster.0), founding.settings))?;
    let roles = roles_of(&founding.manager.roles);
    let first = founder.agree(&Command::AddServer(founding.manager, None))?;
    assert_eq!(first, Outcome::Server(me), "the first server of a cluster has its first id");

    let book = TokenBook::begin(disk);
    let mut tokens = Vec::new();
    for server in founding.servers {
        let roles = roles_of(&server.roles);
        let [add_token, add_server] = admission_of(server, founding.expires);
        let Outcome::Token(place) = founder.agree(&add_token)? else {
            unreachable!("a token gets an id")
        };
        let Outcome::Server(server) = founder.agree(&add_server)? else {
            unreachable!("a server gets an id")
        };
        let fingerprint = authority.fingerprint();
        tokens.push((server, book.add(fingerprint, (server, roles), place, founding.expires)?));
    }
    book.save(founder.member.map())?;
    authority.identity(me, roles)?.save(&dir.join(IDENTITY_FILE))?;
    tracing::info!(cluster = format!("{:016x}", cluster.0), "the cluster was created");
    Ok(tokens)
}

/// A manager that is alone. Its clock is set by hand, since there is no other manager to wait for.
pub(crate) struct Founder {
    member: Member<()>,
}

impl Founder {
    pub(crate) fn begin(
        disk: Arc<dyn Disk>,
        cluster: ClusterId,
        me: ServerId,
    ) -> Result<Self, ManagerError> {
        let disk = QuorumDisk::make(disk, cluster, me)?;
        let mut member = Member::found(me, disk, 0, 0)?;
        // It votes for itself at the latest when its first election timeout is over.
        for now_ms in [0, 2 * ELECTION_MS_MIN] {
            member.set_now(now_ms);
            member.tick()?;
            member.write()?;
        }
        assert!(member.leads(), "one that is alone leads");
        Ok(Self { member })
    }

    pub(crate) fn agree(&mut self, command: &Command) -> Result<Outcome, ManagerError> {
        self.member.propose(command, ())?;
        self.member.write()?;
        let answers = self.member.effects().filter_map(|effect| match effect {
            MemberEffect::Answer((), ManagerReply::Applied(applied)) => Some(applied),
            _ => None,
        });
        let applied: Option<Applied> = answers.last();
        Ok(applied.expect("one that is alone agrees at once")?)
    }
}
