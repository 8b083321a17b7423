@testable import Buckets

/// The state of an upload session in a store in the cloud. What is parsed is consistent: it is written as the same bytes,
/// its sizes add up, and its result, digests and name of a hidden object can be used.
func fuzzUploadState(_ bytes: [UInt8]) {
    guard let state = try? CloudSessionState(bytes) else { return }
    let written = state.bytes
    guard let again = try? CloudSessionState(written) else { preconditionFailure("not read back") }
    precondition(again == state && again.bytes == written)
    if state.end == nil {
        precondition(state.pending <= state.offset)
        guard let facts = try? state.facts() else { preconditionFailure("no digests") }
        precondition(facts.size == state.offset && facts.md5?.count == 16)
    }
    precondition(state.visible.offset == state.offset)
    if case .committed = state.end { precondition(state.result?.metadata.name == state.name) }
    let id = UploadSessionID(expires: state.expires)
    for piece in state.pieces {
        let name = HiddenName.tail(id, number: piece.number)
        precondition(HiddenName(name.text) == name)
    }
    if let source = state.intent?.source { precondition(HiddenName(source.name(of: id)) != nil) }
}
