import COpenSSL

/// A value protected by an OpenSSL lock.
///
/// Safety: `value` is accessed only with `lock` held.
final class CryptoLock<Value>: @unchecked Sendable {
    private let lock: UnsafeMutableRawPointer
    private var value: Value

    init(_ value: sending Value) {
        guard let lock = CRYPTO_THREAD_lock_new() else { fatalError("OpenSSL: out of memory") }
        self.lock = lock
        self.value = value
    }

    deinit { CRYPTO_THREAD_lock_free(lock) }

    func withLock<Result>(_ body: (inout Value) -> Result) -> Result {
        CRYPTO_THREAD_write_lock(lock)
        defer { CRYPTO_THREAD_unlock(lock) }
        return body(&value)
    }
}
