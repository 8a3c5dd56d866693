//! Commands about sessions, buckets, join tokens, and the cluster's region and gateway.

use larder_types::bucket::{BucketRecord, BucketState, Sharing, WritePolicy};
use larder_types::limits::BUCKETS_MAX;
use larder_types::{
    BootId, BucketId, BucketName, CorsRules, Epoch, Home, RegionId, ServerId, SessionId, cors,
};

use super::command::{Applied, Outcome, Refusal, changed};
use super::map::{
    GatewayRecord, RegionRecord, ServerRole, SessionRecord, TokenId, TokenRecord, Topology,
};
use crate::limits::{
    BUCKET_REGIONS_MAX, CLOSED_SESSIONS_MAX, REGION_LIST_BYTES_MAX, SESSIONS_MAX, TOKENS_MAX,
};

impl Topology {
    pub(super) fn set_region(&mut self, region: RegionRecord) -> Applied {
        if region.number == RegionId::OWN {
            return Err(Refusal::NoSuchRegion);
        }
        match self.region {
            Some(known) if known == region => Ok(Outcome::Already),
            Some(_) => Err(Refusal::OtherRegion),
            None => {
                self.region = Some(region);
                Ok(Outcome::Done)
            }
        }
    }

    /// There is one gateway at a time. Once the sessions of one are closed its calls are refused, so another may begin.
    pub(super) fn claim_gateway(
        &mut self,
        region: RegionRecord,
        gateway: GatewayRecord,
    ) -> Applied {
        if !self.has_role(gateway.server, ServerRole::Proxy) {
            return Err(Refusal::NoSuchServer);
        }
        if self.server_mut(gateway.server)?.boot != gateway.boot {
            return Err(Refusal::OtherBoot);
        }
        self.set_region(region)?;
        match self.gateway {
            Some(known) if known == gateway => Ok(Outcome::Already),
            Some(known) if self.has_session_of(known) => Err(Refusal::OtherGateway),
            _ => {
                self.gateway = Some(gateway);
                Ok(Outcome::Done)
            }
        }
    }

    pub(super) fn keep_regions(
        &mut self,
        gateway: GatewayRecord,
        known: u32,
        list: Vec<u8>,
    ) -> Applied {
        if self.gateway != Some(gateway) {
            return Err(Refusal::NoGateway);
        }
        if list.len() > REGION_LIST_BYTES_MAX {
            return Err(Refusal::TooMany);
        }
        if known < self.regions_known {
            return Err(Refusal::OlderList);
        }
        let outcome = changed(self.regions != list);
        (self.regions, self.regions_known) = (list, known);
        outcome
    }

    pub(super) fn open_session(
        &mut self,
        session: SessionId,
        server: ServerId,
        boot: BootId,
    ) -> Applied {
        if self.closed.iter().any(|(_, closed)| *closed == session) {
            return Err(Refusal::SessionClosed);
        }
        if !self.has_role(server, ServerRole::Proxy) {
            return Err(Refusal::NoSuchServer);
        }
        if self.server_mut(server)?.boot != boot {
            return Err(Refusal::OtherBoot);
        }
        let record = SessionRecord { server, boot };
        match self.sessions.get(&session) {
            Some(known) if *known == record => return Ok(Outcome::Already),
            Some(_) => return Err(Refusal::SessionClosed),
            None if self.sessions.len() >= SESSIONS_MAX => return Err(Refusal::TooMany),
            None => {}
        }
        self.sessions.insert(session, record);
        Ok(Outcome::Done)
    }

    /// Closes a session, and returns true if it was open.
    pub(super) fn close_session(&mut self, session: SessionId) -> bool {
        if self.sessions.remove(&session).is_none() {
            return false;
        }
        self.closed.insert((self.next_version(), session));
        if self.closed.len() > CLOSED_SESSIONS_MAX {
            self.closed.pop_first();
        }
        true
    }

