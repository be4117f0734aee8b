//! Rows and ratings as shards have them: golden bytes, round trip, and what a hostile peer may send.

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::dataset::{
    COLUMNS_MAX, DataStream, DatasetError, ImageShape, LABEL_BYTES_MAX, LabelledImages, Manifest,
    PREPROCESSING_BYTES_MAX, RatingShape, Ratings, RowTargets, SHARDS_MAX, SampleKind, Samples, ShardEntry,
    TARGETS_MAX, TableRows, TableShape, TableTarget, TokenSequences, TokenShape, class_folder,
    class_of_folder,
};

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn entry(n_samples: u32) -> ShardEntry {
    ShardEntry { n_samples, n_bytes: 1, sha256: Sha256Hash([0; 32]) }
}

fn of(samples: SampleKind, entry: ShardEntry) -> Manifest {
    Manifest {
        name: "d".into(),
        samples,
        shards: vec![entry],
        gallery: entry,
        frozen: Vec::new(),
        preprocessing: None,
        stream: None,
    }
}

fn table(target: TableTarget) -> SampleKind {
    SampleKind::Rows(TableShape { columns: names(&["a", "b"]), target })
}

fn rows(targets: RowTargets) -> Samples {
    Samples::Rows(TableRows { n_columns: 2, values: vec![1.0, -2.0, 0.5, 0.0], targets })
}

/// Every kind, its golden bytes before compression, and its golden description.
fn kinds() -> [(SampleKind, Samples, &'static str, &'static str); 3] {
    let ratings = Ratings { users: vec![0, 300], items: vec![1, 0], ratings: vec![4.0, 2.5] };
    [
        (
            table(TableTarget::Class(names(&["x", "y"]))),
            rows(RowTargets::Classes(vec![1, 0])),
            "0000803f000000c00000003f000000000100",
            "02020161016200020178 0179",
        ),
        (
            table(TableTarget::Values(names(&["z"]))),
            rows(RowTargets::Values { n_values: 1, values: vec![4.0, 2.5] }),
            "0000803f000000c00000003f000000000000804000002040",
            "0202016101620101017a",
        ),
        (
            SampleKind::Ratings(RatingShape { n_users: 301, n_items: 2 }),
            Samples::Ratings(ratings),
            "000000002c01000001000000000000000000804000002040",
            "03ad0202",
        ),
    ]
}

#[test]
fn samples_are_of_a_data_set_or_of_none() {
    let entry = entry(2);
    let kinds = kinds();
    for (at, (kind, ..)) in kinds.iter().enumerate() {
        let manifest = of(kind.clone(), entry);
        let fits: Vec<bool> = kinds.iter().map(|(_, samples, ..)| manifest.describes(samples)).collect();
        assert_eq!(fits, (0..kinds.len()).map(|other| other == at).collect::<Vec<_>>(), "{kind:?}");
        assert!(!manifest.describes(&kinds[at].1.none_of()), "none at all");
    }
    let shape = ImageShape { height: 2, width: 1, channels: 1 };
    let pictures = of(SampleKind::Images { shape, class_names: names(&["x", "y"]) }, entry);
    let own = |images: usize, labels: &[u8]| {
        Samples::Images(LabelledImages { images: vec![0; images], labels: labels.to_vec() })
    };
    assert!(pictures.describes(&own(4, &[0, 1])));
    for other in [own(4, &[0, 2]), own(3, &[0, 1]), own(4, &[0]), own(0, &[])] {
        assert!(!pictures.describes(&other), "{other:?}");
    }
    let tokens = TokenShape { length: 4, vocabulary: 3, mask: None };
    let text = of(SampleKind::Tokens(tokens), entry);
    let own = |length, ids: &[u32]| Samples::Tokens(TokenSequences { length, ids: ids.to_vec() });
    assert!(text.describes(&own(4, &[0, 1, 2, 0])));
    for other in [own(4, &[0, 1, 3, 0]), own(2, &[0, 1, 2, 0]), own(4, &[0, 1, 2, 0, 1])] {
        assert!(!text.describes(&other), "{other:?}");
    }
}

