//! Export of checkpoints, as they are stored, with their hash. A checkpoint is never whole in memory.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use barnraise_learning::ParameterLayout;
use futures::{StreamExt, TryStreamExt};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::audited::written;
use super::state::{Admin, HostedRun, audit_record, json_response, stream_response};
use crate::host::hex;
use crate::host::operator::view::{CheckpointCard, CheckpointList, CheckpointView};
use crate::host::problem::Problem;
use crate::storage::checkpoint::CheckpointError;

const FORMAT: &str = "A checkpoint of Barnraise, as it is stored: parameters, optimizer state and curve. Put into the \
    folder `checkpoints` of an empty run folder, under the same name, it is what a run with the same id and model goes \
    on from.";

type CheckpointPath = Result<Path<(String, String)>, PathRejection>;

/// `GET /admin/v1/runs/{run}/checkpoints`
pub(super) async fn checkpoints(
    State(admin): State<Admin>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let Path(id) = path?;
    let kept = admin.run(&id)?.checkpoints.kept().await.map_err(inside)?;
    let view = |(epoch, n_bytes)| CheckpointView { epoch, n_bytes };
    Ok(json_response(&CheckpointList { checkpoints: kept.into_iter().map(view).collect() }))
}

/// `GET /admin/v1/runs/{run}/checkpoints/{epoch}/card`
pub(super) async fn card(State(admin): State<Admin>, path: CheckpointPath) -> Result<Response, Problem> {
    let Path((id, epoch)) = path?;
    let run = admin.run(&id)?;
    let epoch = number(&epoch)?;
    let _turn = admin.exports.try_acquire().map_err(|_| Problem::Busy)?;
    let (n_bytes, sha256) = measure(run, epoch).await?;
    let description = &run.description;
    let layout = ParameterLayout::of_run(description).map_err(inside)?;
    Ok(json_response(&CheckpointCard {
        run: description.identity.run_id.clone(),
        title: description.identity.title.clone(),
        purpose: description.identity.purpose.clone(),
        model: serde_json::to_value(&description.model).map_err(inside)?,
        data: description.data.manifest.name.clone(),
        epoch,
        n_parameters: layout.n_parameters() as u64,
        n_bytes,
        sha256,
        format: FORMAT.to_owned(),
    }))
}

/// `GET /admin/v1/runs/{run}/checkpoints/{epoch}`
pub(super) async fn checkpoint(
    State(admin): State<Admin>,
    ConnectInfo(caller): ConnectInfo<SocketAddr>,
    path: CheckpointPath,
) -> Result<Response, Problem> {
    let Path((id, epoch)) = path?;
    let run = admin.run(&id)?;
    let epoch = number(&epoch)?;
    let turn = admin.exports.clone().try_acquire_owned().map_err(|_| Problem::Busy)?;
    let opened = run.checkpoints.open(epoch).await.map_err(inside)?;
    let (n_bytes, chunks) = opened.ok_or(Problem::NoCheckpoint(epoch))?;
    let record = audit_record(caller, "export", &id, json!({"epoch": epoch}));
    let number = written(&admin.audit, &record, |audit, record| audit.begin(record)).await?;
    // Only the beginning is logged: how much arrived, only the client knows.
    written(&admin.audit, &record, move |audit, record| audit.end(number, record, None)).await?;
    let chunks = chunks.map(move |chunk| {
        let _held_while_read = &turn;
        chunk
    });
    let name = format!("attachment; filename=\"{id}-{epoch:012}.ckpt\"");
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_LENGTH, HeaderValue::from(n_bytes)),
        (header::CONTENT_DISPOSITION, HeaderValue::try_from(name).map_err(inside)?),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok(stream_response(headers, Body::from_stream(chunks)))
}

/// Length and hash of a checkpoint's file.
async fn measure(run: &HostedRun, epoch: u64) -> Result<(u64, String), Problem> {
    let opened = run.checkpoints.open(epoch).await.map_err(inside)?;
    let (_, mut chunks) = opened.ok_or(Problem::NoCheckpoint(epoch))?;
    let (mut hash, mut n_bytes) = (Sha256::new(), 0);
    while let Some(chunk) = chunks.try_next().await.map_err(|error| inside(CheckpointError::from(error)))? {
        n_bytes += chunk.len() as u64;
        hash.update(&chunk);
    }
    Ok((n_bytes, hex(&hash.finalize())))
}

fn number(text: &str) -> Result<u64, Problem> {
    text.parse().map_err(|_| Problem::Address("the epoch is a number".into()))
}

/// Logs an internal error. By value, for `map_err`.
#[allow(clippy::needless_pass_by_value)]
fn inside<E: std::fmt::Display>(error: E) -> Problem {
    tracing::error!(%error, "a checkpoint cannot be exported");
    Problem::Inside
}
