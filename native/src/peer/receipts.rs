//! Receipts in a file: a line of JSON for each, appended as they arrive, verified when they are read.
//! No receipt counts before its signature was checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::receipt::SignedReceipt;

use crate::host::peer_id;

/// Longest line that is read.
const LINE_BYTES_MAX: u64 = 4096;

/// A file that receipts are appended to.
#[derive(Debug)]
pub(super) struct ReceiptFile {
    file: File,
    /// Whether it ends within a line; the next receipt then begins a new one.
    is_torn: bool,
}

impl ReceiptFile {
    /// Opens the file, or creates it.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let opened = OpenOptions::new().read(true).append(true).create(true).open(path);
        let looked = opened.and_then(|mut file| ends_within_a_line(&mut file).map(|is_torn| (file, is_torn)));
        let (file, is_torn) =
            looked.with_context(|| format!("receipts cannot be kept in {}", path.display()))?;
        Ok(Self { file, is_torn })
    }

    /// Whether a crash or a full disk left the file within a line.
    pub(super) fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Appends a receipt. It survives a crash once this returns.
    pub(super) fn append(&mut self, receipt: &SignedReceipt) -> io::Result<()> {
        let mut line = serde_json::to_vec(receipt)?;
        line.push(b'\n');
        if self.is_torn {
            line.insert(0, b'\n');
        }
        // If this fails, part of the line may be in the file.
        self.is_torn = true;
        self.file.write_all(&line)?;
        self.is_torn = false;
        self.file.sync_data()
    }
}

fn ends_within_a_line(file: &mut File) -> io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// A receipt of any version.
type Object = serde_json::Map<String, serde_json::Value>;

/// Totals of one peer's receipts by one reducer of a run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct ReceiptTotals {
    contributions: BTreeSet<u64>,
    n_samples: u64,
    n_bytes: u64,
    milliseconds: u64,
}

/// `barnraise receipts`: totals of the receipts in a file; each contribution counts once. A line that a crash tore is
/// reported and left out.
///
/// # Errors
/// The file cannot be read, or a receipt is invalid or of another version; the error has its line and the reason.
pub fn verify(path: &Path) -> anyhow::Result<String> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    verify_lines(BufReader::new(file), &path.display().to_string())
}

