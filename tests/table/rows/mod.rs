//! The rows: one line for each public operation.
//!
//! `name |x| call;` where `x` is a [`Sample`]; a function of `nn` is named with its module (`ops::silu`). A row joins
//! the family's list in its file; [`all`] joins the families.

mod arithmetic;
mod creation;
mod indexing;
mod networks;
mod reductions;
mod views;

use ndgc::Result;

use crate::table::sample::{List, Sample};

/// One operation.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) family: &'static str,
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Sample) -> Result<List>,
}

/// The rows of a family.
macro_rules! rows {
    ($list:ident, $family:literal; $($first:ident $(:: $second:ident)? |$x:ident| $call:expr;)*) => {
        pub(crate) const $list: &[$crate::table::rows::Row] = &[$(
            $crate::table::rows::Row {
                family: $family,
                name: concat!(stringify!($first) $(, "::", stringify!($second))?),
                run: |$x| $call.map($crate::table::sample::Results::list),
            }
        ),*];
    };
}
pub(crate) use rows;

/// A call with `$t` standing for the Rust type of the sample's dtype.
macro_rules! typed {
    ($x:ident, $t:ident => $call:expr) => {
        $crate::table::rows::typed!(
            $x, $t => $call;
            Bool bool, U8 u8, U16 u16, U32 u32, U64 u64, I8 i8, I16 i16, I32 i32, I64 i64,
            F8E4M3 ndgc::F8E4M3, F16 ndgc::f16, BF16 ndgc::bf16, F32 f32, F64 f64
        )
    };
    ($x:ident, $t:ident => $call:expr; $($dtype:ident $rust:ty),*) => {
        match $x.dtype {
            $(ndgc::DType::$dtype => {
                type $t = $rust;
                $call
            })*
        }
    };
}
pub(crate) use typed;

/// Every row, family by family.
pub(crate) fn all() -> impl Iterator<Item = &'static Row> {
    [
        creation::CREATION,
        views::VIEWS,
        arithmetic::OF_ONE,
        arithmetic::UNARY,
        arithmetic::OF_TWO,
        arithmetic::BINARY,
        arithmetic::LOGIC,
        arithmetic::IN_PLACE,
        reductions::REDUCTIONS,
        reductions::ORDER,
        indexing::INDEXING,
        networks::PRODUCTS,
        networks::IMAGES,
        networks::NETWORKS,
        networks::MODULES,
    ]
    .into_iter()
    .flatten()
}
