//! Operands of kernels: views of memory, and what a kernel does to them.

use crate::base::{dtype::DType, layout::Layout};
use crate::span::Span;

/// An operand: some elements of a buffer, with their layout by reference, as long as the work is submitted at once.
///
/// It promises nothing: the host's kernels look at the bounds again, and other devices get [`OwnedView`]s.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    span: Span,
    dtype: DType,
    layout: &'a Layout,
}

impl<'a> View<'a> {
    #[inline(always)]
    pub fn new(span: Span, dtype: DType, layout: &'a Layout) -> Self {
        View { span, dtype, layout }
    }

    #[inline(always)]
    pub fn span(&self) -> Span {
        self.span
    }

    #[inline(always)]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline(always)]
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }
}

/// An operand of work that waits: owned.
///
/// Having one tells that every place it leads to lies inside the span, checked by [`OwnedView::new`].
#[derive(Clone, Copy, Debug)]
pub struct OwnedView {
    span: Span,
    dtype: DType,
    layout: Layout,
}

impl OwnedView {
    #[inline]
    pub fn new(span: Span, dtype: DType, layout: Layout) -> Self {
        let end = layout.bounds().map(|(_, end)| end);
        let fits = |end: usize| end <= span.bytes() / dtype.size_in_bytes();
        assert!(end.is_some_and(fits), "a view stays inside its buffer");
        OwnedView { span, dtype, layout }
    }

    #[inline]
    pub fn span(&self) -> Span {
        self.span
    }

    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    #[inline]
    pub fn borrowed(&self) -> View<'_> {
        View { span: self.span, dtype: self.dtype, layout: &self.layout }
    }
}

impl From<&View<'_>> for OwnedView {
    fn from(view: &View<'_>) -> Self {
        OwnedView::new(view.span, view.dtype, *view.layout)
    }
}

/// What a kernel does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    ReadWrite,
}

/// A list of kernels: for each its name, its numbers, its operands with what it does to them, and operands that it may
/// have. From this come the enum, and what all of them have in common.
macro_rules! kernels {
    (
        $(#[$about:meta])*
        pub enum $kernels:ident $(also { $($(#[$part_doc:meta])* $part:ident,)* })? {
            $(
                $(#[$doc:meta])*
                $kernel:ident $name:expr, { $($number:ident: $type:ty),* }
                ($($view:ident: $access:expr),*) $(($($maybe:ident: $maybe_access:expr),*))?;
            )*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug)]
        pub enum $kernels<V = $crate::view::OwnedView> {
            $($(#[$doc])* $kernel { $($number: $type,)* $($view: V,)* $($($maybe: Option<V>,)*)? },)*
            $($($(#[$part_doc])* $part($part<V>),)*)?
        }

        impl<V> $kernels<V> {
            /// What reports call it.
            #[allow(unused_variables)] // most are called as their kind is, whatever their numbers
            pub fn name(&self) -> &'static str {
                match self {
                    $($kernels::$kernel { $($number,)* .. } => $name,)*
                    $($($kernels::$part(part) => part.name(),)*)?
                }
            }

            /// Calls `f` with every operand and what the kernel does to it.
            #[allow(unused_variables)] // of most kernels the numbers say nothing about their operands
            pub fn operands<'v>(&'v self, f: &mut dyn FnMut(&'v V, $crate::view::Access)) {
                match self {
                    $($kernels::$kernel { $($number,)* $($view,)* $($($maybe,)*)? } => {
                        $(f($view, $access);)*
                        $($($maybe.iter().for_each(|view| f(view, $maybe_access));)*)?
                    })*
                    $($($kernels::$part(part) => part.operands(f),)*)?
                }
            }

            /// The same kernel with what `f` makes of each operand, in the order of `operands`.
            pub fn map<'v, W>(&'v self, f: &mut dyn FnMut(&'v V) -> W) -> $kernels<W> {
                match self {
                    $($kernels::$kernel { $($number,)* $($view,)* $($($maybe,)*)? } => $kernels::$kernel {
                        $($number: *$number,)*
                        $($view: f($view),)*
                        $($($maybe: $maybe.as_ref().map(&mut *f),)*)?
                    },)*
                    $($($kernels::$part(part) => $kernels::$part(part.map(f)),)*)?
                }
            }
        }
    };
}
pub(crate) use kernels;
