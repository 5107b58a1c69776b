// What a graph runs beside the kernels that it captured. The element type means nothing here.

// Counts a replay: adds 1 to the u64 at this address.
ENTRY(bump, u64) {
    if (thread_number() == 0) *at<u64>(p) += 1;
}
