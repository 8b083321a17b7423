import System

/// The pool that all tests of the process share.
let sharedPool = BlockingPool(threads: 2)
