//! The picture of a layer of experts, in SVG and in words. Pure: never touches the document.
//!
//! Each square is an expert: filled as high as the rows that it answered lately, with the number of its optimizer steps.

use barnraise_messages::{ExpertSeen, ExpertsSeen, LayerSeen};

use crate::format;

/// Side of a square with the gap after it, in units of the picture; drawn at [`PIXELS`] each.
const PITCH: usize = 20;
const GAP: usize = 2;
/// Largest size of a square with its gap, in CSS pixels.
const PIXELS: usize = 44;
/// Most squares in a row.
const COLUMNS_MAX: usize = 16;
/// Most squares of a picture. Of a larger grid those are shown that are hosted or were asked.
const SQUARES_MAX: usize = 512;
/// Most rows of the table.
const TABLE_ROWS_MAX: usize = 256;

/// A picture of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GridPicture {
    /// Its `viewBox`.
    pub(crate) view_box: String,
    /// Its greatest width in CSS pixels.
    pub(crate) width: usize,
    /// The inside of the `svg` element. Numbers only: nothing that came from outside is in it.
    pub(crate) markup: String,
    /// Text alternative.
    pub(crate) words: String,
}

impl GridPicture {
    /// Of a layer that is no longer there.
    pub(crate) fn empty() -> Self {
        Self { view_box: "0 0 1 1".into(), width: 0, markup: String::new(), words: String::new() }
    }
}

/// What is said of all layers.
pub(crate) fn sentence(seen: &ExpertsSeen) -> String {
    let rows = |n| format::counted(n, "row", "rows");
    let missed = match seen.n_missed {
        0 => String::new(),
        n if seen.n_rows == 0 => {
            return format!("In the last minute {} of this tab found no expert that answered.", rows(n));
        }
        n => format!(" For {} more no expert answered: the others did their part.", rows(n)),
    };
    match seen.n_rows {
        0 => "No row of this tab has gone to an expert yet.".to_owned(),
        n => format!(
            "In the last minute {} of this tab went to {} on {}.{missed}",
            rows(n),
            format::counted(seen.n_experts.into(), "expert", "experts"),
            format::counted(seen.n_hosts.into(), "other machine", "other machines"),
        ),
    }
}

/// The picture of a layer; `number` counts from 0.
pub(crate) fn picture(number: usize, layer: &LayerSeen) -> GridPicture {
    let n_all = layer.sides.iter().fold(1_usize, |product, side| product.saturating_mul((*side).into()));
    let squares: Vec<ExpertSeen> = match n_all <= SQUARES_MAX {
        true => {
            let absent = |number| ExpertSeen { number, ..ExpertSeen::default() };
            let mut squares: Vec<ExpertSeen> = (0..n_all as u32).map(absent).collect();
            for seen in &layer.experts {
                if let Some(square) = squares.get_mut(seen.number as usize) {
                    *square = *seen;
                }
            }
            squares
        }
        false => layer.experts.iter().take(SQUARES_MAX).copied().collect(),
    };
    let last_side = layer.sides.last().map_or(1, |side| usize::from(*side));
    let n_columns = if last_side > 1 && last_side <= COLUMNS_MAX { last_side } else { COLUMNS_MAX };
    let n_columns = n_columns.min(squares.len()).max(1);
    let most = squares.iter().map(|square| square.n_rows).max().unwrap_or_default();
    let mut markup = String::new();
    for (at, square) in squares.iter().enumerate() {
        let (x, y) = (at % n_columns * PITCH, at / n_columns * PITCH);
        markup.push_str(&of_square(square, (x, y), most));
    }
    let (width, height) = (n_columns * PITCH - GAP, squares.len().div_ceil(n_columns).max(1) * PITCH - GAP);
    GridPicture {
        view_box: format!("-1 -1 {} {}", width + 2, height + 2),
        width: n_columns * PIXELS,
        markup,
        words: in_words(number, layer, n_all),
    }
}

fn of_square(square: &ExpertSeen, (x, y): (usize, usize), most: u64) -> String {
    let side = PITCH - GAP;
    let class = if square.n_hosts == 0 { "square absent" } else { "square" };
    let mut markup =
        format!("<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\" rx=\"2\"/>");
    if square.n_rows > 0 {
        let height = (square.n_rows as f64 / most.max(1) as f64 * side as f64).clamp(1.0, side as f64);
        let top = (y + side) as f64 - height;
        markup.push_str(&format!(
            "<rect class=\"rows\" x=\"{x}\" y=\"{top:.1}\" width=\"{side}\" height=\"{height:.1}\" rx=\"2\"/>"
        ));
    }
    if square.n_missed > 0 {
        let (right, bottom) = (x + side, y + side);
        markup.push_str(&format!("<path class=\"missed\" d=\"M{x} {bottom}L{right} {y}\"/>"));
    }
    if square.n_hosts > 0 {
        let (middle, base) = (x + side / 2, y + side / 2 + 2);
        markup.push_str(&format!(
            "<text text-anchor=\"middle\" x=\"{middle}\" y=\"{base}\">{}</text>",
            short(square.n_steps)
        ));
    }
    markup
}

fn in_words(number: usize, layer: &LayerSeen, n_all: usize) -> String {
    let n_hosted = layer.experts.iter().filter(|expert| expert.n_hosts > 0).count();
    let hosted = format!(
        "Layer {}: {} of {} have a host.",
        number + 1,
        format::count(n_hosted as u64),
        format::counted(n_all as u64, "expert", "experts")
    );
    let busiest = layer.experts.iter().filter(|expert| expert.n_rows > 0).max_by_key(|expert| expert.n_rows);
    let n_missed = layer.experts.iter().filter(|expert| expert.n_missed > 0).count();
    let busiest = busiest.map_or_else(String::new, |expert| {
        let rows = format::counted(expert.n_rows, "row", "rows");
        format!(
            " Expert {} answered the most, {rows} in the last minute.",
            place(expert.number, &layer.sides)
        )
    });
    let missed = match n_missed {
        0 => String::new(),
        n => format!(" {} left rows without an answer.", format::counted(n as u64, "expert", "experts")),
    };
    format!("{hosted}{busiest}{missed}")
}

