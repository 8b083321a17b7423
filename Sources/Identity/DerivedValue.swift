import Synchronization

/// A value that another module derives from an identity at its first use. It lives as long as the identity.
package struct DerivedValue: ~Copyable, Sendable {
    private final class Box: Sendable {
        let object: any AnyObject & Sendable

        init(_ object: any AnyObject & Sendable) { self.object = object }
    }
    private let box = AtomicLazyReference<Box>()

    /// The kept value; nil before the first call of ``keep(_:)``.
    package var object: (any AnyObject & Sendable)? { box.load()?.object }

    /// Keeps a value unless another thread was first, and returns the kept value.
    package func keep(_ object: any AnyObject & Sendable) -> any AnyObject & Sendable {
        box.storeIfNil(Box(object)).object
    }
}
