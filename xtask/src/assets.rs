//! From plain files to the folder that a backbone serves.
//!
//! Every file but the entry points is renamed by a hash of its content and goes to `assets/`, so that
//! browsers may keep it for ever. Text files name another by `{{asset:NAME}}`, which becomes its
//! address, `{{bytes:NAME}}`, which becomes its length in bytes, or `{{sha256:NAME}}`, which becomes its
//! SHA-256 in lower-case hexadecimal, both uncompressed; `{{sha256:*}}` names the build, and changes with
//! every file. A file's own hash is taken after its references
//! were resolved, so a change anywhere below changes every name above. Compressed siblings are made here,
//! never while serving.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::asset_file::{Asset, write_if_new};
use crate::compress::{self, Effort};

const OPEN_ADDRESS: &str = "{{asset:";
const OPEN_LENGTH: &str = "{{bytes:";
const OPEN_HASH: &str = "{{sha256:";
const CLOSE: &str = "}}";
/// All plain files together, where a hash is asked for.
const EVERYTHING: &str = "*";
const ASSET_FOLDER: &str = "assets";
/// Hexadecimal digits of a content hash in a name.
const HASH_DIGITS: usize = 12;
/// Files that are asked for by a fixed address.
const ENTRY_POINTS: [&str; 5] =
    ["index.html", "manifest.webmanifest", "robots.txt", "favicon.ico", "service-worker.js"];

/// Plain files by name.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    files: BTreeMap<String, Vec<u8>>,
}

impl Sources {
    /// All files below `folder`, by their plain names; those that begin with a dot are left out.
    pub(crate) fn add_folder(&mut self, folder: &Path) -> Result<()> {
        for path in files_below(folder)? {
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.with_context(|| format!("{} is no name for the web", path.display()))?;
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            self.add(name, bytes)?;
        }
        Ok(())
    }

    /// What wasm-bindgen wrote: `name.js`, `name_bg.wasm`, and scripts that its JavaScript imports
    /// from below `snippets/`. Relative addresses among them become references.
    pub(crate) fn add_bindgen(&mut self, folder: &Path) -> Result<()> {
        let paths = files_below(folder)?;
        let mut names = BTreeMap::new();
        for path in &paths {
            let relative = path.strip_prefix(folder)?.to_str().context("a path that is no text")?;
            names.insert(relative.to_owned(), relative.replace('/', "-"));
        }
        for path in &paths {
            let relative = path.strip_prefix(folder)?.to_string_lossy().into_owned();
            let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let bytes = if is_text(&relative) { refer(&utf8(&relative, bytes)?, &names) } else { bytes };
            self.add(&relative.replace('/', "-"), bytes)?;
        }
        Ok(())
    }

    /// Of all names and contents, in lower-case hexadecimal.
    fn sha256(&self) -> String {
        let mut hash = Sha256::new();
        for (name, bytes) in &self.files {
            for part in [name.as_bytes(), bytes] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
        hex(&hash.finalize())
    }

    fn add(&mut self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let earlier = self.files.insert(name.to_owned(), bytes);
        ensure!(earlier.is_none(), "two files are called {name}; references go by the plain name");
        Ok(())
    }

    /// Names and contents as they will be served.
    pub(crate) fn resolve(&self) -> Result<Vec<Asset>> {
        let mut resolver =
            Resolver { sources: self, done: BTreeMap::new(), open: Vec::new(), assets: Vec::new() };
        for name in self.files.keys() {
            resolver.resolve(name)?;
        }
        Ok(resolver.assets)
    }
}

/// Replaces `'./file'` and `'file'` in generated JavaScript by references.
fn refer(text: &str, names: &BTreeMap<String, String>) -> Vec<u8> {
    let mut text = text.to_owned();
    for (relative, name) in names {
        for quote in ['\'', '"'] {
            let reference = format!("{quote}{OPEN_ADDRESS}{name}{CLOSE}{quote}");
            text = text.replace(&format!("{quote}./{relative}{quote}"), &reference);
            text = text.replace(&format!("{quote}{relative}{quote}"), &reference);
        }
    }
    text.into_bytes()
}

/// Walks references depth first, so that a file is hashed after all that it names.
struct Resolver<'a> {
    sources: &'a Sources,
    done: BTreeMap<String, Resolved>,
    /// From the first file to the one whose references are being resolved.
    open: Vec<String>,
    assets: Vec<Asset>,
}

/// What can be said of a file in another.
#[derive(Debug, Clone)]
struct Resolved {
    /// `/assets/page.0123456789ab.js`
    address: String,
    n_bytes: usize,
    /// In lower-case hexadecimal.
    sha256: String,
}

