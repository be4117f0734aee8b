//! Decides which peer is a backbone of the wanted run, among those that claim it. Pure.
//!
//! The handshake proves a peer's key. That its run belongs to a certain authority is only a claim. The claim is certain
//! if the peer is that authority. It is proven as well if the authority has signed a record that names the peer as an
//! aggregator; and in a run without a server, if the authority has signed the description, which any participant hands on.
//! Any other claim is accepted only where no proven claim is present and no other claim contradicts it.

use barnraise_protocol::access::PublicKey;

/// A peer's claim about the run that it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunClaim {
    /// The peer that makes the claim.
    pub(super) peer: PublicKey,
    /// The claimed authority of the run.
    pub(super) authority: PublicKey,
    /// Whether that authority has signed a record that names this peer as an aggregator.
    pub(super) is_named: bool,
    /// Whether the run has no server, and its authority has signed what the peer describes: any participant may.
    pub(super) is_signed: bool,
}

impl RunClaim {
    /// Whether the peer is the authority, which its key proves.
    pub(super) fn is_certain(&self) -> bool {
        self.peer == self.authority
    }

    /// Whether the peer is the authority, or one that it names.
    pub(super) fn is_of_backbone(&self) -> bool {
        self.is_certain() || self.is_named
    }

    /// Whether the peer's key or a signature of the authority proves the claim.
    pub(super) fn is_proven(&self) -> bool {
        self.is_of_backbone() || self.is_signed
    }
}

/// Why no claim is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClaimError {
    /// Several runs have the same id.
    #[error(
        "backbones of the run `{run_id}` disagree about its authority: {}; say which is meant by one of {}",
        words(claims),
        names(run_id, claims)
    )]
    Disagreement { run_id: String, claims: Vec<RunClaim> },
    /// No proven claim names the wanted authority.
    #[error("the run `{run_id}` of the authority {wanted} is wanted, and {}", words(claims))]
    Another { run_id: String, wanted: PublicKey, claims: Vec<RunClaim> },
}

/// The claim that is accepted: the first of the best ones.
///
/// - `wanted`: the authority, where the user named it
/// - `claims`: at least one, in the order of preference
pub(super) fn believed(
    run_id: &str,
    wanted: Option<PublicKey>,
    claims: &[RunClaim],
) -> Result<RunClaim, ClaimError> {
    let (run_id, all) = (run_id.to_owned(), claims.to_vec());
    if let Some(wanted) = wanted {
        let proven = claims.iter().find(|claim| claim.is_proven() && claim.authority == wanted);
        return proven.copied().ok_or(ClaimError::Another { run_id, wanted, claims: all });
    }
    let first = claims.first().map(|claim| claim.authority);
    if claims.iter().any(|claim| Some(claim.authority) != first) {
        return Err(ClaimError::Disagreement { run_id, claims: all });
    }
    let chosen = claims.iter().find(|claim| claim.is_proven()).or(claims.first());
    chosen.copied().ok_or(ClaimError::Disagreement { run_id, claims: all })
}

fn words(claims: &[RunClaim]) -> String {
    let words = |claim: &RunClaim| match claim.is_certain() {
        true => format!("{} says that it is itself", claim.peer),
        false => format!("{} says {}", claim.peer, claim.authority),
    };
    claims.iter().map(words).collect::<Vec<_>>().join(", ")
}

/// The arguments of `--run` for each authority.
fn names(run_id: &str, claims: &[RunClaim]) -> String {
    let mut authorities: Vec<PublicKey> = claims.iter().map(|claim| claim.authority).collect();
    authorities.sort_unstable();
    authorities.dedup();
    let names: Vec<String> = authorities.iter().map(|key| format!("--run {run_id}@{key}")).collect();
    names.join(" or ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const A: PublicKey = PublicKey([0xa0; 32]);
    const B: PublicKey = PublicKey([0xb0; 32]);
    const C: PublicKey = PublicKey([0xc0; 32]);

    fn claim(peer: PublicKey, authority: PublicKey) -> RunClaim {
        RunClaim { peer, authority, is_named: false, is_signed: false }
    }

    #[test]
    fn a_peer_that_the_authority_names_is_as_good_as_the_authority() {
        let named = RunClaim { is_named: true, ..claim(B, A) };
        let claims = [claim(C, A), named, claim(A, A)];
        assert_eq!(believed("run", Some(A), &claims), Ok(named));
        assert_eq!(believed("run", None, &claims), Ok(named));
        // It is preferred where it comes first.
        assert_eq!(believed("run", Some(A), &[claim(A, A), named]), Ok(claim(A, A)));
        // A record of B that names C proves nothing for A's run.
        let of_another = RunClaim { is_named: true, ..claim(C, B) };
        assert!(believed("run", Some(A), &[of_another]).is_err());
    }

    #[test]
    fn who_has_the_signed_description_is_of_the_run_and_no_backbone() {
        let signed = RunClaim { is_signed: true, ..claim(B, A) };
        assert_eq!(believed("run", Some(A), &[claim(C, A), signed]), Ok(signed));
        assert!(signed.is_proven() && !signed.is_of_backbone());
        assert!(believed("run", Some(C), &[signed]).is_err());
    }

    #[test]
    fn an_authority_that_is_there_itself_is_taken_first() {
        let claims = [claim(C, A), claim(A, A), claim(B, A)];
        assert_eq!(believed("run", None, &claims), Ok(claim(A, A)));
        assert_eq!(believed("run", Some(A), &claims), Ok(claim(A, A)));
        assert_eq!(
            believed("run", None, &claims[..1]),
            Ok(claim(C, A)),
            "the authority is down, and no claim contradicts"
        );
    }

    #[test]
    fn two_authorities_are_listed_and_neither_is_believed() {
        let error = believed("run", None, &[claim(A, A), claim(B, B), claim(C, A)]).unwrap_err();
        let text = error.to_string();
        for part in [
            format!("{A} says that it is itself"),
            format!("{C} says {A}"),
            format!("--run run@{A} or --run run@{B}"),
        ] {
            assert!(text.contains(&part), "{part}: {text}");
        }
        assert!(believed("run", None, &[]).is_err());
    }

    #[test]
    fn a_search_for_an_authority_finds_that_one_or_nobody() {
        let claims = [claim(B, B), claim(C, A), claim(A, A)];
        assert_eq!(believed("run", Some(A), &claims), Ok(claim(A, A)));
        // C's claim alone proves nothing.
        let error = believed("run", Some(A), &claims[..2]).unwrap_err();
        assert!(error.to_string().contains(&format!("authority {A} is wanted")), "{error}");
    }
}
