//! Sorts against those of the standard library.

use ndgc_kernels::base::order::{sort_by, sort_by_key};

#[test]
fn it_sorts_as_the_standard_library_does() {
    let mut state = 7u64;
    for count in 0..60 {
        let mut items: Vec<(u64, usize)> = (0..count)
            .map(|place| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((state >> 33) % 9, place)
            })
            .collect();
        let (mut by, mut by_key) = (items.clone(), items.clone());
        items.sort_by_key(|item| std::cmp::Reverse(item.0));
        sort_by(&mut by, |a, b| b.0.cmp(&a.0));
        sort_by_key(&mut by_key, |item| std::cmp::Reverse(item.0));
        assert_eq!((&by, &by_key), (&items, &items));
    }
}