impl Resolver<'_> {
    fn resolve(&mut self, name: &str) -> Result<Resolved> {
        if let Some(resolved) = self.done.get(name) {
            return Ok(resolved.clone());
        }
        if self.open.iter().any(|open| open == name) {
            bail!("files name each other in a circle: {} -> {name}", self.open.join(" -> "));
        }
        let Some(bytes) = self.sources.files.get(name) else {
            let from = self.open.last().map_or("nobody", String::as_str);
            bail!("{from} names {name}, and there is no such file");
        };
        self.open.push(name.to_owned());
        let bytes = if is_text(name) {
            self.substitute(name, &utf8(name, bytes.clone())?)?.into_bytes()
        } else {
            bytes.clone()
        };
        self.open.pop();
        let sha256 = hex(&Sha256::digest(&bytes));
        let path = served_path(name, &sha256);
        let resolved = Resolved { address: format!("/{path}"), n_bytes: bytes.len(), sha256 };
        self.assets.push(Asset { path, bytes });
        self.done.insert(name.to_owned(), resolved.clone());
        Ok(resolved)
    }

    fn substitute(&mut self, name: &str, text: &str) -> Result<String> {
        let mut result = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((position, open)) = next_reference(rest) {
            let (before, after) = (&rest[..position], &rest[position + open.len()..]);
            let Some((reference, tail)) = after.split_once(CLOSE) else {
                bail!("{name}: a reference begins with {open} and never ends");
            };
            result.push_str(before);
            rest = tail;
            if open == OPEN_HASH && reference == EVERYTHING {
                result.push_str(&self.sources.sha256());
                continue;
            }
            let resolved = self.resolve(reference.trim())?;
            match open {
                OPEN_LENGTH => result.push_str(&resolved.n_bytes.to_string()),
                OPEN_HASH => result.push_str(&resolved.sha256),
                _ => result.push_str(&resolved.address),
            }
        }
        result.push_str(rest);
        Ok(result)
    }
}

/// Where the next reference begins, and how.
fn next_reference(text: &str) -> Option<(usize, &'static str)> {
    let find = |open: &'static str| text.find(open).map(|position| (position, open));
    [OPEN_ADDRESS, OPEN_LENGTH, OPEN_HASH].into_iter().filter_map(find).min()
}

fn served_path(name: &str, sha256: &str) -> String {
    if ENTRY_POINTS.contains(&name) {
        return name.to_owned();
    }
    let hash = &sha256[..HASH_DIGITS.min(sha256.len())];
    match name.rsplit_once('.') {
        Some((stem, extension)) => format!("{ASSET_FOLDER}/{stem}.{hash}.{extension}"),
        None => format!("{ASSET_FOLDER}/{name}.{hash}"),
    }
}

/// Whether references in the file are resolved.
fn is_text(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    matches!(extension, "html" | "css" | "js" | "mjs" | "svg" | "json" | "webmanifest" | "txt")
}

