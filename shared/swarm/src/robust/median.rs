//! The coordinate-wise median (Yin et al. 2018, "Byzantine-Robust Distributed Learning", §4): no minority moves
//! a coordinate out of the others' range.

/// The median of each coordinate; for an even number of members the mean of the two middle values. Empty without members.
///
/// # Shapes
/// - `members`: `[n_members][n_values]`, finite
/// - returns `[n_values]`, as many as the shortest member has
pub fn coordinate_median(members: &[&[f32]]) -> Vec<f64> {
    let n_values = members.iter().map(|values| values.len()).min().unwrap_or(0);
    let mut column = vec![0.0_f32; members.len()];
    let median = |at: usize| {
        for (value, member) in column.iter_mut().zip(members) {
            *value = member[at];
        }
        middle(&mut column)
    };
    (0..n_values).map(median).collect()
}

fn middle(values: &mut [f32]) -> f64 {
    let half = values.len() / 2;
    let is_even = values.len().is_multiple_of(2);
    let (below, &mut upper, _) = values.select_nth_unstable_by(half, f32::total_cmp);
    let lower = below.iter().copied().max_by(f32::total_cmp).filter(|_| is_even);
    f64::midpoint(f64::from(lower.unwrap_or(upper)), f64::from(upper))
}

/// The lower median by `compare`: always one of `values`; `None` where there are none.
pub(crate) fn lower_median<T: Copy>(
    values: &mut [T],
    compare: impl FnMut(&T, &T) -> std::cmp::Ordering,
) -> Option<T> {
    let at = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable_by(at, compare).1)
}