#[test]
fn shards_have_their_golden_bytes_and_come_back() {
    for (kind, samples, golden, described) in kinds() {
        assert_eq!(hex(&samples.to_bytes()), golden);
        assert_eq!(hex(&postcard::to_allocvec(&kind).unwrap()), described.replace(' ', ""));
        let (bytes, entry) = samples.encode().unwrap();
        let manifest = of(kind, entry);
        manifest.validate().unwrap();
        assert_eq!(Samples::decode(&bytes, &entry, &manifest).unwrap(), samples);
        assert_eq!(manifest.raw_bytes(&entry), golden.len() / 2);
        let mut second = samples.none_of();
        assert_eq!(second.n_samples(), 0);
        second.push(&samples, 1);
        second.push(&samples, 2);
        assert_eq!(second.n_samples(), 1, "there is no third sample");
        second.push(&samples, 0);
        assert_ne!(second, samples, "the order is another");
    }
}

#[test]
fn what_no_table_has_is_refused() {
    let refused = |kind: SampleKind, samples: Samples| {
        let (bytes, entry) = samples.encode().unwrap();
        Samples::decode(&bytes, &entry, &of(kind, entry)).unwrap_err()
    };
    let two = || table(TableTarget::Class(names(&["x", "y"])));
    let label = refused(two(), rows(RowTargets::Classes(vec![1, 2])));
    assert_eq!(label, DatasetError::Label { label: 2, n_classes: 2 });
    let infinite =
        TableRows { n_columns: 2, values: vec![1.0, f32::INFINITY], targets: RowTargets::Classes(vec![0]) };
    assert_eq!(refused(two(), Samples::Rows(infinite)), DatasetError::NotFinite);
    let short = refused(two(), rows(RowTargets::Classes(vec![1])));
    assert!(matches!(short, DatasetError::Length { want: 18, got: 17 }), "{short}");
    let rated = |user, item, rating| {
        let shape = SampleKind::Ratings(RatingShape { n_users: 3, n_items: 2 });
        let ratings = Ratings { users: vec![user], items: vec![item], ratings: vec![rating] };
        refused(shape, Samples::Ratings(ratings))
    };
    assert_eq!(rated(3, 0, 1.0), DatasetError::Id { what: "user", got: 3, n: 3 });
    assert_eq!(rated(0, 2, 1.0), DatasetError::Id { what: "item", got: 2, n: 2 });
    assert_eq!(rated(0, 0, f32::NAN), DatasetError::NotFinite);
    let (_, entry) = rows(RowTargets::Classes(vec![1, 0])).encode().unwrap();
    for bad in [
        SampleKind::Rows(TableShape { columns: Vec::new(), target: TableTarget::Class(names(&["x"])) }),
        SampleKind::Rows(TableShape { columns: names(&["a"]), target: TableTarget::Class(Vec::new()) }),
        table(TableTarget::Class(vec![String::new(); 257])),
        table(TableTarget::Values(vec![String::new(); 65])),
        table(TableTarget::Values(vec!["n".repeat(257)])),
        SampleKind::Ratings(RatingShape { n_users: 0, n_items: 1 }),
        SampleKind::Ratings(RatingShape { n_users: 1, n_items: u32::MAX }),
    ] {
        assert!(of(bad, entry).validate().is_err());
    }
}

#[test]
fn rows_and_ratings_are_as_the_data_set_says_or_of_another() {
    let classes = || table(TableTarget::Class(names(&["x", "y"])));
    let values = || table(TableTarget::Values(names(&["z", "w"])));
    let told = |n_values, n: usize| rows(RowTargets::Values { n_values, values: vec![1.0; n] });
    let rated = |users: &[u32], items: &[u32]| {
        Samples::Ratings(Ratings { users: users.to_vec(), items: items.to_vec(), ratings: vec![4.0, 2.5] })
    };
    let shape = || SampleKind::Ratings(RatingShape { n_users: 9, n_items: 2 });
    for (kind, samples, is_such) in [
        (classes(), rows(RowTargets::Classes(vec![1, 0])), true),
        (classes(), rows(RowTargets::Classes(vec![1, 2])), false),
        (classes(), rows(RowTargets::Classes(vec![1])), false),
        (classes(), rows(RowTargets::Classes(vec![1, 0, 0])), false),
        (values(), told(2, 4), true),
        (values(), told(2, 2), false),
        (values(), told(1, 2), false),
        (shape(), rated(&[8, 0], &[1, 0]), true),
        (shape(), rated(&[9, 0], &[1, 0]), false),
        (shape(), rated(&[8, 0], &[2, 0]), false),
        (shape(), rated(&[8], &[1, 0]), false),
        (shape(), rated(&[8, 0], &[1]), false),
    ] {
        assert_eq!(of(kind, entry(2)).describes(&samples), is_such, "{samples:?}");
    }
    let Samples::Rows(mut ragged) = rows(RowTargets::Classes(vec![1, 0])) else { unreachable!("rows") };
    ragged.values.push(0.5);
    assert!(ragged.n_columns > 1 && !of(classes(), entry(2)).describes(&Samples::Rows(ragged)));
}

