//! Both positions of the switch.

use ndgc::gc;

use crate::common::alone;

/// Runs the body with the switch off, then on, while no other test runs.
pub(crate) fn both(body: impl Fn()) {
    alone(|| {
        for on in [false, true] {
            let _switch = gc::scoped(on);
            body();
        }
    });
}
