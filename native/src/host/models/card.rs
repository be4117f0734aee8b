//! The model card, in the format of model hubs: a YAML header and text about architecture, training and quality. Pure.

use barnraise_protocol::api::{AcceptedTotals, HistoryPoint, RunStatus};
use barnraise_protocol::dataset::SampleKind;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::run::model::graph::Loss;

use super::{Facts, Snapshot};

/// The task of a model in the terms of a hub.
struct HubTask {
    slug: &'static str,
    does: &'static str,
    metric: &'static str,
}

/// The card of a snapshot. `given`: number of contributors and their totals, where known.
pub(super) fn card(
    facts: &Facts,
    snapshot: &Snapshot,
    status: &RunStatus,
    given: Option<(u64, AcceptedTotals)>,
) -> String {
    let task = task(&facts.run);
    [
        header(facts, snapshot, &task),
        about(facts, snapshot, &task),
        training(facts, snapshot, status, given),
        quality(facts, snapshot, &task),
        loading(facts, snapshot),
    ]
    .join("\n")
}

fn task(run: &RunDescription) -> HubTask {
    match (&run.model.graph.loss, &run.data.manifest.samples) {
        (Loss::Classification, SampleKind::Images { .. }) => HubTask {
            slug: "image-classification",
            does: "tells pictures apart",
            metric: "share of held-out pictures whose class it says",
        },
        (Loss::MaskedLanguageModel, _) => HubTask {
            slug: "fill-mask",
            does: "guesses masked words of a text",
            metric: "share of masked tokens of held-out text that it guesses",
        },
        (Loss::CausalLanguageModel, _) => HubTask {
            slug: "text-generation",
            does: "goes on with a text, token by token",
            metric: "share of tokens of held-out text that it foresees",
        },
        (Loss::Classification, SampleKind::Rows(_)) => HubTask {
            slug: "tabular-classification",
            does: "says of which class a row of a table is",
            metric: "share of held-out rows whose class it says",
        },
        (Loss::Classification, _) => HubTask {
            slug: "text-classification",
            does: "tells texts apart",
            metric: "share of held-out texts whose class it says",
        },
        (Loss::Regression, _) => HubTask {
            slug: "tabular-regression",
            does: "foretells a number",
            metric: "share of the variance of held-out numbers that it explains (R²)",
        },
        (Loss::Swav(_), _) => HubTask {
            slug: "image-feature-extraction",
            does: "describes pictures by features that it learned without labels",
            metric: "share of held-out pictures whose class is that of the training pictures most alike",
        },
    }
}

fn header(facts: &Facts, snapshot: &Snapshot, task: &HubTask) -> String {
    let run = &facts.run;
    let license = match &facts.license {
        Some(license) => format!("license: {}\n", quoted(license)),
        None => "license: other\nlicense_name: not-stated\n".to_owned(),
    };
    format!(
        "---\n{license}library_name: safetensors\npipeline_tag: {slug}\ntags:\n- barnraise\n\
        - collaborative-training\nmodel-index:\n- name: {name}\n  results:\n  - task:\n      type: {slug}\n    \
        dataset:\n      name: {dataset}\n      type: {kind}\n    metrics:\n    - type: accuracy\n      \
        name: {metric}\n      value: {accuracy}\n---\n",
        slug = task.slug,
        name = quoted(&run.identity.run_id),
        dataset = quoted(&run.data.manifest.name),
        kind = quoted(&slug(&run.data.manifest.name)),
        metric = quoted(task.metric),
        accuracy = snapshot.evaluation.accuracy,
    )
}

fn about(facts: &Facts, snapshot: &Snapshot, task: &HubTask) -> String {
    let run = &facts.run;
    format!(
        "# {title}\n\n{purpose}\n\nThe model {does}. Its network: {network}; {n} parameters, after {epoch} optimizer \
        steps of the run `{id}`.\n",
        title = line(&run.identity.title),
        purpose = line(&run.identity.purpose),
        does = task.does,
        network = line(&run.model.graph.name),
        n = facts.layout.n_parameters(),
        epoch = snapshot.epoch,
        id = line(&run.identity.run_id),
    )
}

