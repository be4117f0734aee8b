//! The form that asks the model about a row of a table, and the one that rates items and shows more of them.

use barnraise_protocol::columns::{Column, ColumnContent, DataColumns, RatingColumns, TableColumns};
use barnraise_protocol::dataset::{SampleKind, TableTarget};
use web_sys::{Element, HtmlElement};

use super::trial::Bar;
use crate::dom::{DomError, Field, by_id, create, set_attribute};
use crate::format;
use crate::sentence::{UNANSWERED, which_model};
use crate::state::{PageState, RowAnswer, WorkerState, placeholder};

/// Items that are shown of those that are recommended.
const BARS: usize = 10;
/// Classes that are shown.
const CLASSES: usize = 3;
/// Names of items that a browser is given to complete what is typed.
const SUGGESTIONS_MAX: usize = 5000;

pub(crate) struct RowsView {
    section: Field,
    row_form: Field,
    fields: Element,
    rate_form: Field,
    item_label: Field,
    rating_label: Field,
    rating: HtmlElement,
    suggestions: Element,
    rated: Element,
    said: Field,
    list: Element,
    bars: Vec<Bar>,
    epoch: Field,
    /// The columns that the forms were made for.
    made_for: Option<DataColumns>,
    /// The ratings that are listed.
    listed: Vec<(u32, f32)>,
}

