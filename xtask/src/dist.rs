//! One archive to start from on a machine without a toolchain: the programs with the page inside, examples, what an
//! operator needs, and the licences of all that is in them.
//!
//! The same programs give the same bytes: nothing in it says who packed it, and when. It has the files that are named here
//! and no others: what an operator keeps beside them, such as passwords in `deploy/`, does not get in.

mod licences;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use crate::assets::{files_below, hex};
use crate::build::{self, NativeProfile};
use crate::process;
use crate::setup;
use crate::workspace::Workspace;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const PROGRAMS: [&str; 2] = ["barnraise", "barnraise-relay"];
/// As they lie in the repository, so that they find each other.
const FILES: [&str; 27] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "deploy/Caddyfile",
    "deploy/Containerfile",
    "deploy/alerts.yml",
    "deploy/compose.env.example",
    "deploy/compose.yaml",
    "deploy/config/relay.toml",
    "deploy/config/run.toml",
    "deploy/grafana/barnraise.json",
    "deploy/grafana/provisioning/dashboards/barnraise.yaml",
    "deploy/grafana/provisioning/datasources/prometheus.yaml",
    "deploy/nginx.conf",
    "deploy/prometheus.yml",
    "deploy/systemd/barnraise-relay.service",
    "deploy/systemd/barnraise.conf",
    "deploy/systemd/barnraise.service",
    "native/run.example.toml",
    "native/run.reference.toml",
    "native/swav.example.toml",
    "native/text.example.toml",
    "relay/relay.example.toml",
];
/// The book; nobody else keeps anything there.
const DOCUMENTS: &str = "docs";
/// Builds the programs first; in an archive they are there.
const CONTAINERFILE: &str = "deploy/Containerfile";
/// What is then in the place of its first stage, and of what it takes from there.
const CONTAINER_HEAD: &str =
    "# Both programs of this archive: `podman build -f deploy/Containerfile -t barnraise .` in its folder.\n";
const BUILT: &str =
    "--from=build /barnraise/target/release/barnraise /barnraise/target/release/barnraise-relay";
const PACKED: &str = "bin/barnraise bin/barnraise-relay";
/// What to do with it: `{version}`, `{host}` and `{glibc}` are filled in.
const INSTALL: &str = include_str!("dist/INSTALL.md");
/// Of every file, in seconds since 1970: the year 1980, which no program takes for a mistake.
const MODIFIED: u64 = 315_532_800;
/// What the names of glibc's versions begin with in a program that wants them.
const GLIBC: &[u8] = b"GLIBC_";

/// Contents by path.
type Files = BTreeMap<String, Vec<u8>>;

/// Builds everything and packs it.
pub(crate) fn run(workspace: &Workspace, profile: NativeProfile) -> Result<()> {
    let binary = build::web_and_native(workspace, setup::for_build()?, profile)?;
    println!("dist: {}", pack(workspace, profile, &binary)?.display());
    Ok(())
}

/// Packs `binary` and the programs beside it as they are; returns where the archive is.
pub(crate) fn pack(workspace: &Workspace, profile: NativeProfile, binary: &Path) -> Result<PathBuf> {
    let host = host()?;
    let name = format!("barnraise-{VERSION}-{host}");
    println!("dist: licences, and an archive of the programs");
    // What is quick to build is for tests, and never in the place of what is for others.
    let (folder, compression) = match profile {
        NativeProfile::Release | NativeProfile::Benches => ("dist", Compression::best()),
        NativeProfile::Dev | NativeProfile::Tests => ("debug/dist", Compression::fast()),
    };
    let folder = workspace.target.join(folder);
    fs::create_dir_all(&folder)?;
    let files = files(workspace, &host, binary, &folder)?;
    let bytes = archive(&name, &files, compression)?;
    let path = folder.join(format!("{name}.tar.gz"));
    fs::write(&path, &bytes).with_context(|| format!("cannot write {}", path.display()))?;
    let sum = format!("{}  {name}.tar.gz\n", hex(&Sha256::digest(&bytes)));
    fs::write(folder.join(format!("{name}.tar.gz.sha256")), sum)?;
    Ok(path)
}

fn files(workspace: &Workspace, host: &str, binary: &Path, scratch: &Path) -> Result<Files> {
    let mut files = Files::new();
    let mut glibc = None;
    for program in PROGRAMS {
        let bytes = stripped(&binary.with_file_name(program), &scratch.join("stripped"))?;
        glibc = glibc.max(glibc_wanted(&bytes));
        files.insert(format!("bin/{program}"), bytes);
    }
    let documents = files_below(&workspace.root.join(DOCUMENTS))?.into_iter();
    for path in FILES.iter().map(|path| workspace.root.join(path)).chain(documents) {
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        files.insert(path.strip_prefix(&workspace.root)?.display().to_string(), bytes);
    }
    let container = fs::read_to_string(workspace.root.join(CONTAINERFILE))?;
    files.insert(CONTAINERFILE.to_owned(), of_what_is_packed(&container)?.into_bytes());
    let glibc = glibc.map_or("any".to_owned(), |(major, minor)| format!("{major}.{minor}"));
    let install = [("{version}", VERSION), ("{host}", host), ("{glibc}", &glibc)];
    let install = install.iter().fold(INSTALL.to_owned(), |text, (what, is)| text.replace(what, is));
    files.insert("INSTALL.md".into(), install.into_bytes());
    files.insert("LICENSES-CRATES.txt".into(), licences::text(workspace, host)?.into_bytes());
    let of_library = licences::of_standard_library()?;
    files.extend(of_library.map(|text| ("LICENSES-STANDARD-LIBRARY.html".into(), text)));
    Ok(files)
}

