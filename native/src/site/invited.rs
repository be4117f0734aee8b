//! `GET /api/invitations/<hash>`: to which run an invitation is.
//!
//! The links of invitations name no run where one was alone when they were made. A page that is opened by such a link asks
//! by the SHA-256 of the code, which is what the database has of it: the code itself is in no request and in no log, and
//! whoever knows the hash alone is let in nowhere.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::api::Invited;

use super::Shared;
use crate::http::no_store;

/// Answered for one that is used up or too late as well: the run says so itself.
pub(super) async fn invited(State(site): State<Arc<Shared>>, Path(hash): Path<String>) -> Response {
    let Ok(hash) = hash.parse::<Sha256Hash>() else { return unknown() };
    for run in &site.runs {
        let Some(store) = &run.invitations else { continue };
        match store.has_invitation(&hash).await {
            Ok(false) => {}
            Ok(true) => {
                let run = run.http.status().run.run_id.clone();
                return (no_store(), Json(Invited { run })).into_response();
            }
            Err(error) => {
                // What went wrong inside is for the log, not for strangers.
                tracing::warn!(%error, "an invitation cannot be looked for");
                let text = "the database is not at hand, come again in a moment\n";
                return (StatusCode::SERVICE_UNAVAILABLE, no_store(), text).into_response();
            }
        }
    }
    unknown()
}

fn unknown() -> Response {
    (StatusCode::NOT_FOUND, no_store(), "404: no run here has made this invitation\n").into_response()
}
