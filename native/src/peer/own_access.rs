//! The own access of a peer that takes part without contributing to a run that is not open: gained as a contributor does, renewed in
//! time, shown to the backbone.

use std::time::Duration;

use barnraise_contributor::{Credentials, Platform, RunAccess, RunAccessError};
use barnraise_protocol::access::AccessToken;
use barnraise_protocol::run::RunDescription;
use futures::future::{self, Either};

use super::display::Display;
use super::home::HomeBackbone;
use super::platform::NativePlatform;

/// Interval of looks whether the token is old.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After an attempt that failed, and might not the next time.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Interval of looks whether a person is to sign in.
const SIGN_IN_EVERY: Duration = Duration::from_millis(200);

/// What the access is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessPurpose {
    /// To host experts, which are a part of the model.
    HostExperts,
    /// To train and to aggregate in a run without a server.
    TakePart,
}

impl AccessPurpose {
    fn words(self) -> &'static str {
        match self {
            Self::HostExperts => "host experts",
            Self::TakePart => "take part",
        }
    }
}

/// Why this peer has no access any more.
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
    purpose: AccessPurpose,
    display: &'a Display,
}

impl<'a> OwnAccess<'a> {
    /// Gains access at the backbone of `home`. In an open run nothing is asked.
    ///
    /// # Errors
    /// The run does not let this peer in, or not for this purpose.
    pub(super) async fn gained(
        (platform, home): (&'a NativePlatform, &HomeBackbone),
        (credentials, run): (Credentials, RunDescription),
        (purpose, display): (AccessPurpose, &'a Display),
    ) -> Result<Self, OwnAccessError> {
        let run_access = RunAccess::new(platform, credentials, run);
        let access = Self { platform, run_access, purpose, display };
        access.enter(home).await?;
        access.check_role()?;
        Ok(access)
    }

    fn check_role(&self) -> Result<(), OwnAccessError> {
        match self.run_access.token() {
            Some(token) if self.purpose == AccessPurpose::HostExperts && !token.claims.may_host => {
                Err(OwnAccessError::Role)
            }
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
                        self.display.say(&format!("Sign in at {url} to {}.", self.purpose.words()));
                        told = Some(url);
                    }
                }
            }
        };
        home.set_token(self.run_access.token());
        entered
    }

    /// Renews the access where it is time to.
    ///
    /// # Errors
    /// No access, or no answer; until the token expires it is good.
    pub(super) async fn renew(&self, home: &HomeBackbone) -> Result<(), RunAccessError> {
        self.platform.use_connection(home.node.clone(), home.peer());
        let renewed = self.run_access.renew().await;
        home.set_token(self.run_access.token());
        renewed
    }

    /// This peer's token; none in an open run.
    pub(super) fn token(&self) -> Option<AccessToken> {
        self.run_access.token()
    }

    /// Keeps the access. Ends where the run lets this peer in no longer.
    ///
    /// - `on_token`: hears of the token, again and again
    pub(super) async fn keep(&self, home: &HomeBackbone, on_token: impl Fn(AccessToken)) -> OwnAccessError {
        let mut is_told = false;
        loop {
            let kept = tokio::select! {
                () = home.access_lost() => self.enter(home).await,
                () = tokio::time::sleep(LOOK_EVERY) => self.renew(home).await,
            };
            match kept {
                Ok(()) => {
                    if let Err(error) = self.check_role() {
                        return error;
                    }
                    self.token().into_iter().for_each(&on_token);
                    if std::mem::take(&mut is_told) {
                        self.display.say("This peer has access again.");
                    }
                }
                Err(error) if error.is_final() => return error.into(),
                Err(error) => {
                    tracing::debug!(%error, "access could not be renewed");
                    let now = self.platform.unix_time();
                    let has_ended = self.token().is_none_or(|token| token.claims.expires_at <= now);
                    if has_ended && !std::mem::replace(&mut is_told, true) {
                        self.display
                            .say(&format!("The access of this peer has ended, and it asks again: {error}"));
                    }
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }
}
