//! The file by which commands on this machine find the admin API of a process that has a folder open.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;

use crate::storage::is_in_use;

/// File in the folder with the address at which its process serves its operator.
const ADDRESS_FILE: &str = "operator.address";

/// Writes the address of the admin API to the folder, where the commands look for it. Without an admin API the file
/// is removed, also one that a crash left.
///
/// # Errors
/// The folder takes no file.
pub(crate) fn note_address(address: Option<SocketAddr>, folder: &Path) -> anyhow::Result<()> {
    let file = folder.join(ADDRESS_FILE);
    let Some(address) = address else {
        return match std::fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("{}", file.display()))
            }
            _ => Ok(()),
        };
    };
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "the operator's address is plain HTTP and open to other machines: keep it inside");
    }
    std::fs::write(&file, format!("{address}\n")).with_context(|| format!("{}", file.display()))
}

/// The address that the process with this folder has written there. `None` where it serves no operator.
///
/// # Errors
/// No process has the folder open: after a crash another one may listen at the address, which must not read the token.
pub(crate) fn noted_address(folder: &Path) -> Result<Option<SocketAddr>, NotInUse> {
    if is_in_use(folder) == Some(false) {
        return Err(NotInUse);
    }
    let said = std::fs::read_to_string(folder.join(ADDRESS_FILE)).ok();
    Ok(said.and_then(|text| text.trim().parse().ok()))
}

/// No process has a folder open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no process has its folder open")]
pub(crate) struct NotInUse;
