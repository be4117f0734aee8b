//! Whom to believe among peers that say they are backbones of a run. Pure.
//!
//! That a peer has its key is proven by the connection's handshake; that a run is that of a certain authority
//! is what a peer says. So an authority that is met itself is certain, and as good is whoever names an authority that
//! has signed that it averages with them. Whoever names another is taken at their word only where nobody contradicts and
//! neither is there.

use barnraise_protocol::access::PublicKey;

/// What a peer says of the run that it serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// Who says it.
    pub(super) peer: PublicKey,
    /// Whose run it is.
    pub(super) authority: PublicKey,
    /// Whether that authority has signed that it averages with this peer.
    pub(super) is_named: bool,
}

impl Claim {
    /// It is the authority itself, which its key proves.
    pub(super) fn is_certain(&self) -> bool {
        self.peer == self.authority
    }

    /// It is of the run of that authority, whose signature says so.
    pub(super) fn is_proven(&self) -> bool {
        self.is_certain() || self.is_named
    }
}

/// Why nobody is believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ClaimError {
    /// Several runs go by the same id.
    #[error(
        "backbones of the run `{run_id}` disagree about its authority: {}; say which is meant by one of {}",
        words(claims),
        names(run_id, claims)
    )]
    Disagreement { run_id: String, claims: Vec<Claim> },
    /// The peer with the wanted key serves somebody else's run.
    #[error("the run `{run_id}` of the authority {wanted} is wanted, and {}", words(claims))]
    Another { run_id: String, wanted: PublicKey, claims: Vec<Claim> },
}

/// The claim that is believed: the first of those that are as good.
///
/// - `wanted`: the authority, where it is known from elsewhere
/// - `claims`: one at least, in the order of preference
pub(super) fn believed(
    run_id: &str,
    wanted: Option<PublicKey>,
    claims: &[Claim],
) -> Result<Claim, ClaimError> {
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

fn words(claims: &[Claim]) -> String {
    let words = |claim: &Claim| match claim.is_certain() {
        true => format!("{} says that it is itself", claim.peer),
        false => format!("{} says {}", claim.peer, claim.authority),
    };
    claims.iter().map(words).collect::<Vec<_>>().join(", ")
}

/// What `--run` takes, for each authority.
fn names(run_id: &str, claims: &[Claim]) -> String {
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

    fn claim(peer: PublicKey, authority: PublicKey) -> Claim {
        Claim { peer, authority, is_named: false }
    }

    #[test]
    fn whoever_the_authority_names_is_as_good_as_itself() {
        let named = Claim { is_named: true, ..claim(B, A) };
        let claims = [claim(C, A), named, claim(A, A)];
        assert_eq!(believed("run", Some(A), &claims), Ok(named));
        assert_eq!(believed("run", None, &claims), Ok(named));
        // It is preferred where it comes first.
        assert_eq!(believed("run", Some(A), &[claim(A, A), named]), Ok(claim(A, A)));
        // That B's authority names C says nothing of A's run.
        let of_another = Claim { is_named: true, ..claim(C, B) };
        assert!(believed("run", Some(A), &[of_another]).is_err());
    }

    #[test]
    fn an_authority_that_is_there_itself_is_taken_first() {
        let claims = [claim(C, A), claim(A, A), claim(B, A)];
        assert_eq!(believed("run", None, &claims), Ok(claim(A, A)));
        assert_eq!(believed("run", Some(A), &claims), Ok(claim(A, A)));
        assert_eq!(
            believed("run", None, &claims[..1]),
            Ok(claim(C, A)),
            "it is away, and nobody contradicts"
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
    fn whoever_asks_for_an_authority_gets_that_one_or_nobody() {
        let claims = [claim(B, B), claim(C, A), claim(A, A)];
        assert_eq!(believed("run", Some(A), &claims), Ok(claim(A, A)));
        // What C says it could say of anybody.
        let error = believed("run", Some(A), &claims[..2]).unwrap_err();
        assert!(error.to_string().contains(&format!("authority {A} is wanted")), "{error}");
    }
}
