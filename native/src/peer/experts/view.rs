//! What a host tells its operator: `GET /experts` at its operator's address, and `barnraise experts show`.

use barnraise_protocol::access::PublicKey;
use serde::{Deserialize, Serialize};

use crate::text_table::columns;

/// What a host is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum HostStage {
    /// It serves its experts, and takes others where it has room.
    Serving,
    /// It hands an expert over to another host, and takes none meanwhile.
    Moving,
    /// It hands all of them over.
    Draining,
    /// It has handed over what others have taken, and ends.
    Drained,
}

/// How a handover goes, or how the last one went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HandedOver {
    /// Experts that other hosts have taken.
    pub(super) n_taken: usize,
    /// Those that no other host has.
    pub(super) n_left: usize,
    /// The key of the host that has the last one of those that were taken.
    pub(super) last_taker: Option<PublicKey>,
}

/// An expert that is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServedExpertView {
    /// Number of its layer.
    pub(super) layer: u16,
    /// Its place on the grid, such as `3.17`.
    pub(super) uid: String,
    /// Steps that it has made, here and before.
    pub(super) n_steps: u64,
    /// Requests that were computed here.
    pub(super) n_requests: u64,
    /// Rows that wait for it.
    pub(super) n_rows_waiting: u64,
    /// Whether it makes no step.
    pub(super) is_frozen: bool,
    /// Seconds since it was stored on this host's disk; none before the first time.
    pub(super) stored_s_ago: Option<u64>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct HostView {
    /// Id of its run.
    pub(super) run: String,
    /// Its peer id.
    pub(super) peer: String,
    /// Experts that it hosts at most.
    pub(super) n_room: u32,
    /// What it is about.
    pub(super) stage: HostStage,
    /// Of the newest handover; none before the first one.
    pub(super) handed_over: Option<HandedOver>,
    /// Rows that wait for all of its experts.
    pub(super) n_rows_waiting: u64,
    /// Speed of the device, as measured; 0 before the first batch.
    pub(super) rows_per_second: f64,
    /// Layers whose experts make no step here.
    pub(super) frozen_layers: Vec<u16>,
    /// Those that are served.
    pub(super) experts: Vec<ServedExpertView>,
}

impl HostView {
    /// As a table, for a terminal.
    pub(super) fn table(&self) -> String {
        let stage = match (self.stage, self.handed_over) {
            (HostStage::Serving, _) => "serving".to_owned(),
            (HostStage::Moving, _) => "moving an expert to another host".to_owned(),
            (HostStage::Draining, Some(HandedOver { n_taken, n_left, .. })) => {
                format!("draining: {n_taken} experts have other hosts, {n_left} have none yet")
            }
            (HostStage::Draining, None) => "draining".to_owned(),
            (HostStage::Drained, _) => "drained".to_owned(),
        };
        let (n_experts, n_room) = (self.experts.len(), self.n_room);
        let mut text = format!(
            "{} of `{}`: {stage}\n{n_experts} experts, room for {n_room}; {} rows wait, {:.0} a second are computed\n",
            self.peer, self.run, self.n_rows_waiting, self.rows_per_second
        );
        let row = |expert: &ServedExpertView| {
            let stored =
                expert.stored_s_ago.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds} s ago"));
            let steps = match expert.is_frozen {
                true => format!("{} (frozen)", expert.n_steps),
                false => expert.n_steps.to_string(),
            };
            let (requests, waiting) = (expert.n_requests.to_string(), expert.n_rows_waiting.to_string());
            vec![expert.layer.to_string(), expert.uid.clone(), steps, requests, waiting, stored]
        };
        let rows: Vec<_> = self.experts.iter().map(row).collect();
        text.push_str(&columns(&["layer", "uid", "steps", "requests", "rows waiting", "stored"], &rows));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_table_with_a_line_for_each_expert() {
        let expert = |uid: &str, is_frozen, stored_s_ago| ServedExpertView {
            layer: 2,
            uid: uid.to_owned(),
            n_steps: 40,
            n_requests: 7,
            n_rows_waiting: 0,
            is_frozen,
            stored_s_ago,
        };
        let view = HostView {
            run: "barn".to_owned(),
            peer: "12D3".to_owned(),
            n_room: 16,
            stage: HostStage::Draining,
            handed_over: Some(HandedOver { n_taken: 3, n_left: 2, last_taker: None }),
            n_rows_waiting: 64,
            rows_per_second: 1200.4,
            frozen_layers: vec![2],
            experts: vec![expert("3.17", true, Some(12)), expert("4.0", false, None)],
        };
        let table = view.table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 5, "{table}");
        assert!(lines[0].contains("3 experts have other hosts, 2 have none yet"), "{table}");
        assert!(lines[1].contains("2 experts, room for 16; 64 rows wait, 1200 a second"), "{table}");
        assert!(
            lines[3].contains("3.17") && lines[3].contains("40 (frozen)") && lines[3].contains("12 s ago")
        );
        assert!(lines[4].contains("4.0") && !lines[4].contains("frozen"), "{table}");
    }
}
