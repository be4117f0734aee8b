//! Rows and ratings as shards have them: golden bytes, round trip, and what a hostile peer may send.

use barnraise_protocol::dataset::{
    DatasetError, ImageShape, LabelledImages, Manifest, RatingShape, Ratings, RowTargets, SampleKind,
    Samples, ShardEntry, TableRows, TableShape, TableTarget, TokenSequences, TokenShape,
};

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
    let entry = ShardEntry { n_samples: 2, n_bytes: 1, sha256: barnraise_protocol::Sha256Hash([0; 32]) };
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
    assert!(!text.describes(&own(4, &[0, 1, 3, 0])) && !text.describes(&own(2, &[0, 1, 2, 0])));
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
