//! Arrays made of values, of a rule, or at random.

pub(crate) mod convert;
pub(crate) mod values;

pub(crate) mod generate;
pub(crate) mod random;

pub(crate) mod draws;
