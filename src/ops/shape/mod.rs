//! Arrays seen or laid out in other shapes: views, splitting, repeating, padding.

pub(crate) mod view;

pub(crate) mod join;
pub(crate) mod pad;
pub(crate) mod rearrange;
