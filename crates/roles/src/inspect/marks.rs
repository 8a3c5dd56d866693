//! High-water marks against rows: a start gives what lies above.

use std::collections::BTreeMap;

use larder_protocol::pg::chunk_in;
use larder_protocol::{Index, IndexError};
use larder_types::codec::decode;
use larder_types::{Extent, HighWaterRow, LvId, OpId, PgId, rows};

use super::overlay::Overlay;
use super::report::Report;
use crate::manager::Map;

/// What rows say of each volume.
#[derive(Debug, Default)]
pub(super) struct Marks {
    rows: BTreeMap<Vec<u8>, HighWaterRow>,
    /// Where the last block ends that a row names.
    ends: BTreeMap<LvId, u32>,
}

impl Marks {
    pub(super) fn note(&mut self, row: &[u8], value: &[u8]) -> Result<(), IndexError> {
        match row.first() {
            Some(b'H') => {
                self.rows.insert(row.to_vec(), decode("marks row", value)?);
            }
            Some(b'K' | b'P' | b'V' | b'W') => {
                if let Some(chunk) = chunk_in(row, value)? {
                    let end = chunk.extents.iter().map(Extent::end).max().unwrap_or(0);
                    let last = self.ends.entry(chunk.lv).or_insert(0);
                    *last = end.max(*last);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Every mark that a start would believe lies above what rows name.
    pub(super) fn check(&self, map: &Map, overlay: &Overlay<'_>, report: &mut Report) {
        let believed = (0..map.pgs.len() as u32).map(PgId).filter_map(|pg| {
            let row = self.rows.get(&rows::high_water(pg))?;
            let applied = overlay.get(&rows::applied(pg)).ok().flatten()?;
            let applied = decode::<OpId>("applied position", &applied).ok()?;
            (row.view == applied.view).then_some((pg, row))
        });
        let believed: BTreeMap<PgId, &HighWaterRow> = believed.collect();
        for record in &map.lvs {
            let Some(row) = believed.get(&record.pg) else { continue };
            let (lv, of_lv) = (record.lv, row.marks.iter().find(|(lv, _)| *lv == record.lv));
            let mark = of_lv.map_or(0, |(_, mark)| *mark);
            let end = self.ends.get(&lv).copied().unwrap_or(0);
            if end > mark {
                report.fault(format!(
                    "volume {lv}: a row names blocks up to {end}, above the high-water mark {mark}"
                ));
            }
        }
        report.line(format!("{} groups have high-water marks", believed.len()));
    }
}
