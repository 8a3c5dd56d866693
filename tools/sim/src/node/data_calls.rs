//! A meta server's questions to data servers for its PGs, repeated until they are answered. It gives up as a real
//! driver does: when the data server was out of reach for long, or the managers find it down.

use larder_protocol::{DataAnswer, DataRequest, Event};
use larder_types::{LvId, PgId, View};

use super::Node;
use crate::clock::MS;
use crate::event::{Requester, StoreIn};
use crate::net::Net;
use crate::process_end::ProcessEnd;
use crate::servers::Server;

/// Microseconds after which a request that was not answered is made again.
const AGAIN_US: u64 = 400 * MS;
/// Microseconds after which it is given up.
const REACH_US: u64 = 4_000 * MS;

/// A request that was not answered.
#[derive(Debug)]
pub(super) struct Request {
    view: View,
    pg: PgId,
    lv: LvId,
    replica: usize,
    store: usize,
    what: DataRequest,
    again_us: u64,
    until_us: u64,
}

impl Node {
    pub(super) fn request_data(
        &mut self,
        (pg, lv, replica): (PgId, LvId, usize),
        what: DataRequest,
        net: &mut Net,
    ) {
        let (view, now_us) = (self.member(pg).pg.view(), net.now_us());
        let life = self.life();
        let store = life.store_of(lv, replica);
        let store = store.expect("a PG asks data servers of LVs that it was told of");
        life.next_request += 1;
        let (again_us, until_us) = (now_us + AGAIN_US, now_us + REACH_US);
        let request = Request { view, pg, lv, replica, store, what, again_us, until_us };
        let id = life.next_request;
        life.requests.insert(id, request);
        self.send_request(id, net);
    }

    fn send_request(&mut self, id: u64, net: &mut Net) {
        let from = Requester { node: self.id, run: self.run, id };
        let Some(Request { lv, store, what, .. }) = self.life().requests.get(&id) else { return };
        let input = StoreIn::Request { from, lv: *lv, request: what.clone() };
        let to = (*store, input);
        net.send(Server::Node(self.id), to);
    }

    /// A data server has answered. What it failed to do for an earlier view says nothing about this one.
    pub(super) fn data_answered(
        &mut self,
        id: u64,
        answer: DataAnswer,
        net: &mut Net,
    ) -> Result<(), ProcessEnd> {
        let Some(Request { view, pg, lv, replica, .. }) = self.life().requests.remove(&id) else {
            return Ok(());
        };
        if view != self.member(pg).pg.view() {
            return Ok(());
        }
        self.step(pg, Event::Data { lv, replica, answer }, net)
    }

    /// At a tick: makes requests again, or gives them up.
    pub(super) fn retry_requests(&mut self, net: &mut Net) -> Result<(), ProcessEnd> {
        if self.setup.options.bugs.driver.asks_data_once() {
            return Ok(());
        }
        let now_us = net.now_us();
        let setup = self.setup.clone();
        let life = self.life();
        let map = life.managers.map.clone();
        let (mut again, mut over) = (Vec::new(), Vec::new());
        for (id, request) in &mut life.requests {
            let server = setup.id_of(Server::Store(request.store));
            let is_down = map.servers.contains_key(&server) && !map.is_up(server);
            if request.until_us <= now_us || is_down {
                over.push(*id);
            } else if request.again_us <= now_us {
                request.again_us = now_us + AGAIN_US;
                again.push(*id);
            }
        }
        again.into_iter().for_each(|id| self.send_request(id, net));
        for id in over {
            self.data_answered(id, DataAnswer::Failed, net)?;
        }
        Ok(())
    }
}
