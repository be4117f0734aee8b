//! `barnraise init`: a few questions, and a run's file that `barnraise config check` accepts.
//!
//! It never writes over a file, and starts nothing.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use barnraise_relay::Environment;
use clap::Args;
use url::Url;

use super::command::check_run;
use super::run_texts::{DIGITS, OWN, PICTURES, RATINGS, RunTexts, TABLE, TEXT};
use crate::data::sets::NamedSet;
use crate::data::table::{ColumnKind, SeenColumn, TableError, seen_columns};

/// Longest id that is made from a title; the run's own limit is higher.
const ID_CHARS_MAX: usize = 40;
/// Columns that a question names.
const COLUMNS_NAMED: usize = 20;
/// Answers that are asked for again before it gives up: standard input may be a program.
const ATTEMPTS_MAX: usize = 5;
/// Sets that fetch themselves, the default one first.
const SETS: [NamedSet; 5] =
    [NamedSet::FashionMnist, NamedSet::Mnist, NamedSet::Cifar10, NamedSet::Movielens100k, NamedSet::Books];

/// A small network that predicts a number; with classes it is the preset `mlp`.
const REGRESSION: &str = "\n[model.kind.graph]\nname = \"mlp\"\nloss = \"regression\"\nblocks = [\n\
    \x20   { name = \"fc1\", op = { dense = { units = 64, initial = \"he\" } } },\n\
    \x20   { name = \"relu1\", op = \"relu\" },\n\
    \x20   { name = \"fc2\", op = { dense = { units = 64, initial = \"he\" } } },\n\
    \x20   { name = \"relu2\", op = \"relu\" },\n\
    \x20   { name = \"fc3\", op = { dense = { units = \"targets\" } } },\n]\n";

/// What suits a small model of text.
const SCHEME_OF_TEXT: &str = "\n[scheme.synchronous]\ntarget_batch_size = 128\nmicro_batch_size = 64\n\
    schedule = { peak = 0.002, warmup_steps = 30, decay = { kind = \"constant\" } }\n";

/// Of colour pictures of 32 by 32 pixels (He et al. 2016, §4.2).
const AUGMENT_CIFAR10: &str = "\n# A picture is moved by up to 4 pixels, and every other one mirrored, before it is trained on.\n\
    [data.augment]\ncrop_padding = 4\nflip = true\n";
/// A mirrored digit is another one, or none.
const AUGMENT_DIGITS: &str =
    "\n# A picture is moved by up to 2 pixels before it is trained on.\n[data.augment]\ncrop_padding = 2\n";
/// Of pictures of which nothing is known.
const AUGMENT_PICTURES: &str = "\n# Few pictures become more: each is moved by up to 4 pixels and every other one mirrored before it is trained on.\n\
    # Where a mirrored picture is of another class, as letters are, write flip = false.\n\
    [data.augment]\ncrop_padding = 4\nflip = true\n";

/// `barnraise init`
#[derive(Debug, Args)]
pub struct InitArgs {
    /// The file to write
    #[arg(default_value = "run.toml")]
    pub file: PathBuf,
}

/// Why an answer cannot be used.
#[derive(Debug, thiserror::Error)]
enum AnswerError {
    #[error("`open`, `invitation` or `room` is wanted")]
    Mode,
    #[error("{path}: {source}: the name of a set is wanted, or a folder or a file that is there")]
    File { path: String, source: io::Error },
    #[error(
        "{path} is a folder: files of text are wanted, or one folder with a folder of pictures for each class"
    )]
    Folder { path: String },
    #[error("{0}")]
    Table(#[from] TableError),
    #[error("one of its columns is wanted: {0}")]
    Column(String),
    #[error("an address such as https://run.example.org is wanted: {0}")]
    Address(#[from] url::ParseError),
    #[error("an address without a path is wanted, such as https://run.example.org")]
    AddressPath,
    #[error("an https:// address is wanted: browsers train over HTTPS, or on this machine")]
    Scheme,
}

/// Who may take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    Invitation,
    Room,
}

