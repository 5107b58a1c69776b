//! Workspaces: what ND4J's tests assert (W1 to W63, A1 to A6), and what goes beyond.

mod basics;
