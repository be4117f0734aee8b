#![allow(clippy::unwrap_used)]

use super::*;
use crate::columns::tests::flowers;

fn kinds() -> TableTarget {
    TableTarget::Class(["daisy", "rose"].map(String::from).into())
}

fn read(text: &str) -> Result<OwnRows, OwnRowsError> {
    OwnRows::read(text.as_bytes(), &flowers(), &kinds())
}

#[test]
fn columns_stand_in_any_order_among_others() {
    let text = "\u{feff}note;kind;colour;length\nfirst;rose;white;10\n;daisy;red;\n";
    let OwnRows { rows, broken } = read(text).unwrap();
    let targets = RowTargets::Classes(vec![1, 0]);
    assert_eq!(rows, TableRows { n_columns: 3, values: vec![2.0, -0.5, 0.5, 0.0, 1.5, -1.5], targets });
    assert_eq!(broken, BrokenRows::default());
    let value = TableTarget::Values(vec!["kind".into()]);
    let told = OwnRows::read(b"kind,length,colour\n7.5,2,red\nrose,2,red\n", &flowers(), &value).unwrap();
    assert_eq!(told.rows.targets, RowTargets::Values { n_values: 1, values: vec![7.5] });
    assert_eq!(told.broken.n(), 1);
}

#[test]
fn broken_rows_are_counted_and_the_first_is_named() {
    let text = "length,colour,kind\n1,red,rose\nlong,red,rose\n1,red\n1,red,tulip\n2,white,daisy\n";
    let OwnRows { rows, broken } = read(text).unwrap();
    assert_eq!((rows.n_samples(), broken.n()), (2, 3));
    let (place, reason) = broken.first().unwrap();
    assert_eq!(format!("{place}: {reason}"), "line 3: column \"length\": a number is wanted, \"long\" came");
    let none = read("length,colour,kind\n1,red\n1,red,tulip\n").unwrap_err().to_string();
    assert!(none.contains("none of its 2 rows") && none.contains("line 2: it has 2 values"), "{none}");
}

#[test]
fn a_file_without_a_column_is_refused_with_the_names() {
    let said = read("length,size\n1,2\n").unwrap_err().to_string();
    assert_eq!(said, "it has no column colour, kind; wanted are length, colour, kind, it has length, size");
    assert!(matches!(read("length,colour,kind\n"), Err(OwnRowsError::Empty)));
    assert!(matches!(read(""), Err(OwnRowsError::Columns(_))));
    let latin = OwnRows::read(b"l\xe4nge,kind\n1,rose\n", &flowers(), &kinds());
    assert!(matches!(latin, Err(OwnRowsError::Csv(_))));
}

#[test]
fn a_table_has_room_in_the_memory_of_a_tab() {
    let text = b"length,colour,kind\n1,red,rose\n2,white,daisy\n3,red,rose\n";
    let read = |bytes_max| OwnRows::read_within(bytes_max, text, &flowers(), &kinds());
    // Of each row three numbers and its class.
    assert_eq!(read(3 * 16).unwrap().rows.n_samples(), 3);
    assert!(matches!(read(3 * 16 - 1), Err(OwnRowsError::TooLarge)));
}

#[test]
fn broken_rows_are_told_by_what_is_wrong_with_them() {
    let number = NoNumber { column: "length".into(), cell: "long".into() };
    for (reason, said) in [
        (RowError::Length { want: 2, got: 3 }, "1 with more or fewer values than the head"),
        (RowError::NotUtf8, "1 in another encoding"),
        (RowError::NoTarget, "1 without what is to be told"),
        (RowError::target("tall"), "1 with a word that is to be told"),
        (RowError::Number(number), "1 with a word among numbers"),
        (RowError::class("tulip", &["rose".into()]), "1 of an unknown class"),
        (RowError::item("cake"), "1 of an unknown item"),
        (RowError::NoRated, "1 of nobody or nothing"),
        (RowError::rating("many"), "1 without a number as rating"),
        (RowError::scale("50", [1.0, 5.0]), "1 on another scale"),
    ] {
        let mut broken = BrokenRows::default();
        broken.add(RowPlace::Line(7), reason.clone());
        assert_eq!(broken.to_string(), format!("{said}; the first is line 7: {reason}"));
    }
    assert_eq!(BrokenRows::default().to_string(), "");
}

#[test]
fn the_first_broken_row_is_that_of_the_file_and_not_that_found_first() {
    let mut broken = BrokenRows::default();
    for (row, reason) in
        [(5, RowError::NotUtf8), (3, RowError::NoTarget), (3, RowError::NotUtf8), (4, RowError::NotUtf8)]
    {
        broken.add(RowPlace::Row(row), reason);
    }
    assert_eq!(
        broken.to_string(),
        "3 in another encoding, 1 without what is to be told; the first is row 3: what is to be told is missing"
    );
}

/// A disk that fails.
struct Failing;

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("the disk is gone"))
    }
}

#[test]
fn a_row_in_another_encoding_is_left_out_and_a_file_that_cannot_be_read_is_not() {
    let text = b"length,colour,kind\n1,red,rose\n1,r\xf6t,rose\n2,red,rose\n";
    let OwnRows { rows, broken } = OwnRows::read(text, &flowers(), &kinds()).unwrap();
    assert_eq!(rows.n_samples(), 2);
    assert_eq!(broken.to_string(), "1 in another encoding; the first is line 3: it is not UTF-8");
    let mut cut = CsvRows::read(b"a,b\n1,2\n".chain(Failing)).unwrap();
    let (place, record) = cut.next().unwrap().unwrap();
    assert_eq!((place, record.unwrap().len()), (RowPlace::Line(2), 2));
    let error = cut.next().unwrap().unwrap_err();
    assert!(matches!(error.kind(), csv::ErrorKind::Io(_)), "{error}");
}