/// What the run learns from.
#[derive(Debug)]
enum DataAnswer {
    /// A set that fetches itself.
    Named(NamedSet),
    /// A folder with a folder for each class.
    Pictures(PathBuf),
    /// An archive of such folders.
    Archive(PathBuf),
    /// A file of rows, which column is predicted, and the names of those that are left out.
    Table(PathBuf, SeenColumn, Vec<String>),
    /// Files.
    Text(Vec<PathBuf>),
}

/// What the first answer names.
#[derive(Debug)]
enum NamedData {
    Whole(DataAnswer),
    /// One of the columns is to be predicted.
    Table(PathBuf, Vec<SeenColumn>),
}

impl DataAnswer {
    /// Title and purpose by default.
    fn texts(&self) -> &'static RunTexts {
        match self {
            Self::Named(NamedSet::FashionMnist) => &PICTURES,
            Self::Named(NamedSet::Mnist) => &DIGITS,
            Self::Named(NamedSet::Cifar10) => &OWN,
            Self::Named(NamedSet::Movielens100k) => &RATINGS,
            Self::Named(NamedSet::Books) => &TEXT,
            Self::Pictures(_) | Self::Archive(_) => &OWN,
            Self::Table(..) => &TABLE,
            Self::Text(_) => &TEXT,
        }
    }
}

/// The five answers.
#[derive(Debug)]
struct Answers {
    title: String,
    data: DataAnswer,
    mode: Mode,
    /// Address of the page as visitors see it; `None` for this machine only.
    page: Option<Url>,
    /// SPDX id.
    license: Option<String>,
}

/// Asks, and writes the file. An empty answer takes the default in brackets; so does the end of the input.
///
/// # Errors
/// The file exists or cannot be written, or a question got no usable answer.
pub fn run(args: &InitArgs, input: &mut dyn BufRead, output: &mut dyn Write) -> anyhow::Result<()> {
    let file = &args.file;
    // Now rather than after five answers.
    if file.exists() {
        bail!("{} is there already, and is not written over: name another file", file.display());
    }
    writeln!(output, "A few questions. An empty answer takes what is in brackets.\n")?;
    let sets = SETS.map(|set| format!("`{}`", set.id())).join(", ");
    let from = format!(
        "What does it learn from? One of {sets}; a folder, or a .zip or .tar file, with a folder of pictures for each class; \
        a table (.csv, .tsv or .parquet); or files of text, separated by spaces"
    );
    let data = match ask(input, output, &from, NamedSet::default().id(), data_answer)? {
        NamedData::Whole(data) => data,
        NamedData::Table(file, columns) => {
            let target = ask_column(input, output, &columns)?;
            let left_out = describe_columns(output, &columns, &target)?;
            DataAnswer::Table(file, target, left_out)
        }
    };
    let title = data.texts().title;
    let title = ask(input, output, "What is the run called?", title, |answer| Ok(answer.to_owned()))?;
    let who = "Who may take part? `open` to everybody, by `invitation`, or a class or lab with a `room` code";
    let mode = ask(input, output, who, "open", |answer| match answer {
        "open" => Ok(Mode::Open),
        "invitation" => Ok(Mode::Invitation),
        "room" => Ok(Mode::Room),
        _ => Err(AnswerError::Mode),
    })?;
    let at = "At which address do visitors open the page? `here` for this machine only, or such as https://run.example.org";
    let page = ask(input, output, at, "here", page_address)?;
    let under =
        "Under which licence do you give the model away? An SPDX id such as MIT, or `none` to say nothing";
    let license = ask(input, output, under, "none", |answer| {
        Ok(Some(answer.to_owned()).filter(|license| license != "none"))
    })?;
    let answers = Answers { title, data, mode, page, license };
    let text = answers.file();
    let mut written =
        File::create_new(file).with_context(|| format!("{} cannot be written", file.display()))?;
    written.write_all(text.as_bytes())?;
    written.sync_all()?;
    let checked = check_run(file, &Environment::default()).map_err(|mistakes| {
        let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}\nCorrect it in {}.", mistakes.join("\n"), file.display())
    })?;
    writeln!(output, "\n{checked}\n{}", answers.next_steps(file))?;
    Ok(())
}

