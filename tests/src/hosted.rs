//! A small model whose experts live on other processes.

/// Model, data and scheme: eight experts on a grid of one dimension, after the first layer. Without them the last layer sees the
/// first one alone.
pub const RUN: &str = r#"
[model.kind.graph]
name = "experts for garments"
loss = "classification"
parts = [{ name = "expert", blocks = [
    { name = "up", op = { dense = { units = 32, initial = "he" } } },
    { name = "act", op = "relu" },
    { name = "down", op = { dense = { units = 16 } } },
] }]
blocks = [
    { name = "flat", op = "flatten" },
    { name = "first", op = { dense = { units = 16, initial = "he" } } },
    { name = "act", op = "relu" },
    { name = "moe", op = { experts = { part = "expert", side = 8, active = 2 } } },
    { name = "sum", op = "add", from = ["moe", "act"] },
    { name = "fc", op = { dense = { units = "classes" } } },
]

[model.experts]
schedule = { peak = 0.003 }

[data]
shuffle_buffer_samples = 1000

[scheme.synchronous]
target_batch_size = 128
micro_batch_size = 32
schedule = { peak = 0.005 }

[evaluation]
every_epochs = 5
"#;
