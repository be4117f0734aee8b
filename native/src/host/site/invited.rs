//! `GET /api/invitations/<hash>`: finds the run of an invitation.
//!
//! An invitation link names no run if the run was alone when the link was made. A page that was opened by such a link asks
//! with the SHA-256 of the code, as the database has it. So the code itself is in no request and no log, and the hash
//! alone gives no access.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::api::InvitationTarget;

use super::SiteState;
use crate::host::headers::no_store;

/// Also finds invitations that are used up or expired: the run itself reports that.
pub(super) async fn invited(State(site): State<Arc<SiteState>>, Path(hash): Path<String>) -> Response {
    let Ok(hash) = hash.parse::<Sha256Hash>() else { return unknown() };
    for run in &site.runs().runs {
        let Some(store) = &run.invitations else { continue };
        match store.has_invitation(&hash).await {
            Ok(false) => {}
            Ok(true) => {
                let run = run.id();
                return (no_store(), Json(InvitationTarget { run })).into_response();
            }
            Err(error) => {
                // The error goes to the log only.
                tracing::warn!(%error, "an invitation cannot be looked for");
                let text = "the database does not answer, try again in a moment\n";
                return (StatusCode::SERVICE_UNAVAILABLE, no_store(), text).into_response();
            }
        }
    }
    unknown()
}

fn unknown() -> Response {
    (StatusCode::NOT_FOUND, no_store(), "404: no run here has made this invitation\n").into_response()
}
