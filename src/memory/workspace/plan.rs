//! The sizes of a workspace, cycle by cycle: pure arithmetic over a configuration and requests.
