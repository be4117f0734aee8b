//! shared/swarm
