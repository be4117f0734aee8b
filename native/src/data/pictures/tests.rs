#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Cursor, Write as _};

use image::{ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};

use super::*;

const RED: Rgb<u8> = Rgb([250, 10, 10]);
const BLUE: Rgb<u8> = Rgb([10, 10, 250]);

fn picture(path: &Path, (width, height): (u32, u32), colour: Rgb<u8>, format: ImageFormat) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(width, height, colour).save_with_format(path, format).unwrap();
}

fn settings(folder: &Path) -> PictureSettings {
    PictureSettings {
        name: "Mugs".into(),
        source: PictureSource::Folder(folder.to_owned()),
        height: 12,
        width: 16,
        held_out: 0.2,
        broken: BROKEN_SHARE,
        seed: 3,
    }
}

/// Ten red and ten blue pictures of many sizes and both formats.
fn red_and_blue(folder: &Path) {
    for n in 0..10 {
        let size = (20 + 7 * n, 90 - 5 * n);
        picture(&folder.join(format!("red/{n}.png")), size, RED, ImageFormat::Png);
        picture(&folder.join(format!("blue/{n}.JPG")), size, BLUE, ImageFormat::Jpeg);
    }
    std::fs::write(folder.join("notes.txt"), "no picture").unwrap();
    std::fs::create_dir(folder.join("empty")).unwrap();
}

fn images(samples: &Samples) -> &LabelledImages {
    let Samples::Images(images) = samples else { panic!("no pictures") };
    images
}

#[test]
fn a_folder_for_each_class_becomes_samples_of_one_size() {
    let folder = tempfile::tempdir().unwrap();
    red_and_blue(folder.path());
    let cache = tempfile::tempdir().unwrap();
    let data = settings(folder.path()).load(cache.path()).unwrap();
    let SampleKind::Images { shape, class_names } = &data.kind else { panic!("no pictures") };
    assert_eq!((shape.height, shape.width, shape.channels), (12, 16, 3));
    assert_eq!(class_names, &["blue", "red"], "sorted");
    let (train, test) = (images(&data.train), images(&data.test));
    assert_eq!((train.labels.len(), test.labels.len()), (16, 4));
    assert_eq!(train.labels.iter().filter(|&&label| label == 0).count(), 8);
    for (pixels, label) in train.images.chunks(shape.n_values()).zip(&train.labels) {
        let want = if *label == 0 { BLUE } else { RED };
        let is_near = |(got, want): (&u8, &u8)| got.abs_diff(*want) < 12;
        assert!(pixels.iter().zip(want.0.iter().cycle()).all(is_near), "{label}");
    }
    // From the cache, and without it.
    let again = settings(folder.path()).load(cache.path()).unwrap();
    assert_eq!(again, data);
    let elsewhere = tempfile::tempdir().unwrap();
    assert_eq!(settings(folder.path()).load(elsewhere.path()).unwrap(), data);
    let other = PictureSettings { held_out: 0.5, ..settings(folder.path()) };
    assert_eq!(images(&other.load(cache.path()).unwrap().test).labels.len(), 10);
}

#[test]
fn a_cache_that_is_damaged_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    red_and_blue(folder.path());
    let cache = tempfile::tempdir().unwrap();
    let data = settings(folder.path()).load(cache.path()).unwrap();
    let kept = entries(&cache.path().join("pictures")).unwrap().remove(0);
    let mut bytes = std::fs::read(&kept).unwrap();
    bytes[200] ^= 1;
    std::fs::write(&kept, bytes).unwrap();
    assert_eq!(settings(folder.path()).load(cache.path()).unwrap(), data);
}

#[test]
fn the_hash_follows_the_pictures_and_not_the_time_of_their_files() {
    let folder = tempfile::tempdir().unwrap();
    red_and_blue(folder.path());
    let cache = tempfile::tempdir().unwrap();
    let hash = || settings(folder.path()).content_hash(cache.path()).unwrap();
    let before = hash();
    let file = std::fs::File::options().append(true).open(folder.path().join("red/3.png")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(hash(), before);
    picture(&folder.path().join("red/3.png"), (30, 30), BLUE, ImageFormat::Png);
    assert_ne!(hash(), before);
}

#[test]
fn a_few_broken_files_are_left_out_and_many_are_an_error_that_names_the_first() {
    let folder = tempfile::tempdir().unwrap();
    red_and_blue(folder.path());
    let cache = tempfile::tempdir().unwrap();
    for name in ["a.png", "b.png"] {
        std::fs::write(folder.path().join("blue").join(name), b"this is no picture").unwrap();
    }
    let error = settings(folder.path()).load(cache.path()).unwrap_err().to_string();
    assert!(error.contains("2 of 22 pictures") && error.contains("a.png"), "{error}");
    for n in 10..30 {
        picture(&folder.path().join(format!("red/{n}.png")), (20, 20), RED, ImageFormat::Png);
    }
    let data = settings(folder.path()).load(cache.path()).unwrap();
    assert_eq!(data.train.n_samples() + data.test.n_samples(), 40);
}

#[test]
fn what_is_no_folder_of_classes_says_what_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let load = || settings(folder.path()).load(folder.path()).unwrap_err().to_string();
    assert!(load().contains("has 0 folders with PNG or JPEG files; a folder for each class"), "{}", load());
    picture(&folder.path().join("red/1.png"), (9, 9), RED, ImageFormat::Png);
    assert!(load().contains("has 1 folders"), "{}", load());
    picture(&folder.path().join("blue/1.png"), (9, 9), BLUE, ImageFormat::Png);
    assert!(load().contains("\"blue\" has 1 pictures"), "{}", load());
    let none = settings(&folder.path().join("nowhere")).load(folder.path()).unwrap_err().to_string();
    assert!(none.contains("nowhere"), "{none}");
}

