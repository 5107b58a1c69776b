//! The tests of what is optional, apart from all others: who asks for its features compiles these alone.
#![allow(clippy::unwrap_used)] // a test ends with the first surprise

mod common;
#[path = "common/counting.rs"]
mod counting;

mod it {
    mod exchanged;
    mod exported;
    #[allow(dead_code, unused_imports)] // these use a part
    mod support;
}

mod ops {
    mod factors;
    mod fourier;
    #[allow(dead_code)] // these use a part
    mod gradcheck;
    mod ndarrays;
    #[allow(dead_code)] // these use a part
    mod reference;
    #[allow(dead_code, unused_imports)] // these use a part
    mod support;
}