    pub(super) fn create_bucket(
        &mut self,
        name: BucketName,
        location: Option<String>,
        created_ms: u64,
    ) -> Applied {
        if self.buckets.contains_key(&name) {
            return Err(Refusal::BucketExists);
        }
        if self.buckets.len() >= BUCKETS_MAX {
            return Err(Refusal::TooMany);
        }
        // The first bucket has the id 1, as in a single node's map.
        let id = BucketId(self.next.bucket.0 + 1);
        self.next.bucket = id;
        let record = BucketRecord { location, ..BucketRecord::new(id, name.clone(), created_ms) };
        self.buckets.insert(name, record.clone());
        Ok(Outcome::Bucket(Box::new(record)))
    }

    /// Its epoch stays: each put carries the policy that it follows.
    pub(super) fn set_write_policy(&mut self, name: &BucketName, policy: WritePolicy) -> Applied {
        if policy.required_copies(self.settings().copies) > self.settings().copies {
            return Err(Refusal::TooManyCopies);
        }
        let record = self.buckets.get_mut(name).ok_or(Refusal::NoSuchBucket)?;
        if std::mem::replace(&mut record.write_policy, policy) == policy {
            return Ok(Outcome::Already);
        }
        Ok(bucket_outcome(record))
    }

    /// Its epoch stays: the rules do not decide how objects are stored.
    pub(super) fn set_cors(&mut self, name: &BucketName, rules: Option<CorsRules>) -> Applied {
        if !self.buckets.contains_key(name) {
            return Err(Refusal::NoSuchBucket);
        }
        let others = self.buckets.values().filter(|record| record.name != *name);
        let others = others.filter_map(|record| record.cors.as_ref());
        if rules.as_ref().is_some_and(|rules| !cors::fit(rules, others)) {
            return Err(Refusal::TooMuchCors);
        }
        let record = self.buckets.get_mut(name).ok_or(Refusal::NoSuchBucket)?;
        if record.cors == rules {
            return Ok(Outcome::Already);
        }
        record.cors = rules;
        Ok(bucket_outcome(record))
    }

    /// Its epoch stays: a proxy waits for the regions after the put.
    pub(super) fn set_regions(&mut self, name: &BucketName, regions: u8) -> Applied {
        if self.region.is_none() || !(1..=BUCKET_REGIONS_MAX).contains(&regions) {
            return Err(Refusal::BadRegions);
        }
        let record = self.buckets.get_mut(name).ok_or(Refusal::NoSuchBucket)?;
        if std::mem::replace(&mut record.regions, regions) == regions {
            return Ok(Outcome::Already);
        }
        Ok(bucket_outcome(record))
    }

    /// Refuses a former gateway, which may not know that another has taken its place.
    pub(super) fn set_home(
        &mut self,
        gateway: GatewayRecord,
        name: &BucketName,
        (expected, next): (Option<Home>, Home),
    ) -> Applied {
        if self.gateway != Some(gateway) {
            return Err(Refusal::NoGateway);
        }
        let record = self.buckets.get_mut(name).ok_or(Refusal::NoSuchBucket)?;
        record.set_home(expected, next)?;
        Ok(bucket_outcome(record))
    }

    pub(super) fn adopt_bucket(
        &mut self,
        gateway: GatewayRecord,
        name: BucketName,
        (created_ms, home): (u64, Home),
    ) -> Applied {
        if self.gateway != Some(gateway) {
            return Err(Refusal::NoGateway);
        }
        self.create_bucket(name.clone(), None, created_ms)?;
        let record = self.buckets.get_mut(&name).expect("it was made");
        record.home = Some(home);
        Ok(bucket_outcome(record))
    }

    /// A bucket that is to be local from the beginning is created so: other regions never learn of it.
    pub(super) fn set_local(&mut self, name: BucketName, is_local: bool, now_ms: u64) -> Applied {
        if self.region.is_none() {
            return Err(Refusal::NotInRegion);
        }
        if is_local && !self.buckets.contains_key(&name) {
            self.create_bucket(name.clone(), None, now_ms)?;
        }
        let record = self.buckets.get_mut(&name).ok_or(Refusal::NoSuchBucket)?;
        if !record.set_local(is_local)? {
            return Ok(Outcome::Already);
        }
        Ok(bucket_outcome(record))
    }

