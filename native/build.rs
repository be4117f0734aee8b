//! With the feature `page`: lists the files of the web folder that the variable `BARNRAISE_PAGE` names, so that
//! `src/page.rs` has them in the program. Without it nothing is read.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::fmt::Write as _;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

const FOLDER: &str = "BARNRAISE_PAGE";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={FOLDER}");
    if env::var_os("CARGO_FEATURE_PAGE").is_none() {
        return Ok(());
    }
    let folder = env::var_os(FOLDER).map(PathBuf::from).filter(|folder| folder.join("index.html").is_file());
    let folder = folder.ok_or_else(|| {
        format!("the feature `page` wants {FOLDER} to name the web folder, with its index.html: `cargo xtask build`")
    })?;
    let folder = folder.canonicalize()?;
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut files = BTreeMap::new();
    list(&folder, "", &mut files)?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?).join("page.rs");
    fs::write(out, code(&files)?)?;
    Ok(())
}

fn list(folder: &Path, prefix: &str, files: &mut BTreeMap<String, PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name =
            entry.file_name().into_string().map_err(|name| format!("{} is not UTF-8", name.display()))?;
        if name.starts_with('.') {
            continue;
        }
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            list(&entry.path(), &format!("{path}/"), files)?;
        } else {
            files.insert(path, entry.path());
        }
    }
    Ok(())
}

/// A slice of files in the order of their paths.
fn code(files: &BTreeMap<String, PathBuf>) -> Result<String, Box<dyn Error>> {
    let mut code = String::from("&[\n");
    for (path, file) in files {
        let compressed = |suffix: &str| files.get(&format!("{path}{suffix}"));
        let is_sibling = [".br", ".gz"]
            .iter()
            .any(|suffix| path.strip_suffix(suffix).is_some_and(|path| files.contains_key(path)));
        if is_sibling {
            continue;
        }
        let bytes = |file: &PathBuf| format!("include_bytes!({:?})", file.display().to_string());
        let sibling =
            |suffix| compressed(suffix).map_or("None".to_owned(), |file| format!("Some({})", bytes(file)));
        let mut hasher = DefaultHasher::new();
        hasher.write(&fs::read(file)?);
        writeln!(
            code,
            "    File {{ path: {path:?}, tag: \"{:016x}\", plain: {}, brotli: {}, gzip: {} }},",
            hasher.finish(),
            bytes(file),
            sibling(".br"),
            sibling(".gz"),
        )?;
    }
    code.push(']');
    Ok(code)
}
