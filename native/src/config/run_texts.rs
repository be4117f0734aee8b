//! Default title and purpose of a run, by its data and model. Pure.

use barnraise_protocol::run::model::graph::Loss;

use super::RunConfig;
use crate::data::sets::NamedSet;

/// Title and purpose of a run.
pub(super) struct RunTexts {
    pub(super) title: &'static str,
    pub(super) purpose: &'static str,
}

/// For labelled pictures, which a configuration without keys trains on.
pub(super) const PICTURES: RunTexts = RunTexts {
    title: "Telling garments apart",
    purpose: "A small network learns to tell ten kinds of garments apart from 28 by 28 pixels. \
              Volunteers train it together, and it works in the tab that helped.",
};
const ALIKE: RunTexts = RunTexts {
    title: "Seeing which pictures are alike",
    purpose: "A small network looks at pieces of pictures of garments, without ever being told what they show, and \
              learns which pieces are of one picture. Volunteers train it together.",
};
/// For labelled pictures of the operator's own.
pub(super) const OWN: RunTexts = RunTexts {
    title: "Telling pictures apart",
    purpose: "A small network learns to tell kinds of pictures apart. \
              Volunteers train it together, and it works in the tab that helped.",
};
const OWN_ALIKE: RunTexts = RunTexts {
    title: "Seeing which pictures are alike",
    purpose: "A small network looks at pieces of pictures, without ever being told what they show, and \
              learns which pieces are of one picture. Volunteers train it together.",
};
/// For text.
pub(super) const TEXT: RunTexts = RunTexts {
    title: "Guessing missing words",
    purpose: "A small network reads text and learns to guess the words that are missing from it. \
              Volunteers train it together.",
};

/// For pictures of digits.
pub(super) const DIGITS: RunTexts = RunTexts {
    title: "Reading digits",
    purpose: "A small network learns to read handwritten digits from 28 by 28 pixels. \
              Volunteers train it together, and it works in the tab that helped.",
};
/// For a table.
pub(super) const TABLE: RunTexts = RunTexts {
    title: "Learning from a table",
    purpose: "A small network learns what one column of a table says from the other columns. \
              Volunteers train it together.",
};
/// For ratings.
pub(super) const RATINGS: RunTexts = RunTexts {
    title: "Learning what people like",
    purpose: "A small model learns from ratings who may like what. Volunteers train it together.",
};
/// For text that is gone on with.
const CONTINUED: RunTexts = RunTexts {
    title: "Going on with a text",
    purpose: "A small network reads text and learns how it goes on. \
              Volunteers train it together, and it writes in the tab that helped.",
};

/// Replaces the default texts of [`PICTURES`] by those that suit the run's data and model.
pub(super) fn suit(config: &mut RunConfig) {
    let loss = config.model.kind.graph().loss;
    let data = &config.data;
    let named = data.named();
    let words = match (named, &loss) {
        _ if data.table.is_some() => &TABLE,
        _ if data.ratings.is_some() || named == Some(NamedSet::Movielens100k) => &RATINGS,
        (_, Loss::CausalLanguageModel) if data.is_text() => &CONTINUED,
        _ if data.is_text() => &TEXT,
        (Some(NamedSet::FashionMnist), Loss::Swav(_)) => &ALIKE,
        (Some(NamedSet::FashionMnist), _) => &PICTURES,
        (_, Loss::Swav(_)) => &OWN_ALIKE,
        (Some(NamedSet::Mnist), _) => &DIGITS,
        _ => &OWN,
    };
    let run = &mut config.run;
    if run.title == PICTURES.title {
        run.title = words.title.to_owned();
    }
    if run.purpose == PICTURES.purpose {
        run.purpose = words.purpose.to_owned();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::*;

    const OF_TEXT: &str = "[model]\nkind = { albert = { embedding = 8, hidden = 16, heads = 2, inner = 32, layers = 2 } }\n\
        [data.text]\nname = \"Rhymes\"\nsources = [{ path = \"rhymes.txt\" }]";
    const OF_PICTURES_ALONE: &str = "[model]\nkind = { swav = { trunk = { convolutions = [16, 32] }, hidden = 32, projection = 16, prototypes = 16, \
        small_crops = 2, small_side = 14, queue_samples = 0, queue_after = 0, frozen_epochs = 10 } }\n\
        [scheme.synchronous]\n\
        optimizer = { kind = \"lars\", momentum = 0.9, trust_coefficient = 0.01, weight_decay = 1e-6 }\n\
        micro_batch_size = 256";

    fn called(run: &str) -> (String, String) {
        let config = RunConfig::parse(&format!("[run]\n{run}"), Path::new("run.toml")).unwrap();
        (config.run.title, config.run.purpose)
    }

    #[test]
    fn a_run_is_called_after_what_it_learns() {
        for (run, words) in [("", PICTURES), (OF_TEXT, TEXT), (OF_PICTURES_ALONE, ALIKE)] {
            assert_eq!(called(run), (words.title.to_owned(), words.purpose.to_owned()));
        }
    }

    #[test]
    fn what_an_operator_says_stays() {
        let (title, purpose) = called(&format!("title = \"Old rhymes\"\n{OF_TEXT}"));
        assert_eq!((title.as_str(), purpose.as_str()), ("Old rhymes", TEXT.purpose));
        let (title, purpose) = called(&format!("purpose = \"For us.\"\n{OF_TEXT}"));
        assert_eq!((title.as_str(), purpose.as_str()), (TEXT.title, "For us."));
    }
}