    /// Refuses a former gateway: regions that it asked may have answered another one since.
    pub(super) fn share_bucket(
        &mut self,
        gateway: GatewayRecord,
        (id, name): (BucketId, &BucketName),
        (epoch, next): (Epoch, Sharing),
    ) -> Applied {
        if self.gateway != Some(gateway) {
            return Err(Refusal::NoGateway);
        }
        let record = self.buckets.get_mut(name).ok_or(Refusal::NoSuchBucket)?;
        changed(record.share(id, epoch, next))
    }

    pub(super) fn begin_deletion(&mut self, name: &BucketName) -> Applied {
        if !self.buckets.contains_key(name) {
            return Err(Refusal::NoSuchBucket);
        }
        if self.region.is_some() {
            return Err(Refusal::InRegion);
        }
        self.mark(name)
    }

    pub(super) fn close_bucket(&mut self, name: &BucketName) -> Applied {
        if self.region.is_none() {
            return Err(Refusal::NotInRegion);
        }
        self.mark(name)
    }

    fn mark(&mut self, name: &BucketName) -> Applied {
        let record = self.buckets.get_mut(name).ok_or(Refusal::NoSuchBucket)?;
        if record.has_home() {
            return Err(Refusal::HasHome);
        }
        record.state = BucketState::Deleting;
        record.epoch = Epoch(record.epoch.0 + 1);
        Ok(bucket_outcome(record))
    }

    /// Refuses a former gateway: the list of regions may have changed since those closed the bucket.
    pub(super) fn delete_closed(
        &mut self,
        gateway: GatewayRecord,
        (id, name): (BucketId, &BucketName),
        epoch: Epoch,
    ) -> Applied {
        if self.gateway != Some(gateway) {
            return Err(Refusal::NoGateway);
        }
        self.end_deletion((Some(id), name), epoch, true)
    }

    /// Ends the deletion of the bucket of that name, which must have the id if one is given.
    pub(super) fn end_deletion(
        &mut self,
        (id, name): (Option<BucketId>, &BucketName),
        epoch: Epoch,
        empty: bool,
    ) -> Applied {
        let record = self.buckets.get_mut(name).ok_or(Refusal::NoSuchBucket)?;
        // The first deletion of every bucket has the same epoch, so name and epoch do not identify the bucket that was found
        // empty.
        if id.is_some_and(|id| id != record.id) {
            return Err(Refusal::NoSuchBucket);
        }
        if record.epoch != epoch || record.state != BucketState::Deleting {
            return Err(Refusal::OtherEpoch);
        }
        if empty {
            let id = record.id;
            self.buckets.remove(name);
            return Ok(Outcome::BucketGone(id));
        }
        record.state = BucketState::Live;
        record.epoch = Epoch(epoch.0 + 1);
        Ok(bucket_outcome(record))
    }

    pub(super) fn add_token(&mut self, hash: [u8; 32], expires_ms: u64) -> Applied {
        if self.tokens.len() >= TOKENS_MAX || self.tokens.values().any(|token| token.hash == hash) {
            return Err(Refusal::TooMany);
        }
        let id = self.next.token;
        self.next.token = TokenId(id.0 + 1);
        self.tokens.insert(id, TokenRecord { hash, expires_ms, revoked: false });
        Ok(Outcome::Token(id))
    }

    pub(super) fn revoke_token(&mut self, token: TokenId) -> Applied {
        let record = self.tokens.get_mut(&token).ok_or(Refusal::NoSuchToken)?;
        changed(!std::mem::replace(&mut record.revoked, true))
    }

    /// Removes void tokens. Their ids are not used again.
    pub(super) fn forget_tokens(&mut self, now_ms: u64) -> Applied {
        let before = self.tokens.len();
        self.tokens.retain(|_, token| !token.revoked && now_ms < token.expires_ms);
        changed(self.tokens.len() < before)
    }

    /// Returns true if a token with these random bytes is valid at this time.
    pub(super) fn admits(&self, hash: [u8; 32], now_ms: u64) -> bool {
        let mut tokens = self.tokens.values();
        tokens.any(|token| token.hash == hash && !token.revoked && now_ms < token.expires_ms)
    }
}

/// The outcome that has a bucket's record.
fn bucket_outcome(record: &BucketRecord) -> Outcome {
    Outcome::Bucket(Box::new(BucketRecord { cors: None, ..record.clone() }))
}
