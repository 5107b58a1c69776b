//! Sizes, read and printed.

use ndgc_kernels::base::units::{Bytes, parse_limit, parse_size};

#[test]
fn sizes_are_read_with_units_and_percent() {
    assert_eq!(parse_limit(" None", None), Some(None));
    assert_eq!((parse_limit("2k", None), parse_limit("some", None)), (Some(Some(2048)), None));
    assert_eq!(parse_size("4096", None), Some(4096));
    assert_eq!(parse_size(" 64k ", None), Some(64 << 10));
    assert_eq!(parse_size("1.5g", None), Some(3 << 29));
    assert_eq!(parse_size("2 GiB", None), Some(2 << 30));
    assert_eq!(parse_size("50%", Some(1000)), Some(500));
    for wrong in ["", "x", "-1", "1q", "50%", "1e3", "99999999999t"] {
        assert_eq!(parse_size(wrong, None), None, "{wrong}");
    }
}

#[test]
fn bytes_print_in_binary_units() {
    assert_eq!(Bytes(512).to_string(), "512 B");
    assert_eq!(Bytes(1536).to_string(), "1.50 KiB");
    assert_eq!(Bytes(3 << 29).to_string(), "1.50 GiB");
}