fn training(
    facts: &Facts,
    snapshot: &Snapshot,
    status: &RunStatus,
    given: Option<(u64, AcceptedTotals)>,
) -> String {
    let run = &facts.run;
    let samples = match &run.data.manifest.samples {
        SampleKind::Images { shape, class_names } => format!(
            "{} pictures of {} by {} pixels, {}",
            run.data.manifest.n_samples(),
            shape.width,
            shape.height,
            match run.model.graph.loss.is_self_supervised() {
                true => "without their labels".to_owned(),
                false => format!("each one of {}", line(&class_names.join(", "))),
            }
        ),
        SampleKind::Tokens(tokens) => format!(
            "{} of {} tokens each, out of a vocabulary of {}",
            match run.data.manifest.stream {
                Some(_) => "a stream of pieces of text".to_owned(),
                None => format!("{} pieces of text", run.data.manifest.n_samples()),
            },
            tokens.length,
            tokens.vocabulary
        ),
        SampleKind::Rows(table) => {
            format!("{} rows of {} numbers each", run.data.manifest.n_samples(), table.columns.len())
        }
        SampleKind::Ratings(of) => format!(
            "{} ratings of {} items by {} users",
            run.data.manifest.n_samples(),
            of.n_items,
            of.n_users
        ),
    };
    let made_of = status.history.iter().rfind(|point: &&HistoryPoint| point.epoch <= snapshot.epoch);
    let by_then = made_of.map_or_else(String::new, |point| {
        format!(
            " By then {} samples had gone into its steps, counted with repetition.",
            point.n_samples_total
        )
    });
    let by_contributors = given.map_or_else(String::new, |(n, given)| {
        format!(
            " The run has had {n} contributors so far, browser tabs among them, whose {} contributions of {} samples \
            took {} hours all in all.",
            given.n_contributions,
            given.n_samples,
            given.seconds / 3600
        )
    });
    format!(
        "## How it was trained\n\nOn {name}: {samples}. Volunteers computed gradients on devices of their own, and \
        each optimizer step is made of about {target} samples of all of them.{by_then}{by_contributors}\n",
        name = line(&run.data.manifest.name),
        target = run.scheme.step_samples(),
    )
}

fn quality(facts: &Facts, snapshot: &Snapshot, task: &HubTask) -> String {
    let evaluation = snapshot.evaluation;
    let license = match &facts.license {
        Some(license) => format!("The operator of the run gives it away under `{}`.", line(license)),
        None => {
            "The operator of the run did not state a licence: ask before you use it for more than trying."
                .to_owned()
        }
    };
    format!(
        "## How well it does\n\nAccuracy {:.1} % ({}), mean cross-entropy {:.3} nats, measured on samples that are \
        never trained on.\n\n## Limits\n\nIt knows what is in its training data and nothing else, mistakes and bias of \
        that data included, and it may still be in the middle of its training. Nobody has checked it for any use in \
        which a wrong answer does harm. {license}\n",
        evaluation.accuracy * 100.0,
        task.metric,
        evaluation.loss,
    )
}

fn loading(facts: &Facts, snapshot: &Snapshot) -> String {
    let names: Vec<String> = facts
        .layout
        .segments()
        .iter()
        .map(|segment| format!("- `{}` {:?}", segment.name, segment.shape))
        .collect();
    format!(
        "## How to load it\n\n`model.safetensors` holds f32 values, row-major. The weight of a linear layer is \
        `[in, out]`, PyTorch's transposed; that of a convolution `[out, in, height, width]`.\n\n```python\n\
        from safetensors.numpy import load_file\n\ntensors = load_file(\"model.safetensors\")\n```\n\n\
        SHA-256 of the values, as they stand in the file after its header: `{}`.\n\n{}\n",
        snapshot.sha256,
        names.join("\n")
    )
}

/// Quotes any text for YAML, of which JSON is a subset.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A text of the configuration as one line, so that it opens no section of its own.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn slug(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    name.chars().map(letter).collect()
}
