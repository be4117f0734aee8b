//! Checks the table of a `Precompiled` normalizer (SentencePiece's), which the library follows without looking.
//!
//! Four bytes say how long a double array is (Aoe 1989, as in darts-clone); it leads from the bytes of a text to places in
//! the rest of the table, where a text ends with a zero.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use super::error::TokenizerError;

/// Largest table, in bytes. That of NFKC has some 240,000.
const TABLE_BYTES_MAX: usize = 1024 * 1024;

const PART: &str = "normalizer";

/// Whether every way through the table ends in it.
pub(super) fn check(table: &Value) -> Result<(), TokenizerError> {
    let broken = || TokenizerError::part(PART, "its precompiled_charsmap leads out of itself");
    let encoded = table.as_str().unwrap_or_default();
    if encoded.len() > TABLE_BYTES_MAX * 4 / 3 + 4 {
        let (got, max) = (encoded.len() * 3 / 4, TABLE_BYTES_MAX);
        let reason = format!("its precompiled_charsmap has {got} bytes, at most {max} are allowed");
        return Err(TokenizerError::part(PART, reason));
    }
    let table =
        BASE64_STANDARD.decode(encoded).map_err(|error| TokenizerError::part(PART, error.to_string()))?;
    let (length, rest) = table.split_first_chunk::<4>().ok_or_else(broken)?;
    let n_units = u32::from_le_bytes(*length) as usize / 4;
    let (array, texts) = rest.split_at_checked(n_units * 4).ok_or_else(broken)?;
    let units: Vec<usize> =
        array.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes) as usize).collect();
    let texts = std::str::from_utf8(texts).map_err(|error| TokenizerError::part(PART, error))?;
    is_closed(&units, texts).then_some(()).ok_or_else(broken)
}

/// Visits all that can be reached from the root.
fn is_closed(units: &[usize], texts: &str) -> bool {
    let offset = |unit: usize| (unit >> 10) << ((unit & (1 << 9)) >> 6);
    let label = |unit: usize| unit & ((1 << 31) | 0xff);
    let Some(&root) = units.first() else { return false };
    let mut is_visited = vec![false; units.len()];
    let mut waiting = vec![offset(root)];
    while let Some(base) = waiting.pop() {
        match is_visited.get_mut(base) {
            None => return false,
            Some(true) => continue,
            Some(visited) => *visited = true,
        }
        for byte in 1..=0xff {
            let at = base ^ byte;
            let Some(&unit) = units.get(at) else { return false };
            if label(unit) != byte {
                continue;
            }
            let next = at ^ offset(unit);
            if (unit >> 8) & 1 == 1 {
                let Some(value) = units.get(next) else { return false };
                let place = value & ((1 << 31) - 1);
                if !texts.is_char_boundary(place) {
                    return false;
                }
            }
            waiting.push(next);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn table(units: &[u32], texts: &str) -> Value {
        let array: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let bytes = [&(array.len() as u32).to_le_bytes(), array.as_slice(), texts.as_bytes()].concat();
        BASE64_STANDARD.encode(bytes).into()
    }

    /// `a` becomes the text at `place`, by a leaf at `leaf`.
    fn units(leaf: u32, place: u32) -> Vec<u32> {
        let mut units = vec![0_u32; 512];
        // The root's children are at 256 ^ byte.
        units[0] = 256 << 10;
        let at = 256 ^ u32::from(b'a');
        units[at as usize] = u32::from(b'a') | 1 << 8 | (at ^ leaf) << 10;
        if let Some(unit) = units.get_mut(leaf as usize) {
            *unit = place | 1 << 31;
        }
        units
    }

    #[test]
    fn a_table_that_leads_out_of_itself_is_refused() {
        check(&table(&units(1, 0), "b\0")).unwrap();
        check(&table(&units(1, 2), "b\0")).unwrap();
        for broken in [
            table(&units(1, 3), "b\0"),
            table(&units(1, 1), "é\0"),
            table(&units(600, 0), "b\0"),
            table(&units(1, 0)[..400], "b\0"),
            table(&[], "b\0"),
            Value::from("AA=="),
            Value::from("not base64"),
            Value::Null,
        ] {
            assert!(check(&broken).is_err(), "{broken}");
        }
    }
}