/// Asks until an answer can be read.
fn ask<T>(
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    question: &str,
    default: &str,
    read: impl Fn(&str) -> Result<T, AnswerError>,
) -> anyhow::Result<T> {
    let mut reason = String::new();
    for _ in 0..ATTEMPTS_MAX {
        write!(output, "{question} [{default}] ")?;
        output.flush()?;
        let mut line = String::new();
        let is_end = input.read_line(&mut line)? == 0;
        if is_end {
            writeln!(output)?;
        }
        let answer = Some(line.trim()).filter(|answer| !answer.is_empty()).unwrap_or(default);
        match read(answer) {
            Ok(read) => return Ok(read),
            Err(error) => reason = error.to_string(),
        }
        writeln!(output, "  {reason}")?;
    }
    bail!("no answer to “{question}” that can be used: {reason}")
}

/// Which column of a table is to be predicted.
fn ask_column(
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    columns: &[SeenColumn],
) -> anyhow::Result<SeenColumn> {
    let usable = || columns.iter().filter(|column| column.kind.is_ok());
    let last = usable().next_back().context("the table has no columns that can be learned from")?;
    let names = named(usable());
    let which = format!("Which column is to be predicted? One of {names}");
    ask(input, output, &which, &last.name, |answer| {
        let column = usable().find(|column| column.name == answer);
        column.cloned().ok_or_else(|| AnswerError::Column(names.clone()))
    })
}

/// Says what `target` is told by, and which columns are left out, whose names it returns.
fn describe_columns(
    output: &mut dyn Write,
    columns: &[SeenColumn],
    target: &SeenColumn,
) -> io::Result<Vec<String>> {
    for (what, kind) in [("numbers", ColumnKind::Number), ("words", ColumnKind::Category)] {
        let told_by = columns.iter().filter(|column| column.kind == Ok(kind) && column.name != target.name);
        let names = named(told_by);
        if !names.is_empty() {
            writeln!(output, "  It is told by {what}: {names}")?;
        }
    }
    let mut left_out = Vec::new();
    for column in columns {
        if let Err(reason) = &column.kind {
            if left_out.len() < COLUMNS_NAMED {
                writeln!(output, "  Left out is {}: {reason}", column.name)?;
            }
            left_out.push(column.name.clone());
        }
    }
    if left_out.len() > COLUMNS_NAMED {
        writeln!(output, "  So are {} more", left_out.len() - COLUMNS_NAMED)?;
    }
    Ok(left_out)
}

/// The first names.
fn named<'a>(columns: impl Iterator<Item = &'a SeenColumn>) -> String {
    let names: Vec<&str> = columns.map(|column| column.name.as_str()).take(COLUMNS_NAMED + 1).collect();
    match names.get(..COLUMNS_NAMED) {
        Some(first) if names.len() > COLUMNS_NAMED => format!("{}, …", first.join(", ")),
        _ => names.join(", "),
    }
}