fn utf8(name: &str, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).with_context(|| format!("{name} is not UTF-8"))
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the assets with their compressed siblings and removes what is no longer part of them. What
/// is there already under a hashed name is kept as it is.
pub(crate) fn write(web_root: &Path, assets: &[Asset], effort: Effort) -> Result<()> {
    let mut wanted = BTreeSet::new();
    for asset in assets {
        let path = web_root.join(&asset.path);
        write_if_new(&path, &asset.bytes)?;
        wanted.insert(path.clone());
        if compress::is_worthwhile(&asset.path) {
            wanted.extend(compress::siblings(&path));
        }
    }
    compress::write_siblings(web_root, assets, effort)?;
    for path in files_below(web_root)? {
        if !wanted.contains(&path) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// All files in a folder and below, in order; those that begin with a dot are left out.
pub(crate) fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Sources {
        let mut sources = Sources::default();
        for (name, text) in files {
            sources.add(name, text.as_bytes().to_vec()).unwrap();
        }
        sources
    }

    fn find<'a>(assets: &'a [Asset], start: &str) -> &'a Asset {
        assets.iter().find(|asset| asset.path.starts_with(start)).unwrap()
    }

    fn text(asset: &Asset) -> &str {
        std::str::from_utf8(&asset.bytes).unwrap()
    }

    #[test]
    fn names_hold_the_start_of_the_sha_256() {
        // SHA-256 of "abc" is ba7816bf 8f01cfea … (FIPS 180-2, appendix B.1).
        let sha256 = hex(&Sha256::digest(b"abc"));
        assert_eq!(served_path("a.b.css", &sha256), "assets/a.b.ba7816bf8f01.css");
        assert_eq!(served_path("LICENSE", &sha256), "assets/LICENSE.ba7816bf8f01");
        assert_eq!(served_path("index.html", &sha256), "index.html");
    }

    #[test]
    fn references_become_addresses_through_several_files() {
        let assets = sources(&[
            ("index.html", "<script src='{{asset:boot.js}}'></script><i class='{{x}}'>"),
            ("boot.js", "load('{{asset:page_bg.wasm}}', \"{{ asset }}\", '{{asset:page_bg.wasm}}')"),
            ("page_bg.wasm", "\0asm {{asset:not-text}}"),
        ])
        .resolve()
        .unwrap();
        let wasm = find(&assets, "assets/page_bg.");
        let boot = find(&assets, "assets/boot.");
        assert_eq!(text(wasm), "\0asm {{asset:not-text}}");
        assert_eq!(text(boot), format!("load('/{0}', \"{{{{ asset }}}}\", '/{0}')", wasm.path));
        let index = format!("<script src='/{}'></script><i class='{{{{x}}}}'>", boot.path);
        assert_eq!(text(find(&assets, "index.html")), index);
    }

    #[test]
    fn lengths_are_those_of_the_file_as_served() {
        let files = [
            ("a.js", "{{bytes:b.css}} {{asset:b.css}} {{bytes:c.wasm}}"),
            ("b.css", "{{bytes:c.wasm}}!"),
            ("c.wasm", "0123456789"),
        ];
        let assets = sources(&files).resolve().unwrap();
        let address = &find(&assets, "assets/b.").path;
        assert_eq!(text(find(&assets, "assets/a.")), format!("3 /{address} 10"));
    }

    #[test]
    fn hashes_are_those_of_the_file_as_served() {
        let files = [
            ("service-worker.js", "{{sha256:index.html}} {{sha256:c.wasm}}"),
            ("index.html", "{{asset:c.wasm}}"),
            ("c.wasm", "abc"),
        ];
        let assets = sources(&files).resolve().unwrap();
        let of_page = hex(&Sha256::digest(&find(&assets, "index.html").bytes));
        // FIPS 180-2, appendix B.1.
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(text(find(&assets, "service-worker.js")), format!("{of_page} {of_abc}"));
    }

    #[test]
    fn every_file_changes_the_name_of_the_build_and_it_is_the_same_everywhere() {
        let build = |style: &str| {
            let files = [("index.html", "{{sha256:*}}"), ("a.js", "{{sha256:*}}"), ("unnamed.css", style)];
            let assets = sources(&files).resolve().unwrap();
            assert_eq!(text(find(&assets, "index.html")), text(find(&assets, "assets/a.")));
            text(find(&assets, "index.html")).to_owned()
        };
        assert_eq!(build("red").len(), 64);
        assert_eq!(build("red"), build("red"));
        assert_ne!(build("red"), build("blue"));
    }

    #[test]
    fn a_change_below_changes_the_names_above() {
        let files =
            |wasm: &'static str| [("a.js", "{{asset:b.js}}"), ("b.js", "{{asset:c.wasm}}"), ("c.wasm", wasm)];
        let path = |wasm| find(&sources(&files(wasm)).resolve().unwrap(), "assets/a.").path.clone();
        assert_eq!(path("one"), path("one"));
        assert_ne!(path("one"), path("two"));
    }

    #[test]
    fn wrong_references_are_named() {
        let error = |files: &[(&str, &str)]| sources(files).resolve().unwrap_err().to_string();
        assert!(error(&[("a.js", "{{asset:b.js}}")]).contains("a.js names b.js"));
        assert!(error(&[("a.js", "{{asset:b.js")]).contains("a.js"));
        assert!(
            error(&[("a.js", "{{asset:b.js}}"), ("b.js", "{{asset:a.js}}")]).contains("a.js -> b.js -> a.js")
        );
    }

    #[test]
    fn two_files_of_one_name_are_refused() {
        let mut sources = sources(&[("icon.svg", "")]);
        assert!(sources.add("icon.svg", Vec::new()).unwrap_err().to_string().contains("icon.svg"));
    }

    #[test]
    fn generated_javascript_refers_to_its_wasm_and_snippets() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("snippets/x-1")).unwrap();
        fs::write(folder.path().join("snippets/x-1/inline0.js"), "export {}").unwrap();
        fs::write(folder.path().join("page_bg.wasm"), "\0asm").unwrap();
        let script =
            "import { f } from './snippets/x-1/inline0.js';\nnew URL('page_bg.wasm', import.meta.url)";
        fs::write(folder.path().join("page.js"), script).unwrap();
        let mut sources = Sources::default();
        sources.add_bindgen(folder.path()).unwrap();
        let assets = sources.resolve().unwrap();
        let script = text(find(&assets, "assets/page."));
        let snippet = &find(&assets, "assets/snippets-x-1-inline0.").path;
        assert!(script.contains(&format!("from '/{snippet}'")), "{script}");
        assert!(script.contains(&format!("URL('/{}'", find(&assets, "assets/page_bg.").path)), "{script}");
    }

    #[test]
    fn stale_files_go_and_siblings_follow_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let write_all = |css: &str| {
            let assets = sources(&[("index.html", "{{asset:s.css}}"), ("s.css", css), ("i.png", "png")]);
            write(&folder.path().join("web"), &assets.resolve().unwrap(), Effort::Quick).unwrap();
            let names = files_below(&folder.path().join("web")).unwrap();
            names
                .iter()
                .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
                .collect::<Vec<_>>()
        };
        let first = write_all("a { color: red }");
        let index = fs::read(folder.path().join("web/index.html.gz")).unwrap();
        let second = write_all("a { color: blue }");
        assert_eq!((first.len(), second.len()), (7, 7), "three of index.html, three of s.css, one of i.png");
        assert_eq!(first.iter().filter(|name| second.contains(name)).count(), 4, "{first:?} {second:?}");
        assert_ne!(fs::read(folder.path().join("web/index.html.gz")).unwrap(), index);
    }
}
