//! The most that each peer did, and that as a load for larder.
//!
//! A store is to be compared where the other is at its best. Larder gets an open loop with the puts
//! per second that the peer did in a closed one, over as many connections. As the loop is open,
//! larder's latencies count from when each put was due, the peer's from when it was sent.

use crate::results::{Entrant, Peak, Row};
use crate::systems::LARDER;
use crate::works::{Op, Work};

impl Peak {
    /// The same work with the peak as its load; `None` if that is not even one put a second.
    pub(crate) fn offered(&self) -> Option<Work> {
        let rate = self.ops_s.round();
        (rate >= 1.0).then_some(Work { rate: Some(rate as u32), ..self.work })
    }
}

/// The peaks of a round's peers, as far as they put small objects in it without an error.
pub(crate) fn of_round(rows: &[Row], round: u64, systems: &[Entrant]) -> Vec<Peak> {
    let peers = systems.iter().filter(|system| !system.floor && system.system != LARDER);
    let peak = |peer: &Entrant| {
        let rows = rows.iter().filter(|row| row.round == round && peer.is_of(row));
        let peaks = rows.filter_map(|row| {
            let figures = row.figures.as_ref().filter(|figures| figures.errors == 0)?;
            let is_small_put = row.work.rate.is_none() && row.work.is_small(Op::Put);
            is_small_put.then_some(Peak {
                round,
                system: row.system.clone(),
                setting: row.setting.clone(),
                work: row.work,
                ops_s: figures.ops_s,
                p99_us: figures.p99_us?,
            })
        });
        peaks.max_by(|one, other| one.ops_s.total_cmp(&other.ops_s))
    };
    peers.filter_map(peak).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{SMALL, entrant, figures, row};

    #[test]
    fn a_peak_is_the_most_that_a_peer_did_in_the_round_in_a_closed_loop() {
        let put = Work::new(Op::Put, SMALL);
        let more = Work { connections: 100, ..put };
        let mut failing = figures(9_000.0, 100.0);
        failing.errors = 1;
        let rows = [
            row(1, "Peer", put, Some(figures(1_000.0, 100.0))),
            row(1, "Peer", more, Some(figures(1_500.4, 100.0))),
            row(1, "Peer", Work { connections: 1000, ..put }, Some(failing)),
            row(1, "Peer", Work { rate: Some(2000), ..put }, Some(figures(2_000.0, 100.0))),
            row(1, "Peer", Work::new(Op::Get, SMALL), Some(figures(30_000.0, 100.0))),
            row(1, "larder", put, Some(figures(9_999.0, 10.0))),
            row(2, "Peer", put, Some(figures(3_000.0, 100.0))),
            row(2, "Gone", put, None),
        ];
        let systems = ["larder", "Peer", "Gone"].map(|name| entrant(name, "default", false));
        let peaks = of_round(&rows, 1, &systems);
        assert_eq!(peaks.len(), 1);
        assert!(peaks[0].is_of(&systems[1]));
        assert_eq!(peaks[0].offered(), Some(Work { rate: Some(1500), ..more }));
        assert_eq!(of_round(&rows, 2, &systems)[0].ops_s, 3_000.0);
        assert_eq!(of_round(&rows, 3, &systems), []);
    }

    #[test]
    fn a_peer_that_stood_still_gives_no_load() {
        let rows = [row(1, "Peer", Work::new(Op::Put, SMALL), Some(figures(0.4, 100.0)))];
        let peaks = of_round(&rows, 1, &[entrant("Peer", "default", false)]);
        assert_eq!(peaks[0].offered(), None);
    }
}