#[test]
fn what_is_transparent_is_white() {
    let clear = RgbaImage::from_pixel(4, 4, Rgba([9, 9, 9, 0]));
    assert!(on_white(&DynamicImage::ImageRgba8(clear)).iter().all(|&value| value == 255));
    let solid = RgbaImage::from_pixel(4, 4, Rgba([9, 8, 7, 255]));
    assert_eq!(on_white(&DynamicImage::ImageRgba8(solid))[..3], [9, 8, 7]);
}

/// A tar file with the folder, below `photos`.
fn tar_of(folder: &Path) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_dir_all("photos", folder).unwrap();
    archive.into_inner().unwrap()
}

/// A ZIP file with these entries.
fn zip_of(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in entries {
        archive.start_file(name.as_str(), zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(content).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// All files of a folder of folders, by their names with a folder before.
fn entries_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = entries(folder)
        .unwrap()
        .into_iter()
        .filter(|path| path.is_dir())
        .flat_map(|class| entries(&class).unwrap().into_iter().map(move |file| (class.clone(), file)));
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let files = files.map(|(class, file)| {
        (format!("my photos/{}/{}", name(&class), name(&file)), std::fs::read(&file).unwrap())
    });
    files.collect()
}

fn archived(path: &Path, bytes: &[u8]) -> PictureSettings {
    std::fs::write(path, bytes).unwrap();
    PictureSettings { source: PictureSource::Archive(path.to_owned().into()), ..settings(path) }
}

#[test]
fn an_archive_of_any_kind_has_the_samples_of_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    red_and_blue(folder.path());
    let cache = tempfile::tempdir().unwrap();
    let want = settings(folder.path()).load(cache.path()).unwrap();
    let hash = settings(folder.path()).content_hash(cache.path()).unwrap();
    let tar = tar_of(folder.path());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&tar).unwrap();
    let mut zipped = entries_of(folder.path());
    // What a Mac adds, what is hidden and what is no picture are left out; so is the order.
    zipped.push(("__MACOSX/my photos/red/._0.png".into(), b"no picture".to_vec()));
    zipped.push(("my photos/.trash/0.png".into(), b"no picture".to_vec()));
    zipped.push(("my photos/red/../../0.png".into(), b"no picture".to_vec()));
    zipped.push(("read me.txt".into(), b"no picture".to_vec()));
    zipped.reverse();
    let path = folder.path().join("packed");
    for bytes in [
        tar.clone(),
        gzip.finish().unwrap(),
        ruzstd::encoding::compress_to_vec(&tar[..], ruzstd::encoding::CompressionLevel::Fastest),
        zip_of(&zipped),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let settings = archived(&path, &bytes);
        assert_eq!(settings.load(cache.path()).unwrap(), want);
        assert_eq!(settings.content_hash(cache.path()).unwrap(), hash, "a run may go on with an archive");
    }
}

#[test]
fn broken_pictures_of_an_archive_are_named_with_it_and_left_out_up_to_the_share() {
    let folder = tempfile::tempdir().unwrap();
    red_and_blue(folder.path());
    let cache = tempfile::tempdir().unwrap();
    let mut entries = entries_of(folder.path());
    let whole = archived(&folder.path().join("whole.zip"), &zip_of(&entries)).load(cache.path()).unwrap();
    for name in ["my photos/blue/00.png", "my photos/red/4x.png"] {
        entries.push((name.into(), b"this is no picture".to_vec()));
    }
    let settings = archived(&folder.path().join("photos.zip"), &zip_of(&entries));
    let error = settings.load(cache.path()).unwrap_err().to_string();
    for part in ["2 of 22 pictures", "share of 0.05", "my photos/blue/00.png in", "photos.zip: "] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
    let more = PictureSettings { broken: 0.1, ..settings.clone() };
    assert_eq!(more.load(cache.path()).unwrap(), whole, "those behind a broken one have their labels");
    let error = settings.load(cache.path()).unwrap_err();
    assert!(
        matches!(error, PicturesError::Broken { n_broken: 2, .. }),
        "what is kept is of its share: {error}"
    );
}