/// Rows of the table of all layers. Numbers only.
pub(crate) fn table_rows(seen: &ExpertsSeen) -> String {
    let of_layer = |(number, layer): (usize, &LayerSeen)| {
        let row = |expert: &ExpertSeen| {
            format!(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                number + 1,
                place(expert.number, &layer.sides),
                format::count(expert.n_hosts.into()),
                format::count(expert.n_steps),
                format::count(expert.n_rows),
                format::count(expert.n_missed),
            )
        };
        layer.experts.iter().map(row).collect::<Vec<_>>()
    };
    seen.layers.iter().enumerate().flat_map(of_layer).take(TABLE_ROWS_MAX).collect()
}

/// Indices of an expert on its grid: `3`, or `3.14`.
fn place(number: u32, sides: &[u16]) -> String {
    let mut left = number;
    let mut indices: Vec<String> = Vec::with_capacity(sides.len());
    for side in sides.iter().rev().map(|side| u32::from((*side).max(1))) {
        indices.push((left % side).to_string());
        left /= side;
    }
    indices.reverse();
    indices.join(".")
}

/// A number of four characters at most: `999`, `9.9k`, `99k`, `9.9M`.
fn short(value: u64) -> String {
    match value {
        0..1000 => value.to_string(),
        1000..9950 => format!("{:.1}k", value as f64 / 1e3),
        9950..999_500 => format!("{:.0}k", value as f64 / 1e3),
        999_500..9_950_000 => format!("{:.1}M", value as f64 / 1e6),
        _ => format!("{:.0}M", (value as f64 / 1e6).min(999.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expert(number: u32, n_hosts: u32, n_rows: u64, n_missed: u64) -> ExpertSeen {
        ExpertSeen { number, n_hosts, n_steps: 1234, n_rows, n_missed }
    }

    fn layer(sides: &[u16], experts: &[ExpertSeen]) -> LayerSeen {
        LayerSeen { sides: sides.into(), experts: experts.into() }
    }

    #[test]
    fn each_expert_of_a_grid_is_a_square_and_says_how_much_it_did() {
        let drawn =
            picture(0, &layer(&[2, 4], &[expert(1, 1, 100, 0), expert(6, 1, 50, 7), expert(7, 0, 0, 3)]));
        assert_eq!(drawn.markup.matches("class=\"square").count(), 8);
        assert_eq!(drawn.markup.matches("absent").count(), 6, "nobody hosts the last one any more");
        assert_eq!(drawn.markup.matches("class=\"rows\"").count(), 2);
        assert_eq!(drawn.markup.matches("class=\"missed\"").count(), 2);
        assert_eq!(drawn.markup.matches(">1.2k<").count(), 2);
        assert_eq!(drawn.view_box, "-1 -1 80 40");
        assert_eq!(
            drawn.words,
            "Layer 1: 2 of 8 experts have a host. Expert 0.1 answered the most, 100 rows in the last minute. \
             2 experts left rows without an answer."
        );
    }

    #[test]
    fn a_long_row_is_folded_and_of_a_large_grid_what_is_there_is_shown() {
        assert_eq!(picture(1, &layer(&[64], &[])).view_box, "-1 -1 320 80");
        let large = picture(1, &layer(&[1024, 1024], &[expert(1025, 1, 1, 0)]));
        assert_eq!(large.markup.matches("class=\"square").count(), 1);
        assert!(
            large.words.starts_with("Layer 2: 1 of 1,048,576 experts have a host. Expert 1.1"),
            "{}",
            large.words
        );
        assert_eq!(picture(0, &layer(&[1024, 1024], &[])).markup, "");
    }

    #[test]
    fn the_sentence_counts_rows_experts_and_machines() {
        let seen = |n_experts, n_hosts, n_rows, n_missed| ExpertsSeen {
            layers: Vec::new(),
            n_experts,
            n_hosts,
            n_rows,
            n_missed,
        };
        assert_eq!(sentence(&seen(0, 0, 0, 0)), "No row of this tab has gone to an expert yet.");
        assert_eq!(
            sentence(&seen(8, 2, 12_345, 0)),
            "In the last minute 12,345 rows of this tab went to 8 experts on 2 other machines."
        );
        assert_eq!(
            sentence(&seen(1, 1, 1, 3)),
            "In the last minute 1 row of this tab went to 1 expert on 1 other machine. For 3 rows more no expert \
             answered: the others did their part."
        );
        assert_eq!(
            sentence(&seen(0, 0, 0, 3)),
            "In the last minute 3 rows of this tab found no expert that answered."
        );
    }

    #[test]
    fn numbers_fit_into_a_square() {
        let shown =
            [0, 999, 1000, 9949, 9950, 123_456, 999_499, 999_500, 9_949_999, 5_000_000_000].map(short);
        assert_eq!(shown, ["0", "999", "1.0k", "9.9k", "10k", "123k", "999k", "1.0M", "9.9M", "999M"]);
        assert_eq!(place(13, &[4, 8]), "1.5");
        assert_eq!(
            table_rows(&ExpertsSeen {
                layers: vec![layer(&[8], &[expert(3, 1, 5, 0)])],
                ..ExpertsSeen::default()
            }),
            "<tr><td>1</td><td>3</td><td>1</td><td>1,234</td><td>5</td><td>0</td></tr>"
        );
    }
}