#[test]
fn rows_are_appended_with_what_is_to_be_told_of_them() {
    let three = |targets| {
        let values = vec![0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0];
        Samples::Rows(TableRows { n_columns: 3, values, targets })
    };
    let values = RowTargets::Values { n_values: 2, values: vec![0.1, 0.2, 1.1, 1.2, 2.1, 2.2] };
    for samples in [three(RowTargets::Classes(vec![2, 0, 1])), three(values)] {
        let mut copy = samples.none_of();
        (0..3).for_each(|index| copy.push(&samples, index));
        assert_eq!(copy, samples);
    }
}

#[test]
fn nothing_is_appended_of_rows_of_another_table() {
    let row =
        |n_columns, targets| Samples::Rows(TableRows { n_columns, values: vec![1.0; n_columns], targets });
    let class = || RowTargets::Classes(vec![0]);
    let values = |n_values| RowTargets::Values { n_values, values: vec![2.0; n_values] };
    for (here, other) in [
        (row(2, class()), row(1, class())),
        (row(2, class()), row(2, values(1))),
        (row(2, values(1)), row(2, values(2))),
        (row(2, values(2)), row(2, values(1))),
    ] {
        let mut pushed = here.clone();
        pushed.push(&other, 0);
        assert_eq!(pushed, here, "{other:?}");
    }
}

#[test]
fn of_a_row_several_values_are_told() {
    let kind = table(TableTarget::Values(names(&["x", "y", "z"])));
    let samples = rows(RowTargets::Values { n_values: 3, values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0] });
    let (bytes, entry) = samples.encode().unwrap();
    let manifest = of(kind, entry);
    assert_eq!(manifest.sample_bytes(), 20);
    assert_eq!(Samples::decode(&bytes, &entry, &manifest).unwrap(), samples);
}

#[test]
fn a_shard_with_another_hash_than_the_manifests_is_refused() {
    for (kind, samples, ..) in kinds() {
        let (bytes, entry) = samples.encode().unwrap();
        assert_eq!(entry.check(&bytes), Ok(()));
        let mut other = bytes;
        *other.last_mut().unwrap() ^= 1;
        let error = DatasetError::Hash { want: entry.sha256, got: Sha256Hash::of(&other) };
        assert_eq!(Samples::decode(&other, &entry, &of(kind, entry)), Err(error));
    }
}

#[test]
fn a_picture_has_a_label_of_a_class() {
    let shape = ImageShape { height: 2, width: 1, channels: 1 };
    let kind = SampleKind::Images { shape, class_names: names(&["x", "y"]) };
    let decoded = |labels: [u8; 2]| {
        let pictures = LabelledImages { images: vec![7; 4], labels: labels.to_vec() };
        let (bytes, entry) = Samples::Images(pictures).encode().unwrap();
        Samples::decode(&bytes, &entry, &of(kind.clone(), entry)).map(|samples| samples.n_samples())
    };
    assert_eq!(decoded([1, 0]), Ok(2));
    assert_eq!(decoded([1, 2]), Err(DatasetError::Label { label: 2, n_classes: 2 }));
}

#[test]
fn a_shard_has_64_mib_after_decompression_at_most() {
    // A row is 16 bytes: 4,194,304 of them are 64 MiB.
    let kind = || table(TableTarget::Values(names(&["x", "y"])));
    let row = RowTargets::Values { n_values: 2, values: vec![0.0; 2] };
    let row = Samples::Rows(TableRows { n_columns: 2, values: vec![0.0; 2], targets: row });
    let (bytes, one) = row.encode().unwrap();
    let too_large = || DatasetError::Manifest("a shard is larger than 64 MiB after decompression");
    let length = |want| DatasetError::Length { want, got: 16 };
    for (n_samples, is_good, refused) in
        [(4_194_304, true, length(64 * 1024 * 1024)), (4_194_305, false, too_large())]
    {
        let large = ShardEntry { n_samples, ..one };
        let of_gallery = Manifest { gallery: large, ..of(kind(), one) };
        let stream = DataStream { sources: Sha256Hash([0; 32]), shard_samples: n_samples, window_shards: 1 };
        let of_stream = Manifest { shards: Vec::new(), stream: Some(stream), ..of(kind(), one) };
        for manifest in [of(kind(), large), of_gallery, of_stream] {
            assert_eq!(manifest.validate().is_ok(), is_good, "{manifest:?}");
        }
        assert_eq!(Samples::decode(&bytes, &large, &of(kind(), large)), Err(refused));
    }
}