impl RowsView {
    pub(crate) fn find() -> Result<Self, DomError> {
        let list: Element = by_id("row-answers")?;
        let bars = (0..BARS).map(|_| Bar::add(&list)).collect::<Result<_, _>>()?;
        Ok(Self {
            section: Field::find("rows")?,
            row_form: Field::find("row-form")?,
            fields: by_id("row-fields")?,
            rate_form: Field::find("rate-form")?,
            item_label: Field::find("rate-item-label")?,
            rating_label: Field::find("rate-rating-label")?,
            rating: by_id("rate-rating")?,
            suggestions: by_id("rate-items")?,
            rated: by_id("rated")?,
            said: Field::find("row-said")?,
            list,
            bars,
            epoch: Field::find("row-epoch")?,
            made_for: None,
            listed: Vec::new(),
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let columns = page.rows.columns.as_ref().filter(|_| page.is_supported());
        self.section.set_hidden(columns.is_none());
        let Some(columns) = columns else { return };
        self.row_form.set_hidden(!matches!(columns, DataColumns::Table(_)));
        self.rate_form.set_hidden(!matches!(columns, DataColumns::Ratings(_)));
        if self.made_for.as_ref() != Some(columns) {
            // A field that a browser refuses is not there: the others are.
            let _ = match columns {
                DataColumns::Table(table) => self.make_fields(table, page.n_fields()),
                DataColumns::Ratings(ratings) => self.make_rating(ratings),
            };
            self.made_for = Some(columns.clone());
        }
        if let DataColumns::Ratings(ratings) = columns
            && self.listed != page.rows.rated
        {
            let _ = self.list_rated(ratings, &page.rows.rated);
            self.listed.clone_from(&page.rows.rated);
        }
        self.said.set_text(&said(page));
        let lines = lines(page);
        set_attribute(&self.list, "data-shown", if lines.is_empty() { "false" } else { "true" });
        for (index, bar) in self.bars.iter().enumerate() {
            match lines.get(index) {
                Some(Line { name, text, share }) => bar.show(name, index, *share, text),
                None => bar.hide(),
            }
        }
        let epoch = match &page.rows.answer {
            Some(RowAnswer::Told { epoch, .. } | RowAnswer::Recommended { epoch, .. }) => Some(*epoch),
            Some(RowAnswer::Failed { .. }) | None => None,
        };
        let text = epoch.map(|epoch| which_model(page, epoch)).unwrap_or_default();
        self.epoch.set_number(&text, epoch.map_or(f64::NAN, |epoch| epoch as f64));
    }

    /// A field for each column.
    fn make_fields(&self, columns: &TableColumns, n_fields: usize) -> Result<(), DomError> {
        self.fields.set_text_content(None);
        for (index, column) in columns.columns.iter().take(n_fields).enumerate() {
            let (label, name): (Element, Element) = (create("label")?, create("span")?);
            // As text, never as markup.
            name.set_text_content(Some(&column.name));
            let field = field(index, column)?;
            label.append_child(&name)?;
            label.append_child(&field)?;
            self.fields.append_child(&label)?;
        }
        Ok(())
    }

    /// What the rating form calls its fields.
    fn make_rating(&mut self, columns: &RatingColumns) -> Result<(), DomError> {
        let [lowest, highest] = columns.range;
        self.item_label.set_text(&columns.item);
        self.rating_label.set_text(&format!("{}, {lowest} to {highest}", columns.rating));
        for (name, value) in [("min", lowest), ("max", highest)] {
            set_attribute(&self.rating, name, &value.to_string());
        }
        set_attribute(&self.rating, "value", &highest.to_string());
        self.suggestions.set_text_content(None);
        for item in columns.items.iter().take(SUGGESTIONS_MAX) {
            let option: Element = create("option")?;
            option.set_attribute("value", item)?;
            self.suggestions.append_child(&option)?;
        }
        Ok(())
    }

    /// The items that were rated, each with a button to take it back.
    fn list_rated(&self, columns: &RatingColumns, rated: &[(u32, f32)]) -> Result<(), DomError> {
        self.rated.set_text_content(None);
        for &(item, rating) in rated {
            let (entry, name): (Element, Element) = (create("li")?, create("span")?);
            let button: Element = create("button")?;
            let item_name = columns.item(item);
            name.set_text_content(Some(&format!("{item_name}: {rating}")));
            button.set_attribute("type", "button")?;
            button.set_attribute("data-item", &item.to_string())?;
            button.set_attribute("aria-label", &format!("Take {item_name} back"))?;
            button.set_text_content(Some("×"));
            entry.append_child(&name)?;
            entry.append_child(&button)?;
            self.rated.append_child(&entry)?;
        }
        Ok(())
    }
}

/// The field of a column: a number, or one of its words.
fn field(index: usize, column: &Column) -> Result<Element, DomError> {
    let field: Element = match &column.content {
        ColumnContent::Number(_) => {
            let input: Element = create("input")?;
            // Not of type number: browsers would hide from the page what is typed with a comma.
            input.set_attribute("inputmode", "decimal")?;
            input.set_attribute("autocomplete", "off")?;
            let mean = placeholder(&column.content).unwrap_or_default();
            input.set_attribute("placeholder", &mean)?;
            input
        }
        ColumnContent::Words(words) => {
            let select: Element = create("select")?;
            let others = words.iter().map(|(word, _)| word.as_str()).filter(|word| !word.is_empty());
            for word in std::iter::once("").chain(others) {
                let option: Element = create("option")?;
                option.set_attribute("value", word)?;
                option.set_text_content(Some(if word.is_empty() { "–" } else { word }));
                select.append_child(&option)?;
            }
            select
        }
    };
    field.set_attribute("id", &format!("row-{index}"))?;
    Ok(field)
}

/// A line of an answer.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    name: String,
    text: String,
    /// Length of its bar, 0 to 1.
    share: f32,
}

/// The likeliest classes, or the best items.
fn lines(page: &PageState) -> Vec<Line> {
    match (&page.rows.answer, &page.rows.columns) {
        (Some(RowAnswer::Told { told, .. }), _) if !page.tells_numbers() => {
            let mut ranking: Vec<(usize, f32)> = told.iter().copied().enumerate().collect();
            ranking.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let line =
                |(class, share)| Line { name: page.class_name(class), text: format::percent(share), share };
            ranking.into_iter().take(CLASSES).map(line).collect()
        }
        (Some(RowAnswer::Recommended { items, .. }), Some(DataColumns::Ratings(columns))) => {
            let [lowest, highest] = columns.range;
            let line = |&(item, rating): &(u32, f32)| {
                let rating = columns.clamped(rating);
                let share = if highest > lowest { (rating - lowest) / (highest - lowest) } else { 1.0 };
                Line { name: columns.item(item), text: format!("{rating:.1}"), share }
            };
            items.iter().take(BARS).map(line).collect()
        }
        _ => Vec::new(),
    }
}

fn said(page: &PageState) -> String {
    let rows = &page.rows;
    match (&rows.answer, rows.is_open, &page.peer) {
        (_, true, WorkerState::Loading { .. }) => "Fetching the model first…".into(),
        (_, true, WorkerState::Absent) if page.trouble.is_some() => UNANSWERED.into(),
        (None, true, _) => "Looking…".into(),
        (Some(RowAnswer::Failed { reason }), ..) => format!("That does not work: {reason}."),
        (Some(RowAnswer::Told { told, .. }), ..) => told_of(page, told),
        (Some(RowAnswer::Recommended { .. }), ..) => {
            "What you might like, and what you would give it:".into()
        }
        (None, false, _) => match &rows.columns {
            Some(DataColumns::Ratings(columns)) => {
                format!(
                    "Rate a few, and the model finds more. It knows what others gave; column: {}.",
                    columns.item
                )
            }
            _ => "What is left empty is taken to be as usual.".into(),
        },
    }
}

/// What is to be told, by its name.
fn told_of(page: &PageState, told: &[f32]) -> String {
    let samples = page.run.as_ref().map(|run| &run.data.manifest.samples);
    let Some(SampleKind::Rows(shape)) = samples else { return String::new() };
    match (&shape.target, &page.rows.columns) {
        (TableTarget::Values(names), _) => {
            let values: Vec<String> = names
                .iter()
                .zip(told)
                .map(|(name, value)| format!("{name}: {}", significant(*value)))
                .collect();
            values.join(", ")
        }
        (TableTarget::Class(_), Some(DataColumns::Table(columns))) => {
            format!("{}, most likely first:", columns.target)
        }
        (TableTarget::Class(_), _) => String::new(),
    }
}

/// With four digits that matter.
fn significant(value: f32) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let size = value.abs().log10().floor();
    let digits = (3.0 - size).clamp(0.0, 6.0) as usize;
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::dataset::TableShape;
    use barnraise_protocol::run::model::graph::Loss;

