//! Debian's packages: whether there are some, and how they are installed.

use std::io::{IsTerminal, stdin};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// No questions from packages. Through `env`, because sudo passes no variables on.
const NONINTERACTIVE: &str = "DEBIAN_FRONTEND=noninteractive";

/// Name of a Debian package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Package(pub(crate) &'static str);

/// Installs Debian packages as root or through sudo.
pub(crate) fn install(packages: &[Package]) -> Result<()> {
    let names: Vec<&str> = packages.iter().map(|package| package.0).collect();
    let list = names.join(" ");
    if process::find("apt-get").is_none() {
        bail!("this system has no apt-get: install by its own means what Debian calls {list}");
    }
    if !names.iter().all(|name| is_known(name)) {
        process::run(&mut apt_get(&["update", "-qq"])?)?;
    }
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        bail!("apt has no package {unknown}");
    }
    println!("setup: apt-get install {list}");
    let mut command = apt_get(&["install", "-y", "-qq", "--no-install-recommends", "--no-remove"])?;
    process::run(command.args(names)).with_context(|| format!("cannot install {list}"))
}

/// Whether the package lists have a version of `package` to install.
fn is_known(package: &str) -> bool {
    let mut command = Command::new("apt-cache");
    command.args(["policy", package]).env("LC_ALL", "C");
    process::try_output(&mut command).is_some_and(|policy| has_candidate(&policy))
}

fn has_candidate(policy: &str) -> bool {
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate:"));
    candidate.is_some_and(|version| version.trim() != "(none)")
}

fn apt_get(args: &[&str]) -> Result<Command> {
    let mut command = if is_root() {
        let mut env = Command::new("env");
        env.args([NONINTERACTIVE, "apt-get"]);
        env
    } else if process::find("sudo").is_some() {
        let mut sudo = Command::new("sudo");
        if !stdin().is_terminal() {
            sudo.arg("-n");
        }
        sudo.args(["env", NONINTERACTIVE, "apt-get"]);
        sudo
    } else {
        bail!("neither root nor sudo: run `apt-get {}` with the packages as root", args.join(" "));
    };
    command.args(["-o", "Dpkg::Use-Pty=0"]).args(args);
    Ok(command)
}

pub(crate) fn is_root() -> bool {
    process::try_output(Command::new("id").arg("-u")).is_some_and(|uid| uid.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_needs_a_candidate() {
        assert!(has_candidate("binaryen:\n  Installed: (none)\n  Candidate: 108-1\n"));
        assert!(!has_candidate("binaryen:\n  Installed: (none)\n  Candidate: (none)\n"));
        assert!(!has_candidate(""), "apt-cache prints nothing for an unknown package");
    }
}
