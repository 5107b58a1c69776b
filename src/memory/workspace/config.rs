//! What a workspace is like: policies, sizes, and which of them contradict each other.
