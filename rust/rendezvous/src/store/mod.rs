//! The c10d store.
