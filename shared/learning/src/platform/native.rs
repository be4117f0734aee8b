//! A native process: the graphics backend reports a missing adapter itself.

/// Nothing to ask before the backend does.
pub(crate) async fn check_adapter() -> Result<(), String> {
    Ok(())
}

/// Runs `open` and turns a panic of a driver's wrapper into its message.
#[cfg(feature = "cuda")]
pub(crate) fn catch_panic<T>(open: impl FnOnce() -> T + std::panic::UnwindSafe) -> Result<T, String> {
    std::panic::catch_unwind(open).map_err(|payload| match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => match payload.downcast::<&str>() {
            Ok(message) => (*message).to_owned(),
            Err(_) => "the backend stopped without a message".to_owned(),
        },
    })
}
