//! Workspaces: arenas whose arrays end together, with the cycle they were made in.

pub(crate) mod config;
pub(crate) mod plan;