fn verify_lines(mut lines: impl BufRead, name: &str) -> anyhow::Result<String> {
    let mut sums: BTreeMap<(String, PublicKey, PublicKey), ReceiptTotals> = BTreeMap::new();
    let mut line = Vec::new();
    let mut torn = Vec::new();
    for number in 1_u64.. {
        line.clear();
        if lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let place = || format!("{name}, line {number}");
        let is_whole = line.ends_with(b"\n") || (line.len() as u64) < LINE_BYTES_MAX;
        ensure!(is_whole, "{}: longer than any receipt", place());
        if line.trim_ascii().is_empty() {
            continue;
        }
        // A torn line is skipped; a whole object has to be a valid receipt.
        let Ok(signed) = serde_json::from_slice::<SignedReceipt>(&line) else {
            // No part of a line is a whole JSON object: such a line was not torn.
            ensure!(
                serde_json::from_slice::<Object>(&line).is_err(),
                "{}: not a receipt as this version of the program knows it; where a newer one wrote it, read the file with \
                that one",
                place()
            );
            torn.push(format!("{}: torn, and left out\n", place()));
            continue;
        };
        signed.verify().with_context(place)?;
        let receipt = signed.receipt;
        let sum = sums.entry((receipt.run_id, receipt.peer, receipt.reducer)).or_default();
        if sum.contributions.insert(receipt.contribution_id) {
            sum.n_samples += u64::from(receipt.n_samples);
            sum.n_bytes = sum.n_bytes.saturating_add(receipt.n_bytes);
            sum.milliseconds += u64::from(receipt.milliseconds);
        }
    }
    let said = |((run_id, peer, reducer), sum): (&(String, PublicKey, PublicKey), &ReceiptTotals)| {
        let named = |key: &PublicKey| peer_id(*key).map_or_else(|| key.to_string(), |id| id.to_string());
        let ReceiptTotals { contributions, n_samples, n_bytes, milliseconds } = sum;
        format!(
            "{run_id}: {n_samples} samples in {} contributions of {}, {} s, {n_bytes} bytes; signed by {}\n",
            contributions.len(),
            named(peer),
            milliseconds / 1000,
            named(reducer)
        )
    };
    Ok(sums.iter().map(said).chain(torn).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::{KeyPair, UnixTime};
    use barnraise_protocol::receipt::Receipt;

    use super::*;

    fn signed(contribution_id: u64) -> SignedReceipt {
        let reducer = KeyPair::from_seed(&[1; 32]);
        let receipt = Receipt {
            run_id: "barn".into(),
            peer: KeyPair::from_seed(&[2; 32]).public(),
            reducer: reducer.public(),
            contribution_id,
            epoch: 3,
            n_samples: 64,
            n_bytes: 1000,
            milliseconds: 1500,
            issued_at: UnixTime(1_800_000_000),
        };
        receipt.sign(&reducer).unwrap()
    }

    /// Users have such lines in their files: they must stay valid.
    #[test]
    fn golden_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("receipts.jsonl");
        ReceiptFile::open(&path).unwrap().append(&signed(1)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim_end(), GOLDEN);
        let text = verify_lines(GOLDEN.as_bytes(), "file").unwrap();
        assert!(text.starts_with("barn: 64 samples in 1 contributions of 12D3KooW"), "{text}");
    }

    const GOLDEN: &str = r#"{"receipt":{"run_id":"barn","peer":"8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394","reducer":"8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c","contribution_id":1,"epoch":3,"n_samples":64,"n_bytes":1000,"milliseconds":1500,"issued_at":1800000000},"signature":["fcefb2d14f6da81f2b715db861f2721ff203d06358051201b22a1688ccde1a6b","603c85235fb3f990986b77ddfde81122c9b91d5fc4d2a5bdc5f520828dafab0e"]}"#;

    #[test]
    fn a_file_adds_up_with_each_receipt_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("receipts.jsonl");
        for ids in [&[1, 2][..], &[2, 3]] {
            let mut file = ReceiptFile::open(&path).unwrap();
            ids.iter().for_each(|id| file.append(&signed(*id)).unwrap());
        }
        let text = verify(&path).unwrap();
        assert!(text.starts_with("barn: 192 samples in 3 contributions of 12D3KooW"), "{text}");
        assert!(
            text.contains(", 4 s, 3000 bytes; signed by 12D3KooW") && text.lines().count() == 1,
            "{text}"
        );
    }

    #[test]
    fn a_torn_line_costs_itself_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("receipts.jsonl");
        let mut file = ReceiptFile::open(&path).unwrap();
        [1, 2].iter().for_each(|id| file.append(&signed(*id)).unwrap());
        let whole = std::fs::read(&path).unwrap();
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        // Wherever the second line was cut, and with what a disk has left there after a crash.
        for cut in [first, first + 1, first + 77, whole.len() - 2, whole.len() - 1] {
            for rest in [&b""[..], &[0; 100]] {
                std::fs::write(&path, [&whole[..cut], rest].concat()).unwrap();
                let mut file = ReceiptFile::open(&path).unwrap();
                assert_eq!(file.is_torn(), cut > first || !rest.is_empty(), "{cut}");
                [3, 4].iter().for_each(|id| file.append(&signed(*id)).unwrap());
                let text = verify(&path).unwrap();
                // A receipt that lacks its newline alone is whole.
                let is_whole = cut == whole.len() - 1 && rest.is_empty();
                let n_good = if is_whole { 4 } else { 3 };
                assert!(text.contains(&format!(" in {n_good} contributions ")), "{cut}: {text}");
                let is_named = text.contains("line 2: torn, and left out");
                assert_eq!(is_named, (cut > first || !rest.is_empty()) && !is_whole, "{cut}: {text}");
            }
        }
    }

    #[test]
    fn a_receipt_of_a_newer_version_is_refused_and_not_taken_for_a_torn_line() {
        let good = serde_json::to_string(&signed(1)).unwrap();
        for newer in [
            good.replace("\"receipt\":", "\"receipt_3\":"),
            good.replace("\"n_samples\":64", "\"weight\":0.5"),
            good.replace("\"contribution_id\":1", "\"contribution_id\":\"1\""),
        ] {
            let error = verify_lines(format!("{good}\n{newer}\n").as_bytes(), "file").unwrap_err();
            let error = format!("{error:#}");
            assert!(
                error.starts_with("file, line 2: not a receipt") && error.contains("a newer one"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_line_that_was_changed_is_named() {
        let good = serde_json::to_string(&signed(1)).unwrap();
        let changed = good.replace("\"n_samples\":64", "\"n_samples\":65");
        let error = verify_lines(format!("{good}\n{changed}\n").as_bytes(), "file").unwrap_err();
        assert!(format!("{error:#}").starts_with("file, line 2: the receipt is not signed by"), "{error:#}");
        let long = "x".repeat(LINE_BYTES_MAX as usize * 2);
        let error = verify_lines(long.as_bytes(), "file").unwrap_err();
        assert!(format!("{error:#}").contains("line 1: longer"), "{error:#}");
        assert_eq!(verify_lines(&b""[..], "file").unwrap(), "");
    }
}