fn data_answer(answer: &str) -> Result<NamedData, AnswerError> {
    if let Some(set) = SETS.into_iter().find(|set| set.id() == answer) {
        return Ok(NamedData::Whole(DataAnswer::Named(set)));
    }
    let absolute = |path: &str| {
        let failed = |source| AnswerError::File { path: path.to_owned(), source };
        let path = below_home(path, std::env::home_dir());
        let is_folder = std::fs::metadata(&path).map_err(failed)?.is_dir();
        std::path::absolute(path).map(|path| (path, is_folder)).map_err(failed)
    };
    // A name may have spaces.
    match absolute(answer) {
        Ok((folder, true)) => return Ok(NamedData::Whole(DataAnswer::Pictures(folder))),
        Ok((file, false)) if is_archive(answer) => return Ok(NamedData::Whole(DataAnswer::Archive(file))),
        Ok((file, false)) if is_table(answer) => {
            let columns = seen_columns(&file)?;
            return Ok(NamedData::Table(file, columns));
        }
        _ => {}
    }
    let files = answer.split_whitespace().map(|path| match absolute(path)? {
        (file, false) => Ok(file),
        (_, true) => Err(AnswerError::Folder { path: path.to_owned() }),
    });
    files.collect::<Result<_, _>>().map(|files| NamedData::Whole(DataAnswer::Text(files)))
}

/// A path that begins with `~`, as a shell would read it.
fn below_home(path: &str, home: Option<PathBuf>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(below), Some(home)) => home.join(below),
        _ => path.into(),
    }
}

/// Whether a file has the name of an archive.
fn is_archive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst"].iter().any(|ending| name.ends_with(ending))
}