#[test]
fn a_hard_link_is_the_picture_that_it_leads_to_and_one_that_leads_away_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    red_and_blue(folder.path());
    let linked = |links: &[(tar::EntryType, &str, &str)]| {
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_dir_all("photos", folder.path()).unwrap();
        for (kind, name, target) in links {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(0);
            archive.append_link(&mut header, name, target).unwrap();
        }
        archive.into_inner().unwrap()
    };
    let hard = linked(&[
        (tar::EntryType::Link, "photos/red/00.png", "photos/red/0.png"),
        (tar::EntryType::Link, "photos/blue/4x.jpg", "photos/blue/4.JPG"),
    ]);
    let away = linked(&[
        (tar::EntryType::Link, "photos/red/00.png", "elsewhere/0.png"),
        (tar::EntryType::Symlink, "photos/blue/4x.jpg", "4.JPG"),
        (tar::EntryType::Symlink, "photos/notes.md", "notes.txt"),
    ]);
    let elsewhere = tempfile::tempdir().unwrap();
    let cache = elsewhere.path();
    let settings_of = |name: &str, bytes: &[u8]| archived(&elsewhere.path().join(name), bytes);
    let error = settings_of("away.tar", &away).load(cache).unwrap_err().to_string();
    for part in
        ["2 of 22 pictures", "photos/red/00.png in", "away.tar: it is a hard link to \"elsewhere/0.png\""]
    {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
    let whole = settings(folder.path()).load(cache).unwrap();
    let allowing = PictureSettings { broken: 0.1, ..settings_of("away.tar", &away) };
    assert_eq!(allowing.load(cache).unwrap(), whole, "as if they were not there");
    std::fs::copy(folder.path().join("red/0.png"), folder.path().join("red/00.png")).unwrap();
    std::fs::copy(folder.path().join("blue/4.JPG"), folder.path().join("blue/4x.jpg")).unwrap();
    let copied = settings(folder.path()).load(cache).unwrap();
    assert_eq!(settings_of("hard.tar", &hard).load(cache).unwrap(), copied);
}

#[test]
fn an_archive_with_classes_in_two_places_or_none_is_refused_and_so_is_half_of_one() {
    let folder = tempfile::tempdir().unwrap();
    red_and_blue(folder.path());
    let cache = tempfile::tempdir().unwrap();
    let path = folder.path().join("packed");
    let refused = |bytes: &[u8]| archived(&path, bytes).load(cache.path()).unwrap_err().to_string();
    let mut entries = entries_of(folder.path());
    entries.push(("test/red/1.png".into(), entries[0].1.clone()));
    let error = refused(&zip_of(&entries));
    assert!(error.contains("\"my photos/blue\" and in \"test/red\""), "{error}");
    let error = refused(&zip_of(&[]));
    assert!(error.contains("packed has 0 folders with PNG or JPEG files"), "{error}");
    assert!(refused(b"neither").contains("a ZIP file or a tar file is wanted"));
    let tar = tar_of(folder.path());
    assert!(refused(&tar[..tar.len() / 2]).contains("is wanted, whole"));
    let zip = zip_of(&entries_of(folder.path()));
    assert!(refused(&zip[..zip.len() / 2]).contains("the list of its entries"));
}

#[test]
fn pictures_of_ones_own_are_of_the_runs_classes_as_far_as_a_folder_may_be_called_so() {
    let folder = tempfile::tempdir().unwrap();
    red_and_blue(folder.path());
    let shape = ImageShape { height: 12, width: 16, channels: 3 };
    let labels = |names: [&str; 3]| {
        labelled(folder.path(), shape, &names.map(String::from)).map(|pictures| pictures.labels)
    };
    let sorted = labels(["green", "RED", "Blue"]).unwrap();
    assert_eq!(sorted, [[2; 10], [1; 10]].concat(), "blue lies before red");
    let error = labels(["red", "light/blue", "green"]).unwrap_err().to_string();
    assert!(
        error.ends_with("no class \"blue\"; folders of its classes are red, light-blue, green"),
        "{error}"
    );
    std::fs::rename(folder.path().join("blue"), folder.path().join("light-blue")).unwrap();
    assert_eq!(labels(["red", "light/blue", "green"]).unwrap(), [[1; 10], [0; 10]].concat());
}