/// The last stage of a Containerfile, with the programs from beside it.
fn of_what_is_packed(containerfile: &str) -> Result<String> {
    let last = containerfile.rfind("\nFROM ").map_or("", |at| &containerfile[at..]);
    ensure!(last.contains(BUILT), "{CONTAINERFILE}: a last stage with `COPY {BUILT}` was wanted");
    Ok([CONTAINER_HEAD, &last.replace(BUILT, PACKED)].concat())
}

/// The machine that programs are built on and for, as compilers call it.
fn host() -> Result<String> {
    let version = process::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// A program without what only debuggers read.
fn stripped(program: &Path, copy: &Path) -> Result<Vec<u8>> {
    process::run(Command::new("strip").arg("-o").arg(copy).arg(program))?;
    let bytes = fs::read(copy)?;
    fs::remove_file(copy)?;
    Ok(bytes)
}

/// The newest version of glibc that a program wants anything of.
fn glibc_wanted(program: &[u8]) -> Option<(u32, u32)> {
    let version = |place: &[u8]| {
        let name = place.strip_prefix(GLIBC)?;
        let name = name.split(|byte| !byte.is_ascii_digit() && *byte != b'.').next()?;
        let mut numbers = std::str::from_utf8(name).ok()?.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    let starts = (0..program.len()).filter(|&at| program[at] == GLIBC[0]);
    starts.filter_map(|at| version(&program[at..])).max()
}

/// A compressed tar archive of one folder.
fn archive(folder: &str, files: &Files, compression: Compression) -> Result<Vec<u8>> {
    // Neither the order in which files were found, nor whose they are and when they were written, is in it.
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), compression));
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(if path.starts_with("bin/") { 0o755 } else { 0o644 });
        header.set_mtime(MODIFIED);
        header.set_uid(0);
        header.set_gid(0);
        archive.append_data(&mut header, format!("{folder}/{path}"), bytes.as_slice())?;
    }
    let mut compressed = archive.into_inner()?;
    compressed.flush()?;
    Ok(compressed.finish()?)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn an_archive_says_nothing_of_who_made_it_and_when() {
        let mut files = Files::new();
        for path in ["docs/b.md", "bin/program", "a.md"] {
            files.insert(path.into(), path.as_bytes().to_vec());
        }
        let bytes = archive("folder", &files, Compression::fast()).unwrap();
        // The time in the header of gzip.
        assert_eq!(bytes[4..8], [0; 4]);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let header = entry.header();
            let (mode, modified) = (header.mode().unwrap(), header.mtime().unwrap());
            assert_eq!((header.uid().unwrap(), header.gid().unwrap(), modified), (0, 0, MODIFIED));
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            assert_eq!(path, format!("folder/{content}"));
            found.push((path, mode));
        }
        let wanted = [("folder/a.md", 0o644), ("folder/bin/program", 0o755), ("folder/docs/b.md", 0o644)];
        assert_eq!(found, wanted.map(|(path, mode)| (path.to_owned(), mode)));
    }

    #[test]
    fn all_that_operators_need_is_listed_and_nothing_of_theirs() {
        const THEIRS: [&str; 2] = ["deploy/compose.env", "deploy/secrets"];
        let root = Workspace::locate().unwrap().root;
        let mut folders = vec![root.join("deploy")];
        let mut missing = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(&root).unwrap().display().to_string();
                if THEIRS.contains(&name.as_str()) {
                    continue;
                } else if path.is_dir() {
                    folders.push(path);
                } else if !FILES.contains(&name.as_str()) {
                    missing.push(name);
                }
            }
        }
        assert!(missing.is_empty(), "not in FILES: {missing:?}");
        for file in FILES {
            assert!(root.join(file).is_file(), "{file}");
            assert!(
                !Path::new(file)
                    .ancestors()
                    .any(|path| THEIRS.iter().any(|theirs| path == Path::new(theirs)))
            );
        }
    }

    #[test]
    fn a_container_of_the_archive_builds_nothing() {
        let text = of_what_is_packed(include_str!("../../deploy/Containerfile")).unwrap();
        assert_eq!(text.matches("\nFROM ").count(), 1, "{text}");
        assert!(text.contains("\nCOPY bin/barnraise bin/barnraise-relay /usr/local/bin/\n"), "{text}");
        assert!(text.contains("\nENTRYPOINT ") && !text.contains("cargo"), "{text}");
        assert!(of_what_is_packed("FROM a AS build\n\nFROM b\nCOPY --from=build /x /y\n").is_err());
    }

    #[test]
    fn the_newest_version_of_glibc_counts() {
        let program = b"x\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_PRIVATE\0GLIBC_2.2.5\0GLIBC_\0";
        assert_eq!(glibc_wanted(program), Some((2, 34)));
        assert_eq!(glibc_wanted(b"G"), None);
    }
}
