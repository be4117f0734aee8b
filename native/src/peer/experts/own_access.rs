//! This host's own access to a run that is not open: gained as a contributor does, renewed in time, shown to the backbone.

use std::time::Duration;

use barnraise_contributor::{Credentials, RunAccess, RunAccessError};
use barnraise_protocol::run::RunDescription;
use futures::future::{self, Either};

use super::super::display::Display;
use super::super::platform::NativePlatform;
use super::home::HomeBackbone;

/// Interval of looks whether the token is old.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After an attempt that failed, and might not the next time.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Interval of looks whether a person is to sign in.
const SIGN_IN_EVERY: Duration = Duration::from_millis(200);

/// Why this host has no access any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnAccessError {
    #[error(transparent)]
    Access(#[from] RunAccessError),
    #[error(
        "this peer may contribute to the run, and not host its experts: ask the operator for an invitation of \
         `barnraise invite --host`, or to be put on the list by `barnraise allow add --host`"
    )]
    Role,
}

/// See the module. Not `Send`, as all of a participant's access.
pub(super) struct OwnAccess<'a> {
    platform: &'a NativePlatform,
    run_access: RunAccess<'a, NativePlatform>,
    display: &'a Display,
}

impl<'a> OwnAccess<'a> {
    /// Gains access at the backbone of `home`. In an open run nothing is asked.
    ///
    /// # Errors
    /// The run does not let this peer in, or not as a host.
    pub(super) async fn gained(
        (platform, home): (&'a NativePlatform, &HomeBackbone),
        (credentials, run): (Credentials, RunDescription),
        display: &'a Display,
    ) -> Result<Self, OwnAccessError> {
        let run_access = RunAccess::new(platform, credentials, run);
        let access = Self { platform, run_access, display };
        access.enter(home).await?;
        access.check_role()?;
        Ok(access)
    }

    fn check_role(&self) -> Result<(), OwnAccessError> {
        match self.run_access.token() {
            Some(token) if !token.claims.may_host => Err(OwnAccessError::Role),
            _ => Ok(()),
        }
    }

    async fn enter(&self, home: &HomeBackbone) -> Result<(), RunAccessError> {
        self.platform.use_connection(home.node.clone(), home.peer());
        let mut entering = std::pin::pin!(self.run_access.enter());
        let mut told = None;
        let entered = loop {
            let pause = std::pin::pin!(tokio::time::sleep(SIGN_IN_EVERY));
            match future::select(entering.as_mut(), pause).await {
                Either::Left((entered, _)) => break entered,
                Either::Right(((), _)) => {
                    let url = self.run_access.sign_in();
                    if let Some(url) = url.filter(|url| told.as_ref() != Some(url)) {
                        self.display.say(&format!("Sign in at {url} to host experts."));
                        told = Some(url);
                    }
                }
            }
        };
        home.set_token(self.run_access.token());
        entered
    }

    /// Keeps the access. Ends where the run lets this peer in no longer.
    pub(super) async fn keep(&self, home: &HomeBackbone) -> OwnAccessError {
        loop {
            let kept = tokio::select! {
                () = home.access_lost() => self.enter(home).await,
                () = tokio::time::sleep(LOOK_EVERY) => {
                    self.platform.use_connection(home.node.clone(), home.peer());
                    let renewed = self.run_access.renew().await;
                    home.set_token(self.run_access.token());
                    renewed
                }
            };
            match kept {
                Ok(()) => {
                    if let Err(error) = self.check_role() {
                        return error;
                    }
                }
                Err(error) if error.is_final() => return error.into(),
                Err(error) => {
                    tracing::debug!(%error, "access could not be renewed");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }
}
