//! Medians with their spread, and ratios of what was measured in the same round.

/// The middle of some values, and the ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// That of `values`; `None` if there are none. Of an even number the median is the mean of the
    /// two in the middle.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        assert!(min <= median && median <= max, "the median lies within the spread");
        Some(Self { median, min, max })
    }
}

/// A figure with the round it was measured in.
pub(crate) type InRound = (u64, f64);

/// The ratios of `over` to `under` in every round that has both. Rounds are compared and not
/// medians, since what disturbs a machine disturbs the whole of a round.
pub(crate) fn ratio(over: &[InRound], under: &[InRound]) -> Option<Spread> {
    let of_round = |round| under.iter().find(|(other, _)| *other == round).map(|(_, value)| *value);
    Spread::of(over.iter().filter_map(|&(round, value)| {
        of_round(round).filter(|&under| under > 0.0).map(|under| value / under)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_two() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0 }));
        let odd = Spread::of([9.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.min, odd.median, odd.max), (1.0, 2.0, 9.0));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 8.0]).unwrap().median, 3.0);
    }

    #[test]
    fn ratios_pair_the_figures_of_one_round() {
        // The second round was slow for both: the ratio of medians would be 1.5.
        let larder = [(1, 30.0), (2, 90.0), (3, 20.0)];
        let floor = [(3, 10.0), (2, 45.0), (1, 20.0)];
        let ratio = ratio(&larder, &floor).unwrap();
        assert_eq!((ratio.min, ratio.median, ratio.max), (1.5, 2.0, 2.0));
    }

    #[test]
    fn rounds_without_a_partner_do_not_count() {
        assert_eq!(ratio(&[(1, 2.0), (2, 9.0)], &[(1, 1.0)]).unwrap().max, 2.0);
        assert_eq!(ratio(&[(1, 2.0)], &[(2, 1.0)]), None);
        assert_eq!(ratio(&[(1, 2.0)], &[(1, 0.0)]), None);
    }
}
