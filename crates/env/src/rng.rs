//! The machine's own randomness, for secrets and for ids that never repeat.

/// Fills `bytes` from the operating system's generator.
///
/// # Panics
/// If the operating system has no randomness: nothing secret can be made then.
pub fn fill_secret(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

/// 64 bits from the operating system's generator: for ids that must never repeat, such as boot ids.
#[must_use]
pub fn unique_u64() -> u64 {
    #[cfg(feature = "simulated")]
    if let Some(drawn) = crate::simulated::draw() {
        return drawn;
    }
    let mut bytes = [0; 8];
    fill_secret(&mut bytes);
    u64::from_le_bytes(bytes)
}
