//! shared/learning
