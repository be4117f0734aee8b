//! What differs by processor.

/// Whether AES-GCM is quicker here than ChaCha20-Poly1305.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_aes_instructions() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

/// Whether AES-GCM is quicker here than ChaCha20-Poly1305.
#[cfg(target_arch = "aarch64")]
pub(super) fn has_aes_instructions() -> bool {
    // There the polynomial multiplication belongs to it.
    std::arch::is_aarch64_feature_detected!("aes")
}

/// Whether AES-GCM is quicker here than ChaCha20-Poly1305.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn has_aes_instructions() -> bool {
    false
}
