//! Compares high-water marks with rows: a start allocates above the marks, so no row may name a block there.

use std::collections::BTreeMap;

use larder_protocol::pg::chunk_in;
use larder_protocol::{Index, IndexError};
use larder_types::codec::decode;
use larder_types::{Extent, HighWaterRow, LvId, OpId, PgId, rows};

use super::overlay::Overlay;
use super::report::Report;
use crate::manager::Map;

/// The blocks of each volume that rows name.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Where the last block ends that a row names.
    ends: BTreeMap<LvId, u32>,
}

impl Marks {
    pub(super) fn note(&mut self, row: &[u8], value: &[u8]) -> Result<(), IndexError> {
        if !matches!(row.first(), Some(b'K' | b'P' | b'V' | b'W')) {
            return Ok(());
        }
        if let Some(chunk) = chunk_in(row, value)? {
            let end = chunk.extents.iter().map(Extent::end).max().unwrap_or(0);
            let last = self.ends.entry(chunk.lv).or_insert(0);
            *last = end.max(*last);
        }
        Ok(())
    }

    /// Every mark that a start would believe lies above what rows name.
    pub(super) fn check(&self, map: &Map, overlay: &Overlay<'_>, report: &mut Report) {
        let mut believed = BTreeMap::new();
        for pg in (0..map.pgs.len() as u32).map(PgId) {
            match marks_of(pg, overlay) {
                Ok(Some(row)) => drop(believed.insert(pg, row)),
                Ok(None) => {}
                Err(error) => report.fault(format!("the high-water marks of pg {pg}: {error}")),
            }
        }
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
        let without = map.pgs.len() - believed.len();
        let next = if without == 0 { "serves at once" } else { "reads all rows before it serves" };
        report.line(format!("{without} groups without high-water marks: the next start {next}"));
    }
}

/// The marks of a PG, if they are those of its applied position.
fn marks_of(pg: PgId, overlay: &Overlay<'_>) -> Result<Option<HighWaterRow>, IndexError> {
    let (row, applied) = (overlay.get(&rows::high_water(pg))?, overlay.get(&rows::applied(pg))?);
    let (Some(row), Some(applied)) = (row, applied) else { return Ok(None) };
    let row: HighWaterRow = decode("marks row", &row)?;
    let applied: OpId = decode("applied position", &applied)?;
    Ok((row.op == applied).then_some(row))
}
