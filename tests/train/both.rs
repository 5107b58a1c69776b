//! Both positions of the switch.

use ndgc::{DebugMode, Workspace, gc};

use crate::common::alone;

/// Runs the body with the switch off, then on, while no other test runs; in the debug mode of workspaces that
/// `NDGC_TEST_DEBUG_MODE` names, in which no number changes.
pub(crate) fn both(body: impl Fn()) {
    let mode = match std::env::var("NDGC_TEST_DEBUG_MODE").as_deref() {
        Err(_) => DebugMode::Disabled,
        Ok("spill") => DebugMode::SpillEverything,
        Ok("bypass") => DebugMode::BypassEverything,
        Ok(other) => panic!("there is no debug mode {other}"),
    };
    alone(|| {
        Workspace::set_debug_mode(mode);
        for on in [false, true] {
            let _switch = gc::scoped(on);
            body();
        }
        Workspace::set_debug_mode(DebugMode::Disabled);
    });
}
