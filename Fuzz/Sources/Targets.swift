import Glibc

/// The entry point for libFuzzer's inputs. `FUZZ_TARGET` names the target; `Fuzz/run` sets it.
@_cdecl("LLVMFuzzerTestOneInput")
public func testOneInput(_ data: UnsafePointer<UInt8>?, _ size: Int) -> Int32 {
    target(Array(UnsafeBufferPointer(start: data, count: size)))
    return 0
}

private let target: @Sendable ([UInt8]) -> Void =
    switch getenv("FUZZ_TARGET").map({ String(cString: $0) }) {
    case "http1": fuzzHTTP1
    case "http2": fuzzHTTP2
    case "response": fuzzResponse
    case "connection": fuzzConnection
    case "name": fuzzName
    case "range": fuzzRange
    case "preconditions": fuzzPreconditions
    case "digest": fuzzDigest
    case "trace": fuzzTrace
    case "spans": fuzzSpans
    case "forwarded": fuzzForwarded
    case "proxyheader": fuzzProxyHeader
    case "s3answer": fuzzS3Answer
    case "signer": fuzzSigner
    case "s3authorization": fuzzS3Authorization
    case "s3query": fuzzS3Query
    case "awschunked": fuzzAWSChunked
    case "postform": fuzzPostForm
    case "pagetoken": fuzzPageToken
    case "uploadtoken": fuzzUploadToken
    case "uploadstate": fuzzUploadState
    case "cachesegment": fuzzCacheSegment
    case "uploadmetadata": fuzzUploadMetadata
    case "patch": fuzzPatch
    case "multipart": fuzzMultipart
    case "firebase": fuzzFirebase
    case "cloudstorage": fuzzCloudStorage
    case "token": fuzzToken
    case "rules": fuzzRules
    case "evaluator": fuzzEvaluator
    default: fatalError("FUZZ_TARGET names no target")
    }