    use super::*;
    use crate::fixture;
    use crate::state::PageEvent;

    #[test]
    fn the_likeliest_classes_come_first() {
        let mut page = fixture::table_page();
        page.on_event(0.0, PageEvent::ColumnsKnown(Box::new(fixture::table_columns())));
        assert_eq!(said(&page), "What is left empty is taken to be as usual.");
        page.rows.answer = Some(RowAnswer::Told { epoch: 7, told: vec![0.1, 0.9] });
        let names: Vec<String> = lines(&page).into_iter().map(|line| line.name + " " + &line.text).collect();
        assert_eq!(names, ["rose 90.0 %", "daisy 10.0 %"]);
        assert_eq!(said(&page), "kind, most likely first:");
        page.rows.answer = Some(RowAnswer::Failed { reason: "no number".into() });
        assert_eq!((said(&page).as_str(), lines(&page)), ("That does not work: no number.", Vec::new()));
    }

    #[test]
    fn a_value_is_said_by_its_name() {
        let mut page = fixture::table_page();
        if let Some(run) = &mut page.run {
            let target = TableTarget::Values(vec!["size".into()]);
            run.data.manifest.samples =
                SampleKind::Rows(TableShape { columns: vec!["length".into()], target });
            run.model.graph.loss = Loss::Regression;
        }
        page.rows.answer = Some(RowAnswer::Told { epoch: 7, told: vec![3.456_78] });
        assert_eq!((said(&page).as_str(), lines(&page)), ("size: 3.457", Vec::new()));
        assert_eq!(
            [0.0, 12.345, -45_678.9, 0.001_236_4].map(significant),
            ["0", "12.35", "-45679", "0.001236"]
        );
    }

    #[test]
    fn items_have_their_names_and_bars_within_the_range() {
        let mut page = fixture::rating_page();
        page.on_event(0.0, PageEvent::ColumnsKnown(Box::new(fixture::rating_columns())));
        page.rows.answer = Some(RowAnswer::Recommended { epoch: 7, items: vec![(1, 5.4), (0, 3.0)] });
        let line = |name: &str, text: &str, share| Line { name: name.into(), text: text.into(), share };
        assert_eq!(lines(&page), [line("Psycho", "5.0", 1.0), line("Jaws", "3.0", 0.5)]);
    }
}