#[test]
fn a_table_keeps_within_its_limits() {
    let many = |n_names: usize| vec!["n".to_owned(); n_names];
    let long = |n_bytes: usize| vec!["n".repeat(n_bytes)];
    let is_good =
        |columns, target| of(SampleKind::Rows(TableShape { columns, target }), entry(1)).validate().is_ok();
    for (limit, within) in [(COLUMNS_MAX, true), (COLUMNS_MAX + 1, false)] {
        assert_eq!(is_good(many(limit), TableTarget::Class(many(1))), within, "{limit} columns");
    }
    for (limit, within) in [(256, true), (257, false)] {
        assert_eq!(is_good(many(1), TableTarget::Class(many(limit))), within, "{limit} classes");
    }
    for (limit, within) in [(TARGETS_MAX, true), (TARGETS_MAX + 1, false)] {
        assert_eq!(is_good(many(1), TableTarget::Values(many(limit))), within, "{limit} values");
    }
    for (limit, within) in [(LABEL_BYTES_MAX, true), (LABEL_BYTES_MAX + 1, false)] {
        assert_eq!(is_good(long(limit), TableTarget::Class(many(1))), within, "column of {limit} bytes");
        assert_eq!(is_good(many(1), TableTarget::Class(long(limit))), within, "class of {limit} bytes");
    }
}

#[test]
fn the_file_that_makes_samples_is_neither_empty_nor_too_large() {
    let [(kind, ..), ..] = kinds();
    for (n_bytes, is_good) in
        [(0, false), (1, true), (PREPROCESSING_BYTES_MAX, true), (PREPROCESSING_BYTES_MAX + 1, false)]
    {
        let preprocessing = Some(Transfer { n_bytes, sha256: Sha256Hash([0; 32]) });
        let manifest = Manifest { preprocessing, ..of(kind.clone(), entry(1)) };
        assert_eq!(manifest.validate().is_ok(), is_good, "{n_bytes} bytes");
    }
}

#[test]
fn shards_of_frozen_weights_are_numbered_after_those_of_samples() {
    let [(kind, ..), ..] = kinds();
    let [first, second, frozen] = [1, 2, 3].map(entry);
    let mut manifest = Manifest { shards: vec![first, second], frozen: vec![frozen], ..of(kind, entry(1)) };
    assert_eq!((manifest.n_numbered(), manifest.first_frozen()), (3, 2));
    let numbered = [0, 1, 2, 3].map(|number| manifest.numbered(number).copied());
    assert_eq!(numbered, [Some(first), Some(second), Some(frozen), None]);
    manifest.shards.resize(SHARDS_MAX - 1, first);
    assert_eq!(manifest.validate(), Ok(()));
    manifest.frozen.push(frozen);
    assert!(manifest.validate().is_err(), "both count");
}

#[test]
fn a_folder_is_of_the_class_whose_name_it_has_as_far_as_a_folder_may() {
    let names = names(&["T-shirt/top", "a-b", "A:B", "a/b", "Ankle boot"]);
    for (folder, class) in [
        ("T-shirt-top", Some(0)),
        ("t-shirt-TOP", Some(0)),
        ("T-shirt/top", Some(0)),
        ("T-shirt top", None),
        ("T-shirt", None),
        ("a-b", Some(1)),
        ("A-B", Some(1)),
        ("A:B", Some(2)),
        ("a/b", Some(3)),
        ("ankle boot", Some(4)),
        ("", None),
    ] {
        assert_eq!(class_of_folder(folder, &names), class, "{folder}");
    }
    assert_eq!(class_folder("T-shirt/top"), "T-shirt-top");
    let many: Vec<String> = (0..257).map(|class| class.to_string()).collect();
    assert_eq!((class_of_folder("255", &many), class_of_folder("256", &many)), (Some(255), None));
}