/// Whether a file has the name of a table.
fn is_table(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = [".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
    [".csv", ".tsv", ".parquet"].iter().any(|ending| name.ends_with(ending))
}

fn page_address(answer: &str) -> Result<Option<Url>, AnswerError> {
    if answer == "here" {
        return Ok(None);
    }
    let url = Url::parse(answer)?;
    let is_plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    match (url.scheme(), url.host_str()) {
        ("https", Some(_)) if is_plain => Ok(Some(url)),
        ("https", _) => Err(AnswerError::AddressPath),
        _ => Err(AnswerError::Scheme),
    }
}

/// A title as an id: lower-case letters, digits and single dashes.
fn id_of(title: &str) -> String {
    let mut id = String::new();
    for character in title.to_lowercase().chars() {
        if character.is_ascii_alphanumeric() {
            id.push(character);
        } else if !id.ends_with('-') && !id.is_empty() {
            id.push('-');
        }
    }
    let id: String = id.chars().take(ID_CHARS_MAX).collect();
    let id = id.trim_matches('-');
    if id.is_empty() { "run".into() } else { id.into() }
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// The value of `columns` that leaves these out.
fn ignored(columns: &[String]) -> toml::Value {
    let kinds = columns.iter().map(|name| (name.clone(), toml::Value::from("ignored")));
    toml::Value::Table(kinds.collect())
}

impl Answers {
    fn file(&self) -> String {
        let id = id_of(&self.title);
        let mut text = "# A run of Barnraise: `barnraise serve --config FILE`. `barnraise config example` explains more keys,\n\
            # `barnraise config example --all` all of them.\n\n[run]\n"
            .to_owned();
        let _ = writeln!(text, "# It stays the same for as long as the run lives.\nid = {}", quoted(&id));
        let _ = writeln!(text, "title = {}", quoted(&self.title));
        self.write_model(&mut text);
        self.write_data(&mut text);
        let _ = writeln!(
            text,
            "\n[storage]\n# Checkpoints, journal, keys: back it up.\nfolder = {}",
            quoted(&format!("{id}-run"))
        );
        text.push_str(
            "\n[network]\n# For `barnraise run` and `barnraise peers` on this machine, which find its port in the folder above.\n\
             operator = \"127.0.0.1:0\"\n",
        );
        if let Some(page) = &self.page {
            let host = page.host_str().unwrap_or_default();
            let _ = writeln!(
                text,
                "# A proxy with a certificate for {host} stands before it (deploy/Caddyfile).\n\
                http = \"127.0.0.1:8080\"\ntrusted_proxies = [\"127.0.0.1\"]\n\
                # These ports have to be reachable from outside.\nlisten = [\n\
                \x20   \"/ip4/0.0.0.0/udp/4001/quic-v1/webtransport\",\n\
                \x20   \"/ip4/0.0.0.0/udp/4002/quic-v1\",\n\
                \x20   \"/ip4/0.0.0.0/udp/4003/webrtc-direct\",\n\
                \x20   \"/ip4/0.0.0.0/tcp/4001\",\n\
                \x20   \"/ip4/127.0.0.1/tcp/4002/ws\",\n]\n\
                # The WebSocket, through the proxy.\nannounce = [\"/dns4/{host}/tcp/{}/wss\"]",
                page.port_or_known_default().unwrap_or(443)
            );
        }
        if self.mode != Mode::Open || self.page.is_some() {
            text.push_str("\n[access]\n");
        }
        if self.mode != Mode::Open {
            text.push_str("mode = \"invitation\"\n");
        }
        if self.mode == Mode::Room {
            text.push_str("room = true\n");
        }
        if let Some(page) = &self.page {
            let _ = writeln!(text, "page = {}", quoted(page.as_str().trim_end_matches('/')));
        }
        text
    }

    /// Of the data, and what suits it.
    fn write_data(&self, text: &mut String) {
        let path = |path: &Path| quoted(&path.display().to_string());
        let name = quoted(&self.title);
        match &self.data {
            DataAnswer::Named(NamedSet::FashionMnist) => {}
            DataAnswer::Named(set) => {
                let _ = writeln!(text, "\n[data]\nset = {}", quoted(set.id()));
                match set {
                    NamedSet::Cifar10 => text.push_str(AUGMENT_CIFAR10),
                    NamedSet::Mnist => text.push_str(AUGMENT_DIGITS),
                    _ => {}
                }
                if *set == NamedSet::Books {
                    text.push_str("\n[data.text]\nvocabulary = 2000\nsequence_tokens = 32\n");
                    text.push_str(SCHEME_OF_TEXT);
                }
            }
            DataAnswer::Pictures(from) | DataAnswer::Archive(from) => {
                let key = if matches!(self.data, DataAnswer::Archive(_)) { "archive" } else { "folder" };
                let _ = writeln!(text, "\n[data.pictures]\nname = {name}\n{key} = {}", path(from));
                text.push_str(
                    "# Each picture is scaled and cut to this: more pixels show more, and take longer.\n\
                    height = 32\nwidth = 32\n",
                );
                text.push_str(AUGMENT_PICTURES);
                text.push_str("\n[scheme.synchronous]\ntarget_batch_size = 128\n");
            }
            DataAnswer::Table(file, target, left_out) => {
                let columns = match left_out.is_empty() {
                    true => {
                        "# Of a column that only numbers the rows: columns = { row = \"ignored\" }".to_owned()
                    }
                    false => format!(
                        "# A column that only numbers the rows is to be ignored, too.\ncolumns = {}",
                        ignored(left_out)
                    ),
                };
                let _ = writeln!(
                    text,
                    "\n[data.table]\nname = {name}\nfile = {}\ntarget = {}\n{columns}\n\
                    \n[scheme.synchronous]\ntarget_batch_size = 128",
                    path(file),
                    quoted(&target.name)
                );
            }
            DataAnswer::Text(files) => {
                let _ =
                    writeln!(text, "\n[data.text]\nname = {name}\nvocabulary = 2000\nsequence_tokens = 32");
                for file in files {
                    let _ = writeln!(text, "\n[[data.text.sources]]\npath = {}", path(file));
                }
                text.push_str(SCHEME_OF_TEXT);
            }
        }
    }

    /// What differs from the default.
    fn write_model(&self, text: &mut String) {
        let kind = match &self.data {
            DataAnswer::Text(_) | DataAnswer::Named(NamedSet::Books) => {
                "# A small ALBERT that guesses masked words.\n\
                kind = { albert = { embedding = 64, hidden = 128, heads = 4, inner = 512, layers = 2 } }\n"
            }
            DataAnswer::Named(NamedSet::Movielens100k) => {
                "kind = { matrix-factorization = { factors = 16 } }\n"
            }
            DataAnswer::Table(_, SeenColumn { is_class: true, .. }, _) => {
                "kind = { mlp = { hidden = [64, 64] } }\n"
            }
            DataAnswer::Named(_)
            | DataAnswer::Pictures(_)
            | DataAnswer::Archive(_)
            | DataAnswer::Table(..) => "",
        };
        if !kind.is_empty() || self.license.is_some() {
            text.push_str("\n[model]\n");
            text.push_str(kind);
        }
        if let Some(license) = &self.license {
            let _ = writeln!(text, "license = {}", quoted(license));
        }
        if let DataAnswer::Table(_, SeenColumn { is_class: false, .. }, _) = &self.data {
            text.push_str(REGRESSION);
        }
    }

    fn next_steps(&self, file: &Path) -> String {
        let file = file.display();
        let mut text = format!("Start it:   barnraise serve --config {file}\n");
        let invite = match self.mode {
            Mode::Open => None,
            Mode::Invitation => Some("invite"),
            Mode::Room => Some("invite --room"),
        };
        if let Some(invite) = invite {
            let _ = writeln!(text, "Invite:     barnraise {invite} --config {file}");
        }
        text
    }
}

/// Asks at the terminal.
///
/// # Errors
/// As [`run`].
pub fn run_at_terminal(args: &InitArgs) -> anyhow::Result<()> {
    run(args, &mut io::stdin().lock(), &mut io::stdout().lock())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::AccessMode;
    use barnraise_protocol::run::model::graph::Loss;

    use super::*;
    use crate::config::RunConfig;

    /// What `barnraise init` says, and the file that it writes, if it does.
    fn init(folder: &Path, answers: &str) -> (anyhow::Result<()>, String, Option<RunConfig>) {
        let file = folder.join("run.toml");
        let mut output = Vec::new();
        let ended = run(&InitArgs { file: file.clone() }, &mut answers.as_bytes(), &mut output);
        let config = file.exists().then(|| RunConfig::load(&file).unwrap());
        (ended, String::from_utf8(output).unwrap(), config)
    }

    #[test]
    fn no_answers_make_the_default_run() {
        let folder = tempfile::tempdir().unwrap();
        let (ended, said, config) = init(folder.path(), "");
        ended.unwrap();
        let config = config.unwrap();
        assert_eq!(
            (config.run.id.as_str(), config.access.mode),
            ("telling-garments-apart", AccessMode::Open)
        );
        assert!(said.contains("is good for the run `telling-garments-apart`"), "{said}");
        assert!(said.contains("barnraise serve --config"), "{said}");
    }

    #[test]
    fn every_set_makes_a_run_that_is_good() {
        for set in SETS {
            let folder = tempfile::tempdir().unwrap();
            let (ended, said, config) = init(folder.path(), &format!("{}\n", set.id()));
            ended.unwrap();
            let data = config.unwrap().data;
            let crop_and_flip = data.augment.map(|augment| (augment.crop_padding, augment.flip));
            let proposed = match set {
                NamedSet::Cifar10 => Some((4, true)),
                NamedSet::Mnist => Some((2, false)),
                _ => None,
            };
            assert_eq!((data.set, crop_and_flip), (set, proposed));
            assert!(said.contains("is good for the run"), "{said}");
        }
    }

    #[test]
    fn text_a_room_an_address_and_a_licence_are_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let book = folder.path().join("book.txt");
        std::fs::write(&book, "words").unwrap();
        let answers = format!("{}\nLese \"Übung\" 7!\nroom\nhttps://barn.example\nMIT\n", book.display());
        let (ended, said, config) = init(folder.path(), &answers);
        ended.unwrap();
        let config = config.unwrap();
        assert_eq!(config.run.id, "lese-bung-7");
        assert_eq!(config.run.title, "Lese \"Übung\" 7!");
        assert_eq!(config.data.text.unwrap().sources[0].path, book.into());
        assert!(config.access.room && config.access.mode == AccessMode::Invitation);
        assert_eq!(config.model.license.as_deref(), Some("MIT"));
        assert!(config.network.operator.unwrap().ip().is_loopback(), "it can be paused");
        assert!(config.network.announce.iter().any(|it| it.to_string() == "/dns4/barn.example/tcp/443/wss"));
        assert!(said.contains("barnraise invite --room"), "{said}");
    }

    #[test]
    fn a_folder_of_pictures_is_in_the_file_and_a_bad_one_is_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        let photos = folder.path().join("my photos");
        for (class, colour) in [("cats", 9), ("dogs", 200)] {
            std::fs::create_dir_all(photos.join(class)).unwrap();
            for n in 0..3 {
                let picture = image::RgbImage::from_pixel(40, 30, image::Rgb([colour; 3]));
                picture.save(photos.join(class).join(format!("{n}.png"))).unwrap();
            }
        }
        let answers = format!("{0} {0}\n{0}\nPets\nopen\nhere\nnone\n", photos.display());
        let (ended, said, config) = init(folder.path(), &answers);
        ended.unwrap();
        let data = config.unwrap().data;
        let pictures = data.pictures.unwrap();
        assert_eq!((pictures.folder.as_ref(), pictures.height), (Some(&photos), 32));
        assert!(data.augment.unwrap().flip);
        assert!(said.contains("is good for the run `pets`"), "{said}");
        // The same in an archive, whose name may have spaces, too.
        let archive = folder.path().join("my photos.TAR");
        let mut packed = tar::Builder::new(std::fs::File::create(&archive).unwrap());
        packed.append_dir_all("photos", &photos).unwrap();
        packed.finish().unwrap();
        std::fs::remove_file(folder.path().join("run.toml")).unwrap();
        let (ended, said, config) = init(folder.path(), &format!("{}\nPets\n", archive.display()));
        ended.unwrap();
        assert_eq!(config.unwrap().data.pictures.unwrap().archive, Some(archive.into()));
        assert!(said.contains("is good for the run `pets`"), "{said}");
    }

    /// What is predicted is a class or a number, as the column looks.
    #[test]
    fn a_table_has_its_columns_named_and_one_of_them_is_predicted() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("my flowers.csv");
        let rows: String = (0..60)
            .map(|n| format!("{n},{},{}\n", f64::from(n) / 7.0, ["rose", "tulip"][n as usize % 2]))
            .collect();
        std::fs::write(&table, format!("length,width,kind\n{rows}")).unwrap();
        let (ended, said, config) = init(folder.path(), &format!("{}\nheight\n\nFlowers\n", table.display()));
        ended.unwrap();
        let config = config.unwrap();
        assert_eq!(config.data.table.unwrap().target, "kind", "the last column, where no other is named");
        assert_eq!(config.model.kind.graph().loss, Loss::Classification);
        for part in
            ["One of length, width, kind", "one of its columns is wanted", "good for the run `flowers`"]
        {
            assert!(said.contains(part), "{part} is missing in: {said}");
        }
        std::fs::remove_file(folder.path().join("run.toml")).unwrap();
        let (ended, said, config) =
            init(folder.path(), &format!("{}\nwidth\nFlowers\nopen\nhere\nMIT\n", table.display()));
        ended.unwrap();
        let config = config.unwrap();
        assert_eq!(
            (config.model.kind.graph().loss, config.model.license.as_deref()),
            (Loss::Regression, Some("MIT"))
        );
        assert!(said.contains("is good for the run `flowers`"), "{said}");
        // No table behind its name.
        std::fs::remove_file(folder.path().join("run.toml")).unwrap();
        let broken = folder.path().join("broken.parquet");
        std::fs::write(&broken, "PAR1").unwrap();
        let (ended, said, _) = init(folder.path(), &format!("{}\nmnist\n", broken.display()));
        ended.unwrap();
        assert!(said.contains("broken.parquet"), "{said}");
    }

    /// Written by pyarrow: seven columns that are flat, and lists of strings.
    const FLOWERS: &[u8] = include_bytes!("../data/table/fixtures/flowers.parquet");

    #[test]
    fn columns_that_cannot_be_learned_from_are_named_with_the_reason_and_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("flowers.parquet");
        std::fs::write(&table, FLOWERS).unwrap();
        let answers = format!("{}\ntags.list.element\n\nFlowers\n", table.display());
        let (ended, said, config) = init(folder.path(), &answers);
        ended.unwrap();
        let data = config.unwrap().data;
        let section = data.table.unwrap();
        assert_eq!(section.target, "kind", "the last that may be predicted");
        let ignored = [("tags.list.element".to_owned(), ColumnKind::Ignored)];
        assert_eq!(section.columns, std::collections::BTreeMap::from(ignored));
        for part in [
            "One of row, petal, sepal, grown, colour, price, kind [kind]",
            "one of its columns is wanted",
            "told by numbers: row, petal, sepal, price",
            "told by words: grown, colour\n",
            "Left out is tags.list.element: booleans, numbers and strings are read, this is a list",
            "good for the run `flowers`",
        ] {
            assert!(said.contains(part), "{part} is missing in: {said}");
        }
        // Free text, and a name that TOML has to quote.
        std::fs::remove_file(folder.path().join("run.toml")).unwrap();
        let table = folder.path().join("letters.csv");
        let rows: String = (0..300).map(|n| format!("letter {n},{n},{}\n", ["a", "b"][n % 2])).collect();
        std::fs::write(&table, format!("the \"\"letter\"\",length,kind\n{rows}")).unwrap();
        let (ended, said, config) = init(folder.path(), &format!("{}\n\nLetters\n", table.display()));
        ended.unwrap();
        let columns = config.unwrap().data.table.unwrap().columns;
        assert_eq!(columns.len(), 1);
        assert!(columns.keys().all(|name| name.starts_with("the \"")), "{columns:?}");
        assert!(said.contains(": 300 different words, at most 256 are supported\n"), "{said}");
    }

    #[test]
    fn a_wrong_answer_is_asked_again_with_what_is_wanted_and_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let (ended, said, config) =
            init(folder.path(), "none.txt\nmnist\nA\nall\ninvitation\nhttp://a.example\n\n\n");
        ended.unwrap();
        assert_eq!(config.unwrap().access.mode, AccessMode::Invitation);
        for part in [
            "none.txt: ",
            "the name of a set is wanted, or a folder or a file that is there",
            "`open`, `invitation` or `room` is wanted",
            "an https:// address is wanted",
        ] {
            assert!(said.contains(part), "{part} is missing in: {said}");
        }
        std::fs::remove_file(folder.path().join("run.toml")).unwrap();
        let (ended, _, config) = init(folder.path(), &format!("mnist\nA\n{}", "all\n".repeat(9)));
        assert!(ended.unwrap_err().to_string().contains("`open`, `invitation` or `room` is wanted"));
        assert!(config.is_none());
    }

    /// No shell reads an answer.
    #[test]
    fn a_path_may_begin_with_the_home_folder() {
        let of_home = |path, home: Option<&str>| below_home(path, home.map(PathBuf::from));
        assert_eq!(of_home("~/my photos", Some("/home/ann")), Path::new("/home/ann/my photos"));
        assert_eq!(of_home("/photos/~/a", Some("/home/ann")), Path::new("/photos/~/a"));
        assert_eq!(of_home("~/photos", None), Path::new("~/photos"));
    }

    #[test]
    fn a_file_is_never_written_over() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("run.toml"), "# mine").unwrap();
        let (ended, ..) = init(folder.path(), "");
        assert!(ended.unwrap_err().to_string().contains("is there already"));
        assert_eq!(std::fs::read_to_string(folder.path().join("run.toml")).unwrap(), "# mine");
    }
}
