//! Groups of peers that are too many for one round (DeDLOC §3.2 and appendix C; the scheme is that of Moshpit
//! All-Reduce).
//!
//! Peers are cells of a grid of `d` dimensions. In round `t` of an epoch a group is the peers that differ in
//! coordinate `t mod d` alone. Where every cell is occupied, each peer has the exact mean of all after `d` rounds:
//! after round `t` it is the mean over the first `t` coordinates. Where some cells are empty, the sum over
//! all peers stays, and the differences shrink with every `d` rounds. A peer that fails spoils its own
//! group's round and no other.
//!
//! The averaged values must be additive: the sum of weighted gradients and the sum of weights, side by side.
//!
//! It never waits: [`size`] chooses the group size, [`Grid`] the members.

pub mod size;

use crate::PeerId;

/// The smallest group: a peer alone averages nothing.
pub const GROUP_SIZE_MIN: usize = 2;

/// The cells of a grid, as many as peers or a few more.
///
/// # Shapes
/// - sides: `[n_dimensions]`, each between 1 and the group size, the product at least the number of peers
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    n_peers: usize,
    sides: Vec<usize>,
}

impl Grid {
    /// A grid with groups of at most `group_size` and, for that, the fewest dimensions: `ceil(log_m n)` of them. A full
    /// one where there is one, with the longest side as short as can be: six peers in groups of up to three are 3 x 2.
    /// Otherwise the smallest, in which no side is longer than it must be. A group size below [`GROUP_SIZE_MIN`] counts
    /// as that.
    ///
    /// In both cases the first peer has the exact mean of all after [`Self::n_rounds`] rounds: the cells of its groups are
    /// the first ones of their blocks, so none of them is empty where its block is not.
    #[must_use]
    pub fn new(n_peers: usize, group_size: usize) -> Self {
        let group_size = group_size.max(GROUP_SIZE_MIN);
        let n_dimensions = n_dimensions(n_peers, group_size);
        if let Some(sides) = full_sides(n_peers, n_dimensions, group_size) {
            return Self { n_peers, sides };
        }
        let mut sides = vec![side(n_peers, n_dimensions); n_dimensions];
        for shortened in (0..n_dimensions).rev() {
            while sides[shortened] > 1 {
                sides[shortened] -= 1;
                if n_cells(&sides) < n_peers {
                    sides[shortened] += 1;
                    break;
                }
            }
        }
        Self { n_peers, sides }
    }

    /// Rounds until every peer has averaged along each coordinate; 0 for one peer or none.
    #[must_use]
    pub fn n_rounds(&self) -> usize {
        self.sides.len()
    }

    /// The lengths of the grid's sides, `[n_dimensions]`: the largest group sizes.
    #[must_use]
    pub fn sides(&self) -> &[usize] {
        &self.sides
    }

    /// Whether every cell is occupied: then [`Self::n_rounds`] rounds give the exact mean.
    #[must_use]
    pub fn is_full(&self) -> bool {
        n_cells(&self.sides) == self.n_peers
    }

    /// The groups of a round, by cell: each cell is in one group, and groups and their cells are in order.
    ///
    /// Cells that differ in the round's coordinate alone form a group. A cell without any other in its group is a group
    /// of one, which keeps its values.
    #[must_use]
    pub fn groups(&self, round: usize) -> Vec<Vec<usize>> {
        let Some(n_dimensions) = std::num::NonZero::new(self.sides.len()) else {
            return (0..self.n_peers).map(|cell| vec![cell]).collect();
        };
        let axis = round % n_dimensions;
        let stride: usize = self.sides[..axis].iter().product();
        let side = self.sides[axis];
        let starts = (0..self.n_peers).filter(|cell| (cell / stride).is_multiple_of(side));
        let group = |start: usize| {
            (0..side).map(move |step| start + step * stride).filter(|&cell| cell < self.n_peers)
        };
        starts.map(|start| group(start).collect()).collect()
    }
}

fn n_cells(sides: &[usize]) -> usize {
    sides.iter().fold(1, |product: usize, &side| product.saturating_mul(side))
}

/// `ceil(log_m n)`, in whole numbers.
pub(crate) fn n_dimensions(n_peers: usize, group_size: usize) -> usize {
    let (mut n_dimensions, mut cells) = (0, 1_usize);
    while cells < n_peers {
        cells = cells.saturating_mul(group_size);
        n_dimensions += 1;
    }
    n_dimensions
}

/// The shortest side with which `n_dimensions` have a cell for each peer.
pub(crate) fn side(n_peers: usize, n_dimensions: usize) -> usize {
    let holds = |side: usize| n_cells(&vec![side; n_dimensions]) >= n_peers;
    (1..=n_peers).find(|&side| holds(side)).unwrap_or(1)
}

/// The sides of a full grid of `n_dimensions`, none above `side_max`; the longest first, and as short as possible.
pub(crate) fn full_sides(n_peers: usize, n_dimensions: usize, side_max: usize) -> Option<Vec<usize>> {
    match n_dimensions {
        0 => (n_peers <= 1).then(Vec::new),
        1 => (GROUP_SIZE_MIN..=side_max).contains(&n_peers).then(|| vec![n_peers]),
        _ => (GROUP_SIZE_MIN..=side_max.min(n_peers)).find_map(|longest| {
            let others = n_peers.is_multiple_of(longest).then_some(n_peers / longest)?;
            let mut sides = vec![longest];
            sides.extend(full_sides(others, n_dimensions - 1, longest)?);
            Some(sides)
        }),
    }
}

/// The groups of a round, a function of the peers, the seed of the run and the epoch.
///
/// Cells are assigned anew in each epoch, so a slow or hostile neighbour does not stay one. Within an epoch the
/// rounds alternate the axes of one grid. The order of `peers` does not matter, and a duplicate counts once. The mixing
/// is not cryptographic: a peer that may choose its id can choose its neighbours.
#[must_use]
pub fn groups(peers: &[PeerId], group_size: usize, seed: u64, epoch: u64, round: usize) -> Vec<Vec<PeerId>> {
    let mut dealt: Vec<(u64, &PeerId)> = peers.iter().map(|peer| (ticket(peer, seed, epoch), peer)).collect();
    dealt.sort_unstable();
    dealt.dedup();
    let groups = Grid::new(dealt.len(), group_size).groups(round);
    groups.iter().map(|cells| cells.iter().map(|&cell| dealt[cell].1.clone()).collect()).collect()
}

/// FNV-1a over seed, epoch and id, then the finalizer of SplitMix64, which makes its low entropy spread.
fn ticket(peer: &PeerId, seed: u64, epoch: u64) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(epoch.to_le_bytes()).chain(peer.0.iter().copied());
    let mut mixed = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
